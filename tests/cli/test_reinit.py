"""``ha-engine reinit`` on real directories and a real lease row."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ha_engine.cli.root import program
from ha_engine.core import HighWater
from ha_engine.errors import ConfigError, DataDirectoryLocked, EngineError, OnlyCopy
from ha_engine.journal import Journal
from ha_engine.journal.identity import FILE_NAME
from ha_engine.node.data_dir import DataDirectory
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.snapshot.checkpoint_storage import CheckpointDirectories
from ha_engine.snapshot.restore import Places, finish
from ha_engine.system.file_lock import lock_directory
from ha_engine.types import EpochStart, Holder, LeaseRow, Member, Position, Record

OTHER = Member("node-a", "journal-a")
HIGH_WATER = HighWater(3, 17)

Run = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the data directory of node-b: a journal with one record, an outbox, checkpoints."""
    data = DataDirectory(tmp_path / "node-b", "p1")
    data.keep(HIGH_WATER)
    journal = Journal.open(data.journal, group="flights")
    journal.bind_group("group-1")
    journal.append([Record(Position(1, 1), 0, EpochStart("node-a", "p"))])
    journal.sync()
    journal.close()
    data.close()
    for name in ("outbox/delays/1.arrow", "checkpoints/delays/offsets/0", "checkpoints/x"):
        file = data.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 1000)
    return data.path


@pytest.fixture
def member(home: Path) -> Member:
    with closing(Journal.open(home / "journal", group="flights")) as journal:
        return Member("node-b", journal.journal_id)


@pytest.fixture
def config(database_url: str, home: Path) -> Path:
    file = home.parent / "engine.yaml"
    lines = [
        "group: flights",
        f"node: {{id: node-b, data_dir: {home}}}",
        f"database: {{url: '{database_url}'}}",
    ]
    file.write_text("\n".join(lines))
    return file


@pytest.fixture
def reinit(config: Path) -> Run:
    def run(*words: str, answers: str = "") -> Result:
        return CliRunner().invoke(program(), ["reinit", *words, "-c", str(config)], input=answers)

    return run


def listed(*members: Member) -> LeaseRow:
    return LeaseRow("group-1", Holder(members[0].node, "p"), 1, 1, members)


def refusal(result: Result, kind: type[EngineError]) -> str:
    assert isinstance(result.exception, kind), result.output
    return str(result.exception)


def has_data(home: Path) -> bool:
    return all(any((home / name).iterdir()) for name in ("journal", "outbox", "checkpoints"))


def is_empty(home: Path) -> bool:
    return not any(any((home / name).iterdir()) for name in ("journal", "outbox", "checkpoints"))


def test_reinit_deletes_the_data_and_keeps_the_high_water(
    reinit: Run, store: PostgresLeaseStore, home: Path, member: Member
) -> None:
    store.create(listed(OTHER, member))
    result = reinit("node-b", "--yes")
    assert result.exit_code == 0, result.output
    assert is_empty(home)
    for name in ("journal", "outbox", "checkpoints"):
        assert f"deleted the {name}" in result.output
    assert "2.0 kB" in result.output
    assert "At its start the node restores the newest snapshot." in result.output
    data = DataDirectory(home, "p1")
    assert data.high_water() == HIGH_WATER
    with closing(Journal.open(data.journal, group="flights")) as journal:
        assert journal.journal_id != member.journal_id
    data.close()
    # Only the holder writes the row: it removes a member that is silent.
    assert store.read() == listed(OTHER, member)


def test_reinit_asks_first_and_the_answer_no_keeps_the_data(
    reinit: Run, store: PostgresLeaseStore, home: Path
) -> None:
    store.create(listed(OTHER))
    result = reinit("node-b", answers="n\n")
    assert result.exit_code == 1
    assert f"{home}/journal" in result.output
    assert has_data(home)
    assert reinit("node-b", answers="y\n").exit_code == 0
    assert is_empty(home)
    assert "nothing to delete" in reinit("node-b").output


def test_reinit_deletes_a_restored_snapshot_that_is_not_yet_in_place(
    reinit: Run, store: PostgresLeaseStore, home: Path
) -> None:
    waiting = home / ".restored" / "outbox" / "delays"
    waiting.mkdir(parents=True)
    (waiting / "1.arrow").write_bytes(b"x")
    store.create(listed(OTHER))
    assert reinit("node-b", "--yes").exit_code == 0
    assert not waiting.exists()
    finish(Places(home, home / "checkpoints"), CheckpointDirectories(home / "checkpoints"))
    assert is_empty(home)


