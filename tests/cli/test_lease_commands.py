"""``ha-engine pause``, ``resume`` and ``history`` on a real database, without a running node."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from ha_engine.cli import main
from ha_engine.cli.root import program
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.postgres.upgrade import upgrade
from ha_engine.types import Holder, LeaseRow, Member

A, B = Member("node-a", "journal-a"), Member("node-b", "journal-b")
HELD = LeaseRow("group-1", Holder("node-a", "process-1"), 1, 1, (A, B))

Said = Callable[..., str]


@pytest.fixture
def config(database_url: str, tmp_path: Path) -> Path:
    file = tmp_path / "engine.yaml"
    file.write_text(f"group: flights\ndatabase: {{url: '{database_url}', schema: mine}}\n")
    return file


@pytest.fixture
def store(database_url: str) -> Iterator[PostgresLeaseStore]:
    engine = open_engine(database_url)
    upgrade(engine, "mine")
    with closing(PostgresLeaseStore(engine, "flights", 5.0, db_timeout=10, schema="mine")) as store:
        yield store


@pytest.fixture
def said(config: Path) -> Said:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(
            program(), [*arguments, "-c", str(config)], catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        return done.output

    return run


def test_pause_and_resume_print_the_new_state(said: Said, store: PostgresLeaseStore) -> None:
    store.create(HELD)
    paused = "automatic failover of group flights is paused; node-a holds the lease, epoch 1\n"
    assert said("pause") == paused
    assert said("pause") == paused
    assert store.read() == replace(HELD, version=2, paused=True)
    on = "automatic failover of group flights is on; node-a holds the lease, epoch 1\n"
    assert said("resume") == on
    assert said("resume") == on
    assert store.read() == replace(HELD, version=3)


def test_history_prints_time_node_and_reason(said: Said, store: PostgresLeaseStore) -> None:
    store.create(HELD)
    store.compare_and_set(HELD, replace(HELD, holder=None), reason="stopped [by hand]")
    released = replace(HELD, holder=None, version=2)
    store.compare_and_set(
        released, replace(HELD, holder=Holder("node-b", "p"), epoch=2), reason="up"
    )
    store.note_outage(2, 1.234)
    lines = [line.split("│") for line in said("history").splitlines() if "│" in line]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert [cell[2:7] for cell in cells if cell[2]] == [
        ["2", "node-b", "none", "up", "1.23 s"],
        ["1", "none", "node-a", "stopped [by", "-"],
        ["1", "node-a", "none", "first row of", "-"],
    ]
    as_json = json.loads(said("history", "-n", "2", "-f", "json"))
    assert as_json == yaml.safe_load(said("history", "-n", "2", "-f", "yaml"))
    assert as_json["group"] == "flights"
    newest, older = as_json["history"]
    assert newest.pop("at").endswith("+00:00")
    assert newest == {
        "epoch": 2,
        "version": 3,
        "node": "node-b",
        "process": "p",
        "previous_node": None,
        "previous_process": None,
        "reason": "up",
        "outage_seconds": 1.234,
    }
    assert (older["node"], older["previous_node"]) == (None, "node-a")


def test_the_history_of_a_new_group_is_empty(said: Said, store: PostgresLeaseStore) -> None:
    assert "no node has held the lease yet" in said("history")
    assert json.loads(said("history", "-f", "json")) == {"group": "flights", "history": []}


def test_pause_prints_data_for_programs(said: Said, store: PostgresLeaseStore) -> None:
    store.create(HELD)
    told = json.loads(said("pause", "--json"))
    assert told == {
        "group": "flights",
        "paused": True,
        "holder": "node-a",
        "epoch": 1,
        "version": 2,
    }
    assert yaml.safe_load(said("resume", "-f", "yaml")) == told | {"paused": False, "version": 3}


# -- errors ----------------------------------------------------------------------------------------


def _failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    printed = capsys.readouterr()
    assert printed.out == ""
    return ended.value.code, printed.err


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_group_that_never_ran_is_reported_in_one_sentence(
    config: Path, store: PostgresLeaseStore, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, words = _failure(capsys, command, "-c", str(config))
    assert code == 1
    assert "no lease row of group flights; start a node of the group first" in words
    assert words.count("\n") == 1


@pytest.mark.parametrize("command", ["pause", "resume", "history"])
def test_error_without_the_schema_names_the_command_that_creates_it(
    config: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, words = _failure(capsys, command, "-c", str(config))
    assert code == 2
    assert "ha-engine db init" in words


@pytest.mark.parametrize("command", ["pause", "resume", "history"])
def test_unreachable_database_ends_a_lease_command_with_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("database: {url: 'postgresql://someone:s3cret@127.0.0.1:1/nowhere'}\n")
    code, words = _failure(capsys, command, "-c", str(file))
    assert code == 1
    assert "cannot be reached" in words
    assert "s3cret" not in words
    assert words.count("\n") == 1


@pytest.mark.parametrize("limit", ["0", "1001", "many"])
def test_invalid_history_limit_is_a_usage_error(
    config: Path, capsys: pytest.CaptureFixture[str], limit: str
) -> None:
    code, words = _failure(capsys, "history", "-n", limit, "-c", str(config))
    assert code == 2
    assert "-n" in words
