"""Write the actual rows into the test file, in place of expected rows that differ.

Only the text of these rows changes, so everything else in the file stays, comments included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from ha_engine.app_test.cases import Place
from ha_engine.app_test.comparison import Difference, Row, plain
from ha_engine.app_test.suite import SuiteResult
from ha_engine.errors import BadTestFile
from ha_engine.formats.strict_yaml import Document, parse_document

_BARE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*|\d{4}-\d\d-\d\d(T[0-9:.+-]+Z?)?")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
"""Texts that YAML, or an older version of it, does not read as texts without quotes."""


def update_file(result: SuiteResult) -> tuple[int, list[str]]:
    """Update the test file. Return the number of replaced expectations, and for each other one
    that differs why it was not replaced.

    Raises BadTestFile if the file changed during the tests.
    """
    path, text = result.file.path, result.file.text
    if path.read_bytes() != text.encode():
        raise BadTestFile(f"{path}: the file changed during the tests; repeat the command")
    replaced, kept = list[Difference](), list[str]()
    for one in _differences(result):
        if reason := _why_kept(one):
            kept.append(f"{path}:{one.expectation.place.line}: {one.expectation.place}: {reason}")
        else:
            replaced.append(one)
    # From the end, so that the places before remain valid.
    for one in sorted(replaced, key=_start, reverse=True):
        text = _with_rows(text, one)
    if replaced:
        _require_same(result.file.text, text, [one.expectation.rows_place for one in replaced])
        path.write_bytes(text.encode())
    return len(replaced), kept


def _differences(result: SuiteResult) -> Iterator[Difference]:
    for case in result.results:
        yield from (one for one in case.differences if not one.is_none)


def _why_kept(found: Difference) -> str | None:
    expectation = found.expectation
    if found.error is not None:
        return "the query failed, so it has no rows to write"
    if expectation.file is not None:
        return f"the rows are in {expectation.file}; update that file yourself"
    if _start(found) < _key(expectation.rows_place).end_mark.index:
        return "the rows are an alias of rows elsewhere; update them yourself"
    return None


def _require_same(before: str, after: str, places: Iterable[Place]) -> None:
    """Raise AssertionError if more than the rows at ``places`` changed."""
    documents = [parse_document(before), parse_document(after)]
    for place in places:
        for document in documents:
            _cut(document, place)
    if documents[0].values != documents[1].values:
        raise AssertionError("the update would change more of the file than expected rows")


def _cut(document: Document, place: Place) -> None:
    inner = document.values
    for key in place.keys[:-1]:
        inner = inner[key]
    inner[place.keys[-1]] = None


# -- the text of the rows --------------------------------------------------------------------------


def _start(found: Difference) -> int:
    return int(_rows(found.expectation.rows_place).start_mark.index)


def _rows(place: Place) -> yaml.Node:
    node = place.document.node(place.keys)
    assert node is not None, "the rows are in the document"
    return node


def _key(place: Place) -> yaml.Node:
    """The node of the key whose value are the rows."""
    key = place.document.key(place.keys)
    assert key is not None, "the rows are in the document"
    return key


def _with_rows(text: str, found: Difference) -> str:
    """Put the actual rows in place of the expected ones."""
    place = found.expectation.rows_place
    rows = [_flow(row, found.columns) for row in found.actual]
    if not found.expectation.ordered:
        rows.sort()  # so that the text does not depend on a run
    head, tail = text[: _start(found)].rstrip(), text[_end(text, _rows(place)) :]
    nodes = [place.document.node(place.keys[:length]) for length in range(len(place.keys))]
    if not rows or any(isinstance(one, yaml.CollectionNode) and one.flow_style for one in nodes):
        return f"{head} [{', '.join(rows)}]{tail}"
    indent = " " * (int(_key(place).start_mark.column) + 2)
    return head + "".join(f"\n{indent}- {row}" for row in rows) + tail


def _end(text: str, node: yaml.Node) -> int:
    """The end of the text of ``node``. A block ends where its last value ends."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        last = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
        end = _end(text, last)
        # The text of an alias is elsewhere.
        return end if end > node.start_mark.index else len(text[: node.end_mark.index].rstrip())
    return int(node.end_mark.index)


def _flow(row: Row, columns: tuple[str, ...]) -> str:
    """The row as a mapping on one line."""
    return "{" + ", ".join(f"{name}: {_word(plain(row[name]))}" for name in columns) + "}"


def _word(value: Any) -> str:
    if isinstance(value, str) and _BARE.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
