"""The query process under the supervisor, with small programs in its place."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ha_engine.supervisor.supervised_query import SupervisedQuery
from ha_engine.supervisor.supervisor import Settings, Supervisor
from ha_engine.system.process_group import members
from ha_engine.system.procfs import read_stat
from tests.waiting import async_wait_until

BEGIN = """
import json, os, signal, subprocess, sys, time
def report(**line):
    os.write(int(os.environ["HA_ENGINE_REPORT_FD"]), json.dumps(line).encode() + b"\\n")
"""
WAITS = BEGIN + "report(step='starting Java'); report(step='ready'); signal.pause()"
LOG = {"level": "info", "format": "json"}
CHILD = """
while True:
    sum(range(10**5))
"""
STARTS_A_CHILD_FOR_EVER = f"""{BEGIN}
report(step='starting Java')
java = subprocess.Popen([sys.executable, "-c", {CHILD!r}, "java"])
java.wait()
"""


class Node:
    """The messages to the node process, and the query process that its supervisor keeps."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.home = directory, str(directory / "data")
        self.told: list[dict[str, Any]] = []
        self.query: SupervisedQuery | None = None

    async def start(self, program: str, *, start_timeout: float = 60.0) -> SupervisedQuery:
        path = self.directory / "program.py"
        path.write_text(program)
        command = (sys.executable, str(path))
        self.query = SupervisedQuery(self.home, self.told.append, command)
        self.query.configure(["--argument"], {}, start_timeout)
        await self.query.start("i")
        return self.query

    def steps(self) -> list[str]:
        return [told["step"]["step"] for told in self.told if "step" in told]

    def gone(self) -> list[dict[str, Any]]:
        return [told["gone"] for told in self.told if "gone" in told]

    def session(self) -> list[int]:
        return members(self.home, None)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    if node.query is not None:
        await node.query.end("the test is over")


async def test_supervisor_forwards_steps_and_does_not_end_a_ready_process(node: Node) -> None:
    query = await node.start(WAITS, start_timeout=0.2)
    await async_wait_until(lambda: node.steps() == ["starting Java", "ready"])
    assert query.alive["incarnation"] == "i"
    # The process is idle from now on, several times longer than a start may be idle.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(async_wait_until(lambda: bool(node.gone()), within=60), 1.0)


async def test_new_node_process_gets_the_current_step_and_its_age(node: Node) -> None:
    query = await node.start(BEGIN + "report(step='starting Java'); time.sleep(600)")
    await async_wait_until(lambda: node.steps() == ["starting Java"])
    first = node.told[-1]["step"]["seconds"]
    await async_wait_until(lambda: _repeated_step(node, query)["seconds"] >= first + 0.2)
    assert set(node.steps()) == {"starting Java"}
    await query.end("the test is over")
    told = len(node.told)
    query.send_step()
    assert len(node.told) == told


def _repeated_step(node: Node, query: SupervisedQuery) -> dict[str, Any]:
    query.send_step()
    step: dict[str, Any] = node.told[-1]["step"]
    return step


async def test_last_report_of_the_process_is_the_reason_of_its_end(node: Node) -> None:
    await node.start(BEGIN + "report(end='there is no java', by_host=False); sys.exit(2)")
    await async_wait_until(lambda: bool(node.gone()))
    assert node.gone() == [{"incarnation": "i", "reason": "there is no java", "by_host": False}]


async def test_last_report_may_attribute_the_end_to_the_host(node: Node) -> None:
    await node.start(BEGIN + "report(end='Java was killed', by_host=True); sys.exit(1)")
    await async_wait_until(lambda: bool(node.gone()))
    assert node.gone() == [{"incarnation": "i", "reason": "Java was killed", "by_host": True}]


@pytest.mark.parametrize(
    ("number", "by_host"),
    [(signal.SIGKILL, True), (signal.SIGSEGV, False), (signal.SIGABRT, False)],
)
async def test_signal_from_outside_is_attributed_to_the_host(
    node: Node, number: signal.Signals, by_host: bool
) -> None:
    query = await node.start(WAITS)
    await async_wait_until(lambda: "ready" in node.steps())
    os.kill(query.alive["pid"], number)
    await async_wait_until(lambda: bool(node.gone()))
    (gone,) = node.gone()
    assert gone == {"incarnation": "i", "reason": f"killed by {number.name}", "by_host": by_host}


async def test_signal_of_the_supervisor_is_not_attributed_to_the_host(node: Node) -> None:
    deaf = BEGIN + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS
    query = await node.start(deaf)
    await async_wait_until(lambda: "ready" in node.steps())
    await query.end("another one is wanted")
    (gone,) = node.gone()
    assert gone == {"incarnation": "i", "reason": "killed by SIGKILL", "by_host": False}


async def test_end_is_reported_once_the_whole_session_is_empty(node: Node) -> None:
    """RULES.md#r20: the supervisor first kills all processes that the process left, even in another
    session."""
    leaves_one = f"""{BEGIN}
subprocess.Popen([sys.executable, "-c", {CHILD!r}], start_new_session=True)
report(step="left")
sys.exit(7)
"""
    await node.start(leaves_one)
    await async_wait_until(lambda: bool(node.gone()))
    assert node.session() == []
    assert node.gone()[0]["reason"] == "exit code 7"


async def test_start_with_a_hanging_java_is_reported_ended_and_retried(node: Node) -> None:
    query = await node.start(STARTS_A_CHILD_FOR_EVER, start_timeout=1.0)
    await async_wait_until(lambda: len(node.session()) == 2)
    # The process works for much longer than the patience, and the supervisor keeps it.
    java = max(node.session())
    await async_wait_until(lambda: read_stat(java).cpu_ticks > 100, within=120)
    assert not node.gone()
    os.kill(java, signal.SIGSTOP)
    await async_wait_until(lambda: bool(node.gone()), within=60)
    (gone,) = node.gone()
    assert gone["by_host"]
    assert gone["reason"] == (
        "no progress for 1 s while starting Java: no CPU used, nothing read; "
        "retrying with a limit of 2 s"
    )
    assert node.session() == []
    await query.start("j")
    await async_wait_until(lambda: node.steps() == ["starting Java"] * 2)
    assert query.alive["incarnation"] == "j"


async def test_only_the_query_process_inherits_the_pipe(node: Node) -> None:
    looks = f"""{BEGIN}
found = subprocess.run(
    [sys.executable, "-c", "import os; print(os.listdir('/proc/self/fd'))"],
    capture_output=True, text=True, check=True,
)
report(step=found.stdout)
report(step=os.environ["HA_ENGINE_REPORT_FD"])
signal.pause()
"""
    await node.start(looks)
    await async_wait_until(lambda: len(node.steps()) == 2)
    descriptors, own = node.steps()
    assert f"'{own}'" not in descriptors


async def test_supervisor_of_a_backup_starts_no_query_process_by_itself(tmp_path: Path) -> None:
    """RULES.md#r37: the node process asks for it when the backup is needed."""
    (tmp_path / "data").mkdir()
    settings = Settings("node-c", str(tmp_path / "data"), [], {}, False, 60.0, LOG, None)
    query = await Supervisor([], {})._take(settings)
    assert query.alive == {"incarnation": "", "pid": 0}