def test_reinit_refuses_the_name_of_another_node(reinit: Run, home: Path) -> None:
    assert "for node node-b, not for node-a" in refusal(reinit("node-a", "--yes"), ConfigError)
    assert has_data(home)


@pytest.mark.parametrize("lock", ["supervisor.lock", "node.lock"])
def test_reinit_refuses_a_running_node(
    reinit: Run, store: PostgresLeaseStore, home: Path, lock: str
) -> None:
    store.create(listed(OTHER))
    held = lock_directory(home, lock)
    result = reinit("node-b", "--yes", "--force")
    os.close(held)
    assert "node-b still runs" in refusal(result, DataDirectoryLocked)
    assert has_data(home)
    assert reinit("node-b", "--yes").exit_code == 0


def test_reinit_keeps_the_only_copy_unless_forced_and_confirmed(
    reinit: Run, store: PostgresLeaseStore, home: Path, member: Member
) -> None:
    store.create(listed(member))
    assert "the only one in sync" in refusal(reinit("node-b", "--yes"), OnlyCopy)
    assert reinit("node-b", "--force", answers="n\n").exit_code == 1
    assert reinit("node-b", "--force", answers="y\nn\n").exit_code == 1
    assert has_data(home)
    result = reinit("node-b", "--force", answers="y\ny\n")
    assert result.exit_code == 0, result.output
    assert "no node becomes active by itself" in result.output
    assert is_empty(home)


def test_reinit_deletes_a_journal_that_the_lease_row_does_not_list(
    reinit: Run, store: PostgresLeaseStore, home: Path
) -> None:
    store.create(listed(Member("node-b", "the one before")))
    assert reinit("node-b", "--yes").exit_code == 0
    assert is_empty(home)


def tear(identity: Path) -> None:
    identity.write_text("torn")


def make_unreadable(identity: Path) -> None:
    identity.unlink()
    identity.symlink_to(identity)


@pytest.mark.parametrize("damage", [tear, make_unreadable])
def test_reinit_presumes_a_damaged_journal_to_be_the_listed_one(
    reinit: Run, store: PostgresLeaseStore, home: Path, damage: Callable[[Path], None]
) -> None:
    damage(home / "journal" / FILE_NAME)
    alone = listed(Member("node-b", "whichever"))
    store.create(alone)
    assert "the only one in sync" in refusal(reinit("node-b", "--yes"), OnlyCopy)
    store.compare_and_set(alone, replace(alone, in_sync=(*alone.in_sync, OTHER)))
    assert reinit("node-b", "--yes").exit_code == 0
    assert is_empty(home)


def test_next_reinit_deletes_the_rest_of_an_interrupted_one(
    reinit: Run, store: PostgresLeaseStore, home: Path
) -> None:
    (home / "journal" / FILE_NAME).unlink()
    store.create(listed(OTHER))
    assert reinit("node-b", "--yes").exit_code == 0
    assert is_empty(home)


@pytest.mark.parametrize("row", [None, LeaseRow("another group", None, 1, 1, (OTHER,))])
def test_reinit_needs_force_when_the_database_does_not_know_the_group(
    reinit: Run, store: PostgresLeaseStore, home: Path, row: LeaseRow | None
) -> None:
    if row is not None:
        store.create(row)
    assert "correct database.url and group" in refusal(reinit("node-b", "--yes"), OnlyCopy)
    assert has_data(home)
    assert reinit("node-b", "--yes", "--force").exit_code == 0
    assert is_empty(home)


def test_reinit_needs_force_without_the_database(home: Path, config: Path) -> None:
    config.write_text(config.read_text().partition("database:")[0])
    environ = {"HA_ENGINE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
    words = ["reinit", "node-b", "--yes", "-c", str(config)]
    result = CliRunner().invoke(program(), words, env=environ)
    assert "--force deletes it anyway" in refusal(result, OnlyCopy)
    assert has_data(home)
    assert CliRunner().invoke(program(), [*words, "--force"], env=environ).exit_code == 0
    assert is_empty(home)
