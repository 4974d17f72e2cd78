"""``ha-engine journal`` shows and verifies a journal, and changes nothing."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from ha_engine.cli.journal import app
from ha_engine.errors import JournalDamaged
from ha_engine.types import Events, Position, Record
from tests.journal.samples import flip, mark, opened, some_records, written_journal

APPLICATION = """
name: copies
streams:
  flights:
    schema: {id: int not null, raw: binary, at: timestamp}
  others:
    schema: {id: int}
queries:
  copies:
    sql: SELECT id FROM flights
    sinks: [{name: out, type: stdout}]
"""
FLIGHTS = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("raw", pa.binary()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    written_journal(tmp_path / "journal", some_records(20), segment_size=700)
    return tmp_path


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_inspect_lists_the_segments_and_the_newest_records(data_dir: Path) -> None:
    shown = json.loads(run("inspect", data_dir, "--records", "2", "--json").stdout)
    assert shown["records"] == 20
    assert shown["segments"][0]["first"] == 1
    assert len(shown["segments"]) > 3
    assert [one["sequence"] for one in shown["shown"]] == [19, 20]
    assert shown["shown"][1]["body"]["stream"] == "flights"


def test_inspect_shows_the_oldest_records_when_asked(data_dir: Path) -> None:
    shown = json.loads(
        run("inspect", data_dir / "journal", "--records", "3", "--oldest", "--json").stdout
    )
    assert [one["sequence"] for one in shown["shown"]] == [1, 2, 3]


def test_inspect_prints_a_table_for_people(data_dir: Path) -> None:
    shown = run("inspect", data_dir, "--records", "1")
    assert shown.exit_code == 0
    assert f"{1:020d}.journal" in shown.stdout
    assert "group test" in shown.stdout


def test_verify_prints_the_number_of_records_read(data_dir: Path) -> None:
    verified = run("verify", data_dir)
    assert verified.exit_code == 0
    assert "OK: 20 records" in verified.stdout


def test_verify_names_file_and_offset_of_damage(data_dir: Path) -> None:
    segments = sorted((data_dir / "journal").glob("*.journal"))
    flip(segments[1], 300)
    verified = run("verify", data_dir)
    assert verified.exit_code == 1
    assert isinstance(verified.exception, JournalDamaged)
    assert verified.exception.path == str(segments[1])
    assert f"at byte {verified.exception.offset}" in str(verified.exception)


def test_inspect_shows_the_records_before_the_damage(data_dir: Path) -> None:
    segments = sorted((data_dir / "journal").glob("*.journal"))
    flip(segments[1], 45)
    inspected = run("inspect", data_dir, "--json")
    assert inspected.exit_code == 1
    shown = json.loads(inspected.stdout)
    assert len(shown["segments"]) == 1
    assert (shown["damage"]["path"], shown["damage"]["offset"]) == (str(segments[1]), 40)


def test_verify_reports_a_torn_tail_and_leaves_it_unchanged(data_dir: Path) -> None:
    last = sorted((data_dir / "journal").glob("*.journal"))[-1]
    last.write_bytes(last.read_bytes()[:-3])
    before = contents(data_dir)
    for command in ("inspect", "verify"):
        told = run(command, data_dir)
        assert told.exit_code == 0
        assert "torn tail" in told.stdout
    assert contents(data_dir) == before


def test_a_directory_without_a_journal_is_a_usage_error(tmp_path: Path) -> None:
    assert run("inspect", tmp_path).exit_code == 2
    assert run("verify", tmp_path / "nowhere").exit_code == 2


@pytest.fixture
def given_up(tmp_path: Path) -> Path:
    """Return the file in which a forced failover has set the records from 2 on aside."""

    def events(sequence: int, stream: str) -> Record:
        rows = {"id": [sequence], "raw": [b"\xff"], "at": [dt.datetime(2013, 1, 1, tzinfo=dt.UTC)]}
        batch = pa.RecordBatch.from_pydict(rows, FLIGHTS)
        body = Events(stream, 1, 0, ())
        return Record(Position(1, sequence), 0, body, batch.serialize().to_pybytes())

    records = [events(1, "flights"), events(2, "others"), mark(3)]
    written_journal(tmp_path / "journal", [*records, events(4, "flights"), events(5, "flights")])
    journal = opened(tmp_path / "journal")
    path = journal.give_up_after(1)
    journal.close()
    (tmp_path / "application.yaml").write_text(APPLICATION)
    return path


def test_events_that_were_given_up_are_exported_without_a_change(
    tmp_path: Path, given_up: Path
) -> None:
    words = ("export", given_up, "flights", "--application", tmp_path / "application.yaml")
    lines = [json.loads(line) for line in run(*words).stdout.splitlines()]
    assert [line["id"] for line in lines] == [4, 5]
    assert lines[0]["at"] == "2013-01-01T00:00:00+00:00"
    told = run(*words, "--parquet", tmp_path / "lost.parquet").stdout
    assert told == f"2 events written to {tmp_path / 'lost.parquet'}\n"
    table = pq.read_table(tmp_path / "lost.parquet")
    assert table.column("raw").to_pylist() == [b"\xff", b"\xff"]
    assert table.schema.equals(FLIGHTS)


def test_export_of_a_journal_ends_at_damage_with_the_place(tmp_path: Path, given_up: Path) -> None:
    words = ("export", tmp_path, "flights", "--application", tmp_path / "application.yaml")
    assert [json.loads(line)["id"] for line in run(*words).stdout.splitlines()] == [1]
    flip(given_up, given_up.stat().st_size - 1)
    damaged = run("export", given_up, "flights", *words[3:])
    assert [json.loads(line)["id"] for line in damaged.stdout.splitlines()] == [4]
    assert isinstance(damaged.exception, JournalDamaged)


def test_export_names_the_streams_of_the_application(tmp_path: Path, given_up: Path) -> None:
    refused = run("export", given_up, "trains", "-a", tmp_path / "application.yaml")
    assert refused.exit_code == 2
    assert "has flights, others, but no trains" in " ".join(refused.output.split())
