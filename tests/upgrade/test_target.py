"""``ha-engine upgrade check --to``: each kind of target, and the exit codes."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ha_engine.cli.root import program
from ha_engine.errors import StatementMissing
from ha_engine.upgrade.statement import parse_statement, statement_here
from ha_engine.upgrade.target import statement_of
from tests.e2e.node_under_test import free_port
from tests.releases import WIRE, Change, release, version


def check(target: Path, *options: str) -> tuple[int, dict[str, str], str]:
    """The exit code, the verdict of each line, and the verdict of the whole."""
    words = ["upgrade", "check", "--to", str(target), "--json", *options]
    done = CliRunner().invoke(program("upgrade"), words, catch_exceptions=False)
    tree = json.loads(done.stdout)
    return done.exit_code, {x["subject"]: x["verdict"] for x in tree["lines"]}, tree["verdict"]


def wheel_of(place: Path) -> Path:
    """Pack a release as a wheel has it."""
    path = place / "ha_engine-9.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in (place / "ha_engine").rglob("*"):
            if file.suffix in (".py", ".json") and file.is_file():
                wheel.write(file, file.relative_to(place))
    return path


@pytest.mark.parametrize(
    ("changes", "code", "subject"),
    [
        ([version("9.0.0")], 0, ""),
        ([(*WIRE, "PROTOCOL_MIN, PROTOCOL_MAX = 2, 2")], 3, "wire"),
        ([("journal/record.py", "\nVERSION = 1\n", "\nVERSION = 2\n")], 4, "journal record"),
    ],
)
def test_the_program_of_another_release_is_asked(
    tmp_path: Path, changes: list[Change], code: int, subject: str
) -> None:
    place = release(tmp_path / "release", *changes)
    found, lines, _ = check(place)
    assert found == code
    assert not subject or lines[subject] != "fits"


def test_a_wheel_is_asked_except_for_its_libraries(tmp_path: Path) -> None:
    place = release(tmp_path / "release", version("9.0.0"))
    code, lines, verdict = check(wheel_of(place))
    assert (code, verdict) == (5, "unknown")
    assert {name for name, found in lines.items() if found != "fits"} == {"batches", "checkpoints"}


def test_a_saved_statement_is_read(tmp_path: Path) -> None:
    saved = tmp_path / "statement.json"
    here = statement_here().to_json()
    saved.write_text(json.dumps({**here, "engine": "9.0.0", "of a later form": 1}))
    assert statement_of(str(saved)).engine == "9.0.0"
    assert check(saved)[0] == 0


def test_a_config_names_the_database_and_the_peers_that_are_asked(tmp_path: Path) -> None:
    saved, config = tmp_path / "statement.json", tmp_path / "engine.yaml"
    here = statement_here().to_json()
    saved.write_text(json.dumps({**here, "schema_max": "9999"}))
    nowhere = f"127.0.0.1:{free_port()}"
    config.write_text(
        f"database: {{url: 'postgresql://nobody@{nowhere}/nowhere'}}\n"
        f"event_sync: {{peers: {{node-b: '{nowhere}'}}, insecure: true}}\n"
    )
    code, lines, verdict = check(saved, "--config", str(config))
    assert (code, verdict) == (5, "unknown")
    assert (lines["schema"], lines["node-b"], lines["wire"]) == ("unknown", "unknown", "fits")


def not_there(place: Path) -> str:
    return "0.2.0"


def no_statement(place: Path) -> str:
    (place / "other.json").write_text('{"engine": "9.0.0"}')
    return str(place / "other.json")


def no_wheel(place: Path) -> str:
    (place / "other.whl").write_text("not a zip file")
    return str(place / "other.whl")


def too_old(place: Path) -> str:
    program = place / "ha-engine"
    program.write_text("#!/bin/sh\necho \"No such command 'version'.\" >&2\nexit 2\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (not_there, "install that version beside this one"),
        (no_statement, "protocol_min: Field required"),
        (no_wheel, "is no wheel"),
        (too_old, "says: No such command 'version'"),
    ],
)
def test_a_target_without_a_statement_is_an_error_that_says_what_to_give(
    tmp_path: Path, make: Callable[[Path], str], reason: str
) -> None:
    with pytest.raises(StatementMissing, match=reason):
        statement_of(make(tmp_path))


def test_a_statement_of_a_later_form_is_refused() -> None:
    later = json.dumps({**statement_here().to_json(), "statement": 2})
    with pytest.raises(StatementMissing, match="statement"):
        parse_statement(later, "later.json")


def test_version_prints_a_line_for_each_part() -> None:
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(program("version"), ["version"])
    assert "sync protocol" in shown.stdout
