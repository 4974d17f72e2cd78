"""The query process names its steps and the reason of its end on the supervisor's pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ha_engine.query.host import MemoryKills
from ha_engine.query.start_report import ENVIRONMENT, StartReport


def lines(descriptor: int) -> list[dict[str, object]]:
    with os.fdopen(descriptor) as pipe:
        return [json.loads(line) for line in pipe]


def test_each_step_and_the_end_are_one_line_each() -> None:
    reading, writing = os.pipe()
    report = StartReport.of({ENVIRONMENT: str(writing)})
    report.step("starting Java")
    report.end("Java was killed", by_host=True)
    os.close(writing)
    assert lines(reading) == [
        {"step": "starting Java"},
        {"end": "Java was killed", "by_host": True},
    ]


def test_query_process_runs_on_without_a_pipe_or_with_a_broken_one() -> None:
    StartReport.of({}).step("starting Java")
    reading, writing = os.pipe()
    os.close(reading)
    StartReport.of({ENVIRONMENT: str(writing)}).step("starting Java")
    os.close(writing)


def test_query_process_that_cannot_start_reports_the_reason() -> None:
    reading, writing = os.pipe()
    code = "from ha_engine.query.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    arguments = [
        *("--socket", "/nowhere", "--incarnation", "one", "--application", "/nowhere.yaml"),
        *("--config-json", "{}"),
    ]
    environment = {**os.environ, ENVIRONMENT: str(writing)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        pass_fds=[writing],
        capture_output=True,
        check=False,
    )
    os.close(writing)
    assert done.returncode == 1
    assert lines(reading) == [{"end": "KeyError: 'query'", "by_host": False}]


def test_out_of_memory_kill_is_reported_once(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 7\noom_kill 4\n")
    kills = MemoryKills(vmstat)
    assert not kills.rose()
    vmstat.write_text("nr_free_pages 7\noom_kill 5\n")
    assert kills.rose()
    assert not kills.rose()


def test_kernel_without_a_kill_counter_reports_no_kill(tmp_path: Path) -> None:
    assert not MemoryKills(tmp_path / "missing").rose()


def test_query_process_logs_in_the_form_of_the_config(tmp_path: Path) -> None:
    config = {
        "query": {"read_parallelism": 1, "nice": 0, "class_archive": False},
        "execution": {"master": "local[1]"},
        "checkpoint_url": None,
        "log": {"node": "node-a", "level": "info", "format": "json"},
        **dict.fromkeys(
            ("checkpoint_dir", "scratch_dir", "outbox_dir", "classes_dir"), str(tmp_path)
        ),
    }
    arguments = [
        *("--socket", "/nowhere", "--incarnation", "one", "--application", "/nowhere.yaml"),
        *("--config-json", json.dumps(config)),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "ha_engine.query.main", *arguments],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    # The launcher of Spark writes a line of its own.
    (entry,) = [json.loads(line) for line in done.stderr.splitlines() if "query process" in line]
    assert (entry["node"], entry["process"]) == ("node-a", "query")
    assert entry["event"] == "query process ends"
