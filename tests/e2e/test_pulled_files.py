"""A file source of a pair: each row once and in order while the active is killed again and again.

Without Spark: the test checks the journal, from which a query would read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.journal import Journal
from ha_engine.types import Events
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal
from tests.e2e.without_spark import ROOM, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly("test_pulled_sources pulls files; the simulator fails over meanwhile"),
]

PATIENCE = 90
KILLS = 4
ROWS_OF_A_FILE = 25_000
BAD_EVERY = 5_000
SCHEMA = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("text", pa.string())])


class Files:
    """A directory that both nodes see; some of its rows are invalid."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.files = directory, 0
        directory.mkdir()

    def drop(self, rows: int = ROWS_OF_A_FILE) -> None:
        first, name = self.files * ROWS_OF_A_FILE, f"{self.files:06}.ndjson"
        lines = [self._line(number) for number in range(first, first + rows)]
        draft = self.directory / f"{name}.part"
        draft.write_text("".join(lines))
        draft.rename(self.directory / name)
        self.files += 1

    @staticmethod
    def _line(number: int) -> str:
        bad = number % BAD_EVERY == BAD_EVERY - 1
        return json.dumps({"id": f"no {number}" if bad else number, "text": f"row {number}"}) + "\n"

    @property
    def rows(self) -> int:
        return self.files * ROWS_OF_A_FILE

    @property
    def good(self) -> list[int]:
        return [n for n in range(self.rows) if n % BAD_EVERY != BAD_EVERY - 1]


def application(directory: Path) -> str:
    return f"""
name: pulled
streams:
  events:
    schema: {{id: int not null, text: string}}
    sources:
      - {{name: drop, type: file, directory: {directory}, format: ndjson}}
queries:
  copies:
    sql: SELECT id, text FROM events
"""


def source_of(node: NodeUnderTest | None) -> dict[str, Any]:
    status = node.status() if node else None
    found: dict[str, Any] = status["sources"]["events"]["drop"] if status else {"rows": -1}
    return found


def stored(node: NodeUnderTest) -> list[int]:
    """Return the ids in the journal of an ended node, in order."""
    journal = Journal.open(node.data_dir / "journal", group="test")
    found = [
        row
        for record in journal.read(journal.first)
        if isinstance(record.body, Events)
        for row in pa.ipc.read_record_batch(record.payload, SCHEMA).column("id").to_pylist()
    ]
    journal.close()
    return found


def letters(node: NodeUnderTest) -> Iterator[tuple[str, str]]:
    for path in (node.data_dir / "rejected" / "events" / "drop").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            letter = json.loads(line)
            yield letter["place"], letter["raw"]


def protected(pair: Pair) -> NodeUnderTest:
    """Return the active, once the other is in sync."""
    wait_until(pair.is_protected, within=PATIENCE, every=0.1)
    active = pair.active()
    return active if active is not None else protected(pair)


def test_rows_of_files_are_stored_once_and_in_order_over_many_failovers(
    node_database: str, tmp_path: Path
) -> None:
    files = Files(tmp_path / "in")
    pair = Pair(tmp_path, application(files.directory), node_database, NodeWithoutSpark, **ROOM)
    with running_pair(pair):
        for _ in range(KILLS):
            active = protected(pair)
            before = source_of(active)["rows"]
            for _ in range(3):
                files.drop()
            wait_until(lambda a=active, b=before: source_of(a)["rows"] > b, within=PATIENCE)
            active.kill_everything()
            other = pair.other(active)
            wait_until(lambda o=other: pair.active() is o, within=PATIENCE, every=0.1)
            active.start()
        protected(pair)
        bad = files.rows // BAD_EVERY
        wait_until(lambda: source_of(pair.active())["rows"] == len(files.good), within=PATIENCE)
        for node in pair.nodes.values():
            wait_until(lambda n=node: source_of(n)["rejected"] == bad, within=PATIENCE)
            assert source_of(node)["rows"] == len(files.good)
        assert same_journal(pair)
        wait_until(lambda: source_of(pair.active())["state"] == "idle", within=PATIENCE)
    found = [stored(node) for node in pair.nodes.values()]
    assert found == [files.good, files.good]
    told = {letter for node in pair.nodes.values() for letter in letters(node)}
    assert len(told) == bad
    assert all(f'"no {n}"' in raw for n, raw in zip(_bad(files), _in_order(told), strict=True))


def _bad(files: Files) -> list[int]:
    return [n for n in range(files.rows) if n % BAD_EVERY == BAD_EVERY - 1]


def _in_order(letters: set[tuple[str, str]]) -> list[str]:
    def place(letter: tuple[str, str]) -> tuple[str, int]:
        file, _, line = letter[0].partition(":")
        return file, int(line)

    return [raw for _, raw in sorted(letters, key=place)]
