"""docs/RULES.md defines every rule once; citations of a rule and names in a rule are valid."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, pages, shown

RULES = ROOT / "docs" / "RULES.md"
NUMBERS = [*(f"I{n}" for n in range(1, 16)), *(f"R{n}" for n in range(1, 39))]

_ENTRY = re.compile(r'^### <a id="(\w+)"></a>(\w+)\. (.+)$', re.MULTILINE)
_ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_CITED = re.compile(r"RULES\.md#([\w-]+)")
_CITED_WITHIN = re.compile(r"\]\(#([\w-]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\([^)]*\)")
_NUMBER = re.compile(r"\b[RI]\d{1,2}\b")
_INLINE = re.compile(r"`([^`]+)`")
_CASE = re.compile(r"\[\w+\]$")


@dataclass(frozen=True, slots=True)
class Entry:
    """The text of one rule, below its heading."""

    number: str
    text: str

    def named(self, label: str) -> list[str]:
        """Return the code spans in the paragraph of ``label``; none without such a paragraph."""
        found = re.search(
            rf"^\*\*{label}:\*\*(.*?)(?:\n\n|\Z)", self.text, re.DOTALL | re.MULTILINE
        )
        return _INLINE.findall(found[1]) if found else []

    @property
    def is_built(self) -> bool:
        return bool(self.named("Kept by"))


def entries() -> list[Entry]:
    text = RULES.read_text()
    found = list(_ENTRY.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    return [Entry(m[2], text[m.end() : end]) for m, end in zip(found, ends, strict=True)]


def anchors() -> list[str]:
    return _ANCHOR.findall(RULES.read_text())


def sections() -> list[str]:
    """Return the anchors of the headings between the rules, on GitHub and on the site."""
    titles = _SECTION.findall(RULES.read_text())
    return [re.sub(r"[^a-z0-9]+", "-", title.lower()) for title in titles]


# -- the page --------------------------------------------------------------------------------------


def test_every_rule_has_one_anchor() -> None:
    assert Counter(anchors()) == Counter(number.lower() for number in NUMBERS)


def test_every_rule_has_one_entry_in_order_of_the_numbers() -> None:
    headings = [(match[1], match[2]) for match in _ENTRY.finditer(RULES.read_text())]
    assert headings == [(number.lower(), number) for number in NUMBERS]


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.number)
def test_each_rule_names_its_code_and_tests_or_why_it_is_not_built(entry: Entry) -> None:
    if entry.is_built:
        assert entry.named("Tested by")
        assert "\n**Without it:**\n\n1. " in entry.text
    else:
        assert "\n**Not built:** " in entry.text
        assert "](adr/" in entry.text


# -- citations of a rule ---------------------------------------------------------------------------


def sources() -> Iterator[Path]:
    yield from sorted((ROOT / "ha_engine").rglob("*.py"))
    yield from sorted((ROOT / "tests").rglob("*.py"))
    yield from pages()


def test_every_citation_names_a_rule() -> None:
    known = {*anchors(), *sections()}
    cited = [
        (shown(path), anchor)
        for path in sources()
        for anchor in _CITED.findall(path.read_text(encoding="utf-8"))
    ]
    assert ("docs/PROTOCOL.md", "i1") in cited
    assert [place for place in cited if place[1] not in known] == []


def test_every_citation_within_the_page_names_a_rule() -> None:
    cited = _CITED_WITHIN.findall(RULES.read_text())
    assert cited
    assert sorted(set(cited) - set(anchors())) == []


def test_no_comment_or_docstring_cites_a_rule_without_its_anchor() -> None:
    """Numbers in other strings are data: which rule a mutant breaks, for example."""
    bare = [
        f"{shown(file)}:{line}: {found[0]}"
        for name in ("ha_engine", "tests", "benchmarks")
        for file in (ROOT / name).rglob("*.py")
        for line, text in _prose(file)
        for found in [_NUMBER.search(text)]
        if found and found[0] in NUMBERS
    ]
    assert bare == []


def _prose(file: Path) -> Iterator[tuple[int, str]]:
    """Yield comments and docstrings of a module, each with its first line."""
    source = file.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)


def test_no_page_cites_a_rule_without_a_link() -> None:
    bare = [
        (shown(page), number)
        for page in pages()
        if page != RULES
        for number in _NUMBER.findall(_LINK.sub("", _CODE.sub("", page.read_text())))
    ]
    assert bare == []


# -- names in a rule -------------------------------------------------------------------------------


def test_code_that_implements_a_rule_is_defined_where_the_rule_says() -> None:
    kept = [(entry.number, name) for entry in entries() for name in entry.named("Kept by")]
    assert [place for place in kept if not _is_defined(place[1])] == []


def test_tests_of_a_rule_exist() -> None:
    tested = [(entry.number, name) for entry in entries() for name in entry.named("Tested by")]
    assert [place for place in tested if not _is_a_test(place[1])] == []


def _is_defined(place: str) -> bool:
    path, _, name = place.partition("::")
    return name in _definitions(path)


def _is_a_test(place: str) -> bool:
    path, _, name = place.partition("::")
    if path.endswith(".txt"):
        return path.startswith("tests/core/scenarios/") and (ROOT / path).is_file()
    if " " in name:
        return name in mutants().get(path, ())
    if case := _CASE.search(name):
        name = name.removesuffix(case[0])
        if case[0].strip("[]") not in _schedules():
            return False
    return name.startswith("test_") and name in _definitions(path)


@cache
def _definitions(path: str) -> frozenset[str]:
    """Return the qualified names of classes and functions of a module, and those that it
    assigns."""
    if not (ROOT / path).is_file() or not path.endswith(".py"):
        return frozenset()
    return frozenset(_names_in(ast.parse((ROOT / path).read_text()), ""))


def _names_in(scope: ast.AST, prefix: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.ClassDef(name=name):
                yield prefix + name
                yield from _names_in(node, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield prefix + name


@cache
def mutants() -> dict[str, set[str]]:
    """Return the rule and the function that each mutant breaks, by list of mutants."""
    from tests.core.mutants import MUTANTS
    from tests.core.test_snapshots import BROKEN
    from tests.sim.mutants import HUNTED, SCHEDULED
    from tests.test_broken_edges import BREAKAGES

    return {
        "tests/core/mutants.py": {f"{m.rule} {m.function}" for m in MUTANTS},
        "tests/core/test_snapshots.py": {f"{m.rule} {m.function}" for _, m in BROKEN},
        "tests/sim/mutants.py": {
            f"{one.mutant.rule} {one.mutant.function}" for one in (*HUNTED, *SCHEDULED)
        },
        "tests/test_broken_edges.py": {f"{b.rule} {b.function}" for b in BREAKAGES},
    }


@cache
def _schedules() -> set[str]:
    from tests.sim.schedules import SCHEDULES

    return {schedule.__name__ for schedule in SCHEDULES}
