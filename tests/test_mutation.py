"""A mutation finds its unique place in the syntax tree, and replaces or removes it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import mutation
from tests.mutation import Mutation, MutationNotFound

SOURCE = '''
class Lease:
    @property
    def is_holder(self):
        """Whose it is."""
        return self.row is not None and self.row.holder == self.me

    def renew(self, now):
        if now < self.until:
            return None
        self.sent = now
        return self.write(now, epoch=self.epoch + 1)
'''
CASES = {
    "an expression": (
        "Lease.is_holder", "self.row.holder == self.me", "True",
        "return self.row is not None and True",
    ),
    "an operand": (
        "Lease.is_holder", "self.row is not None", "", "return self.row.holder == self.me",
    ),
    "a keyword": ("Lease.renew", "self.epoch + 1", "", "return self.write(now)"),
    "a statement": (
        "Lease.renew", "self.sent = now", "", "        return None\n    return self.write",
    ),
    "a condition, whatever it guards": (
        "Lease.renew", "if now < self.until: ...", "if False: ...",
        "if False:\n        return None",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    (tmp_path / "lease.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(("function", "old", "new", "expected"), CASES.values(), ids=CASES)
def test_mutation_changes_exactly_its_place(
    function: str, old: str, new: str, expected: str
) -> None:
    assert expected in _function(function, Mutation("lease", function, old, new))


@pytest.mark.parametrize("old", ["self.row.holder", "now"])
def test_missing_or_ambiguous_place_of_a_mutation_is_an_error(old: str) -> None:
    with pytest.raises(MutationNotFound, match=r"it is there [03] times"):
        Mutation("lease", "Lease.renew", old, "0").tree()


def test_layout_order_and_other_names_do_not_affect_a_mutation(home: Path) -> None:
    mutant = Mutation("lease", "Lease.is_holder", *CASES["an expression"][1:3])
    before = _function("Lease.is_holder", mutant)
    first, _, last = SOURCE.partition("    def renew")
    last = last.replace("now", "moment").replace("self.sent", "self.asked_at")
    head, _, body = first.partition("class Lease:\n")
    layout = body.replace(" and self", "   and (self").replace("self.me", "self.me)")
    (home / "lease.py").write_text(f"{head}class Lease:\n    def renew{last}\n{layout}")
    assert _function("Lease.is_holder", mutant) == before


def _function(name: str, mutant: Mutation) -> str:
    methods = ast.walk(mutant.tree())
    wanted = name.rpartition(".")[2]
    found = next(x for x in methods if isinstance(x, ast.FunctionDef) and x.name == wanted)
    return ast.unparse(found)
