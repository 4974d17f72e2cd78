"""The command line for a user: exit codes, one sentence, clean streams."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "from ha_engine.cli import main; main()"]


def ha_engine(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **environ},
        timeout=30,
        check=False,
    )


def test_help_and_version_import_no_heavy_module() -> None:
    assert "config" in ha_engine("--help").stdout
    assert ha_engine("--version").stdout.startswith("ha-engine ")
    heavy = "{'pyspark', 'pyarrow', 'pandas', 'sqlalchemy', 'grpc', 'starlette', 'pydantic'}"
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys, ha_engine.cli; print(sorted({heavy} & sys.modules.keys()))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == "[]"


def test_a_config_error_is_one_sentence_and_exit_code_2() -> None:
    ended = ha_engine("config", "check", "--config", "/nowhere.yaml")
    assert ended.returncode == 2
    assert ended.stderr == (
        "ha-engine: config /nowhere.yaml does not exist; name a YAML file or a directory of them\n"
    )
    assert ended.stdout == ""


def test_debug_shows_the_traceback_and_keeps_the_exit_code() -> None:
    ended = ha_engine("--debug", "config", "check", "--config", "/nowhere.yaml")
    assert ended.returncode == 2
    assert "Traceback" in ended.stderr


@pytest.mark.parametrize("arguments", [["nonsense"], ["config", "shwo"], ["config", "check", "-x"]])
def test_a_usage_error_is_exit_code_2(arguments: list[str]) -> None:
    ended = ha_engine(*arguments)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


def test_config_check_prints_all_problems(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("lease: {tll: 6s}\ngruop: x\n")
    ended = ha_engine("config", "check", HA_ENGINE_CONFIG=str(file))
    assert ended.returncode == 2
    assert "lease.tll" in ended.stderr
    assert "gruop" in ended.stderr


def test_config_show_prints_the_origin_of_each_value_and_no_secret() -> None:
    url = "postgresql://engine:hunter2@db/f"
    text = ha_engine("config", "show", HA_ENGINE_LEASE_TTL="6s", HA_ENGINE_DATABASE_URL=url)
    assert ["lease.ttl", "6s", "HA_ENGINE_LEASE_TTL"] in [
        line.split() for line in text.stdout.splitlines()
    ]
    shown = json.loads(ha_engine("config", "show", "--json", HA_ENGINE_DATABASE_URL=url).stdout)
    assert shown["database.url"] == {"value": "**redacted**", "from": "HA_ENGINE_DATABASE_URL"}
    assert shown["lease.ttl"] == {"value": "5s", "from": "default"}
    assert "hunter2" not in text.stdout


def test_config_schema_is_json_schema() -> None:
    schema = json.loads(ha_engine("config", "schema").stdout)
    assert schema["properties"]["lease"]["$ref"] == "#/$defs/LeaseConfig"


def test_closed_pipe_causes_no_traceback() -> None:
    with subprocess.Popen(
        [*COMMAND, "config", "schema"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin"},
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""


def test_watch_of_an_unreachable_node_reports_it_at_each_interval() -> None:
    with subprocess.Popen(
        [*COMMAND, "status", "-w", "0.1", "--url", "http://127.0.0.1:1"],
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    ) as running:
        assert running.stderr is not None
        lines = [running.stderr.readline() for _ in range(2)]
        running.terminate()
    assert all(line.startswith("ha-engine: no node answers at") for line in lines)
