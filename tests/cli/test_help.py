"""Every command explains itself with a valid example, and prints formats for programs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from ha_engine.cli.root import program

SAYS_ONE_SENTENCE = {"run", "demo", "reinit", "query skip", "query retry", "config check"}
SAYS_ONE_SENTENCE |= {"query rescale", "executor"}
SAYS_ONE_SENTENCE |= {"receive", "observe", "db init", "db upgrade", "snapshot restore"}
IS_JSON = {"config schema", "journal export"}
FORMAT_IS_THE_FILES = {"publish"}
"""Commands whose --format is that of their input; --json prints their summary as data."""


def walked(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the command, and each one below it."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from walked(below, f"{path} {name}".strip())


EVERYTHING = dict(walked(get_command(program())))
"""The program itself, its groups and their commands."""
COMMANDS = {path: found for path, found in EVERYTHING.items() if not hasattr(found, "commands")}


@pytest.mark.parametrize("name", EVERYTHING)
def test_each_help_has_a_valid_example_of_its_command(name: str) -> None:
    shown = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(
        program(), [*name.split(), "-h"]
    )
    assert shown.exit_code == 0
    example = re.search(r"Example: ha-engine (.*)", shown.output)
    assert example is not None
    words = shlex.split(example[1])
    assert words[: len(name.split())] == name.split()
    (leaf,) = [path for path in COMMANDS if words[: len(path.split())] == path.split()]
    COMMANDS[leaf].make_context(leaf, words[len(leaf.split()) :])


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - SAYS_ONE_SENTENCE - IS_JSON))
def test_every_command_with_data_prints_it_for_programs(name: str) -> None:
    options = {option for one in COMMANDS[name].params for option in one.opts}
    assert "--json" in options
    assert {"--format", "-f"} <= options or name in FORMAT_IS_THE_FILES


def test_commands_listed_as_printing_one_sentence_exist() -> None:
    assert COMMANDS.keys() >= SAYS_ONE_SENTENCE | IS_JSON | FORMAT_IS_THE_FILES


def test_json_and_yaml_output_are_equal() -> None:
    def out(*options: str) -> str:
        ended = CliRunner().invoke(program(), ["config", "show", *options])
        assert ended.exit_code == 0
        return ended.stdout

    assert out("--json") == out("-f", "json")
    assert json.loads(out("--json")) == yaml.safe_load(out("-f", "yaml"))
    assert "lease.ttl" in out()


@pytest.mark.parametrize(("typed", "completed"), [("snap", "snapshot"), ("snapshot ve", "verify")])
def test_a_shell_completes_commands(typed: str, completed: str, tmp_path: Path) -> None:
    words = f"ha-engine {typed}"
    environ = {"_HA_ENGINE_COMPLETE": "complete_bash", "COMP_WORDS": words, "HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", "from ha_engine.cli import main; main()"],
        env={**environ, "COMP_CWORD": str(len(words.split()) - 1), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.split() == [completed], ended.stderr
