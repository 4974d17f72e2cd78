"""``ha-engine journal`` shows and verifies a journal, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ha_engine.cli.journal import app
from ha_engine.errors import JournalDamaged
from tests.journal.samples import flip, some_records, written_journal


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
