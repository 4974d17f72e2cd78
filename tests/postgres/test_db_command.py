"""The commands ``ha-engine db``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ha_engine.cli.db import app
from ha_engine.errors import ConfigError, DatabaseUnreachable


def _run(*arguments: str) -> str:
    outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0
    return outcome.output


def test_init_reports_its_changes_and_may_be_repeated(database_url: str) -> None:
    assert _run("version", "--url", database_url).strip() == "none"
    assert "created schema ha_engine" in _run("init", "--url", database_url)
    assert "nothing to do" in _run("init", "--url", database_url)
    assert "nothing to do" in _run("upgrade", "--url", database_url)
    assert _run("version", "--url", database_url).strip() == "0004"


def test_two_hosts_may_run_init_at_once(database_url: str) -> None:
    command = [sys.executable, "-c", "from ha_engine.cli.db import app; app()", "init", "--url"]
    hosts = [
        subprocess.Popen([*command, database_url], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [host.communicate(timeout=60)[0] for host in hosts]
    assert sorted("created" in line for line in said) == [False, True]


def test_the_embedded_database_is_started_for_the_command(tmp_path: Path) -> None:
    config = tmp_path / "node.yaml"
    config.write_text("database:\n  url: embedded\n  embedded_dir: pg\n")
    assert "created schema" in _run("init", "--config", str(config))
    assert "nothing to do" in _run("init", "--config", str(config))


def test_unreachable_database_is_reported_in_one_sentence() -> None:
    with pytest.raises(DatabaseUnreachable) as caught:
        _run("init", "--url", "postgresql://someone:s3cret@127.0.0.1:1/nowhere")
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.exit_code == 1


def test_malformed_database_url_is_refused() -> None:
    with pytest.raises(ConfigError):
        _run("init", "--url", "nonsense")
