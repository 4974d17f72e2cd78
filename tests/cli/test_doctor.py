"""``ha-engine doctor`` as an operator uses it, without a running node."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ha_engine.cli import main
from ha_engine.doctor.plan import planned
from tests.e2e.node_under_test import free_port
from tests.e2e.without_spark import APPLICATION, no_spark

pytestmark = pytest.mark.usefixtures("logging_as_before")

Doctor = Callable[..., tuple[int, str, str]]


@pytest.fixture
def doctor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Doctor:
    """Return exit code, stdout and stderr of the command for these sections of the config."""
    monkeypatch.setenv("JAVA_HOME", str(no_spark(tmp_path)))
    (tmp_path / "application.yaml").write_text(APPLICATION)

    def run(*options: str, **sections: Any) -> tuple[int, str, str]:
        file = tmp_path / "engine.yaml"
        http = {"listen": f"127.0.0.1:{free_port()}"}
        node = {"data_dir": "data"}
        tree = {"application": "application.yaml", "node": node, "http": http, **sections}
        file.write_text(yaml.safe_dump(tree))
        with pytest.raises(SystemExit) as ended:
            main(["doctor", "-c", str(file), *options])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return run


def findings(said: str) -> dict[str, dict[str, str]]:
    return {one["check"]: one for one in json.loads(said)}


def test_nothing_fails_on_a_prepared_host_and_nothing_is_created(
    doctor: Doctor, tmp_path: Path, engine: object, database_url: str
) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    code, said, problem = doctor("--json", database={"url": database_url})
    found = findings(said)
    assert (code, problem) == (0, "")
    assert {one["state"] for one in found.values()} <= {"ok", "warning", "skipped"}
    for one in found.values():
        assert set(one) == {"check", "state", "text", "remedy"}
        assert bool(one["remedy"]) is (one["state"] == "warning"), one
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "engine.yaml"])


def test_each_check_is_one_line_with_the_remedy_below(doctor: Doctor, tmp_path: Path) -> None:
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/nowhere"
    code, said, problem = doctor(database={"url": url})
    assert (code, problem) == (1, "")
    lines = [line.split(maxsplit=2) for line in said.splitlines()]
    states = {line[1]: line[0] for line in lines if len(line) == 3}
    assert states["database"] == "failed"
    assert states["database/schema"] == "skipped"
    assert states["disk/data_dir"] == "ok"
    at = said.splitlines().index(next(one for one in said.splitlines() if " database " in one))
    assert said.splitlines()[at + 1].strip() == "check that it runs, and that its URL is right"
    assert said.splitlines()[-1].endswith(" skipped")
    assert "1 failed" in said.splitlines()[-1]


def test_a_wrong_config_fails_and_skips_what_needs_it(doctor: Doctor) -> None:
    code, said, problem = doctor("--json", lease={"tll": "5s"})
    found = findings(said)
    assert (code, problem) == (1, "")
    assert found["config"]["state"] == "failed"
    assert "lease.tll: is not a known key" in found["config"]["text"]
    assert found["java"]["state"] == "ok"
    assert found["disk/data_dir"]["text"] == "needs the check config, which did not succeed"
    needed = {name for name, one in found.items() if one["state"] != "skipped"}
    assert needed == {"python", "java", "spark", "config", "clock/synchronised"}


def test_a_node_on_a_cluster_needs_the_port_that_executors_reach(
    doctor: Doctor, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        execution = {"master": "spark://m1:7077", "checkpoint": str(tmp_path), "listen": listen}
        _, said, _ = doctor("--json", execution={**execution, "secret": "s" * 16})
    found = findings(said)
    assert "ha-engine cluster check" in found["cluster"]["text"]
    assert found["port/execution.listen"]["state"] == "failed"


def test_an_old_java_fails(doctor: Doctor, tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.write_text(java.read_text().replace("17.0.1", "11.0.1"))
    code, said, _ = doctor("--json")
    assert code == 1
    assert "is version 11: Spark needs Java 17 or newer" in findings(said)["java"]["text"]


def test_the_progress_on_a_terminal_keeps_standard_output_apart(tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "ha_engine", "doctor"]
    environ = {**os.environ, "TERM": "xterm"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=end, check=False
    )
    os.close(end)
    with open(terminal, "rb", buffering=0) as shown:
        progress = shown.read(1 << 16)
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("ok       python ")
    assert lines[-1].endswith(" skipped")
    assert b"ha-engine 0.1.0" not in progress
    assert b"python" in progress


@pytest.mark.parametrize(
    "options", [["-c", "absent.yaml"], ["--no-such-option"], ["-f", "xml"], ["surplus"]]
)
def test_a_wrong_use_of_the_command_exits_with_2(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *options])
    assert (ended.value.code, capsys.readouterr().out) == (2, "")


def test_every_prerequisite_is_the_name_of_an_earlier_check(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    peers = {"listen": "127.0.0.1:1", "peers": {"node-b": "127.0.0.1:2"}, "insecure": True}
    file.write_text(yaml.safe_dump({"event_sync": peers}))
    earlier: set[str] = set()
    for check in planned(file, {}):
        assert earlier >= set(check.needs), check.name
        assert check.name not in earlier
        earlier.add(check.name)
    assert "peer/node-b/reaches_us" in earlier
