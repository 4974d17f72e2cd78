"""Every promise of the README has a test that ``make test`` runs; CONTRIBUTING.md names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KEPT_BACK = ("nightly", "rotates")


def rows(text: str, first: str) -> list[list[str]]:
    """Return the cells of the table whose first heading is ``first``."""
    table = re.search(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None, first
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[1].splitlines()]


PROMISES = {
    promise: re.findall(r"`([\w/]+\.py::\w+)`", tests)
    for promise, tests in rows((ROOT / "CONTRIBUTING.md").read_text(), "promise")
}


def test_every_failure_in_the_readme_has_a_test() -> None:
    fails = [row[0] for row in rows((ROOT / "README.md").read_text(), "what")]
    assert set(fails) - set(PROMISES) == set()


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_has_tests_that_make_test_runs(promise: str) -> None:
    assert PROMISES[promise]
    for test in PROMISES[promise]:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text())
        marked = [mark for node in _deciding(tree, name) for mark in _marks(node)]
        assert not set(marked) & set(KEPT_BACK), f"{test} is kept for 'make test-all'"


def _deciding(tree: ast.Module, name: str) -> list[ast.AST]:
    """Return the marks of a module that decide when its test ``name`` runs, but for single
    cases."""
    marks = [node.value for node in tree.body if isinstance(node, ast.Assign) and _is_mark(node)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            own = [one for one in node.decorator_list if "parametrize" not in ast.unparse(one)]
            return [*marks, *own]
    raise AssertionError(f"there is no test {name}")


def _is_mark(node: ast.Assign) -> bool:
    return ast.unparse(node.targets[0]) == "pytestmark"


def _marks(node: ast.AST) -> list[str]:
    return re.findall(r"pytest\.mark\.(\w+)", ast.unparse(node))
