"""The query process as a process: it is killed, orphaned, left alone and stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from ha_engine.outbox import Admission
from ha_engine.query.application import QuerySpec, StreamApplication, load_application
from ha_engine.query.checkpoints import CLEAN_FILE, STAMP_FILE
from ha_engine.query.link import Address, NodeLink, Superseded, open_channel
from ha_engine.query.process import Attendance
from ha_engine.query.runner import QueryRunner
from ha_engine.system.fsync import boot_id
from ha_engine.v1 import local_pb2 as pb
from tests.query.conftest import APPLICATION
from tests.query.local_node import LocalNode, run_command
from tests.waiting import wait_ended, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

START = datetime(2013, 1, 1, tzinfo=UTC)
QUERIES = """
  sums:
    sql: >
      SELECT window.start AS hour, key, count(*) AS n, sum(ratio) AS total FROM events
      GROUP BY window(at, '1 hour'), key
    output_mode: update
"""
BATCHES = 8


def rows(batch: int) -> list[dict[str, Any]]:
    moment = START + timedelta(minutes=batch)
    return [{"at": moment, "key": str(n % 7), "value": n, "ratio": n / 3} for n in range(200)]


@contextmanager
def fresh_node() -> Iterator[LocalNode]:
    directory = Path(tempfile.mkdtemp(prefix="ha-q-"))
    local = LocalNode(directory)
    (directory / "application.yaml").write_text(APPLICATION + QUERIES)
    local.start()
    try:
        yield local
    finally:
        local.stop()
        shutil.rmtree(directory, ignore_errors=True)


NICE = 12


def command_line(node: LocalNode, jars: Sequence[Path] = ()) -> list[str]:
    """The command of a query process, which has ``jars`` besides the engine's."""
    config = {
        "execution": {"master": "local[1]"},
        "query": {
            "heap": 768 << 20,
            "read_parallelism": 3,
            "nice": NICE,
            "class_archive": False,
            "tick": 1,
            "spark": {"spark.jars": ",".join(map(str, jars))} if jars else {},
        },
        "log": {"node": "node-a", "level": "info", "format": "json"},
        "checkpoint_dir": str(node.checkpoints),
        "checkpoint_url": None,
        "scratch_dir": str(node.checkpoints / ".scratch"),
        "outbox_dir": str(node.outbox_directory),
        "classes_dir": str(node.directory / "classes"),
    }
    arguments = {
        "--socket": str(node.socket),
        "--incarnation": node.incarnation,
        "--application": str(node.directory / "application.yaml"),
        "--config-json": json.dumps(config),
    }
    flat = [word for pair in arguments.items() for word in pair]
    return [sys.executable, "-m", "ha_engine.query.main", *flat]


def started(node: LocalNode) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command_line(node), start_new_session=True)


def session_of(leader: int) -> list[psutil.Process]:
    """Return every living process of its session, workers that changed their group included
    (RULES.md#r20)."""
    found = []
    for one in psutil.process_iter():
        try:
            inside = os.getsid(one.pid) == leader
            if inside and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def jvm_of(leader: int) -> psutil.Process:
    return next(one for one in session_of(leader) if one.name() == "java")


def niceness_of(leader: int) -> set[int]:
    """Return the niceness of every thread of its session; on Linux each thread has its own."""
    found = set()
    for one in session_of(leader):
        with suppress(psutil.NoSuchProcess):
            for thread in one.threads():
                with suppress(ProcessLookupError):
                    found.add(os.getpriority(os.PRIO_PROCESS, thread.id))
    return found


def scratch(node: LocalNode) -> list[Path]:
    """Return the files that a killed Spark leaves on the disk until the next one starts."""
    found = (node.checkpoints / ".scratch").iterdir()
    return [path for path in found if path.name != "home"]


def sums(node: LocalNode) -> QuerySpec:
    return load_application(node.directory / "application.yaml").queries["sums"]


def put_batches(node: LocalNode, first: int, last: int) -> None:
    events = load_application(node.directory / "application.yaml").streams["events"]
    for batch in range(first, last + 1):
        node.append(events, rows(batch))
        node.mark("sums")


def kill_jvm(process: subprocess.Popen[bytes]) -> None:
    jvm_of(process.pid).kill()
    assert wait_ended(process) == 1


def kill_driver(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


KILLS_A_PROCESS = "test_failovers kills the query process of a pair"


@pytest.mark.nightly(KILLS_A_PROCESS)
@pytest.mark.parametrize("kill", [kill_jvm, kill_driver])
def test_next_process_repeats_equal_batches_after_a_killed_jvm_or_driver(
    runner: Callable[[StreamApplication], QueryRunner],
    node: LocalNode,
    kill: Callable[[subprocess.Popen[bytes]], None],
) -> None:
    (node.directory / "application.yaml").write_text(APPLICATION + QUERIES)
    put_batches(node, 1, BATCHES)
    runner(load_application(node.directory / "application.yaml")).run(run_command(sums(node)))
    node.admitted("sums", BATCHES)
    with started_after(kill) as (other, process):
        other.admitted("sums", BATCHES)
        assert other.outputs("sums") == node.outputs("sums")
        assert all(verdict is not Admission.MISMATCH for _, _, verdict in other.seen.verdicts)
        process.send_signal(signal.SIGTERM)
        assert wait_ended(process) == 0
        wait_until(lambda: not session_of(process.pid), within=30)


@contextmanager
def started_after(
    kill: Callable[[subprocess.Popen[bytes]], None],
) -> Iterator[tuple[LocalNode, subprocess.Popen[bytes]]]:
    """Start the process that follows one killed between two batches."""
    with fresh_node() as node:
        node.command(pb.QueryCommand(run=run_command(sums(node))))
        put_batches(node, 1, 3)
        process = started(node)
        node.admitted("sums", 2)
        kill(process)
        wait_until(lambda: not session_of(process.pid), within=30)
        assert not node.seen.failed
        node.incarnation = "two"
        put_batches(node, 4, BATCHES)
        # A JVM that lost its driver may end cleanly, and delete its own files.
        (node.checkpoints / ".scratch" / "left").touch()
        left = set(scratch(node))
        process = started(node)
        node.admitted("sums", 5)
        assert not left & set(scratch(node))
        yield node, process


def test_the_process_outlives_its_node_but_not_its_parent() -> None:
    with fresh_node() as node:
        node.command(pb.QueryCommand(run=run_command(sums(node))))
        put_batches(node, 1, 1)
        with started_by_a_parent(node) as (parent, leader):
            node.admitted("sums", 1)
            jvm = jvm_of(leader)
            stepped_back = {min(19, psutil.Process().nice() + NICE)}
            wait_until(lambda: niceness_of(leader) == stepped_back)
            node.stop()
            put_batches(node, 2, 2)
            node.start()
            node.admitted("sums", 2)
            wait_until(lambda: len(node.seen.attended) == 2)
            assert jvm.is_running()
            parent.kill()
            parent.wait()
            wait_until(lambda: not session_of(leader), within=30)


@contextmanager
def started_by_a_parent(node: LocalNode) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Return the parent, and the pid of the query process, which leads its own session."""
    code = (
        "import subprocess as s\n"
        f"child = s.Popen({command_line(node)!r}, start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            yield parent, int(parent.stdout.readline())
        finally:
            parent.kill()


def reboot(node: LocalNode) -> None:
    """Make all present files look like those of an earlier boot to the next process."""
    for name in (STAMP_FILE, CLEAN_FILE):
        for file in node.checkpoints.glob(f"*/{name}"):
            file.write_text(file.read_text().replace(boot_id(), "an-earlier-boot"))


def attempts(node: LocalNode) -> list[tuple[int, Admission]]:
    return [(number, verdict) for _, number, verdict in node.seen.verdicts]


@pytest.mark.nightly("test_checkpoints has it without a process")
def test_query_continues_after_a_reboot_and_replays_after_a_loss_of_power() -> None:
    with fresh_node() as node:
        node.command(pb.QueryCommand(run=run_command(sums(node))))
        put_batches(node, 1, 2)
        process = started(node)
        node.admitted("sums", 2)
        node.stop()  # no caller that waits for the node gets an answer
        process.send_signal(signal.SIGTERM)
        assert wait_ended(process) == 0
        assert (node.checkpoints / "sums" / CLEAN_FILE).read_text() == boot_id()
        reboot(node)
        node.start()
        put_batches(node, 3, 4)
        process = started(node)
        node.admitted("sums", 4)
        assert (1, Admission.DONE) not in attempts(node)
        process.kill()
        wait_until(lambda: not session_of(process.pid), within=30)
        first = node.outputs("sums")
        reboot(node)
        for log in (node.checkpoints / "sums" / "offsets").glob("*"):
            os.truncate(log, 0)
        put_batches(node, 5, 5)
        process = started(node)
        node.admitted("sums", 5)
        assert (1, Admission.DONE) in attempts(node)
        assert node.outputs("sums")[:4] == first
        assert not node.seen.failed
        process.kill()
        process.wait()


def test_query_process_stops_at_once_while_spark_starts(node: LocalNode) -> None:
    """The end does not count against the class archive: the next start maps it again."""
    (node.directory / "application.yaml").write_text(APPLICATION + QUERIES)
    process = started(node)
    leader = process.pid
    wait_until(lambda: "java" in {one.name() for one in session_of(leader)}, within=30, every=0.02)
    process.send_signal(signal.SIGTERM)
    assert wait_ended(process) == 0
    assert not node.seen.attended
    wait_until(lambda: not session_of(process.pid), within=30)


def attendance(node: LocalNode, incarnation: str) -> Attendance:
    address = Address(str(node.socket), incarnation)
    return Attendance(address, open_channel(address))


def test_query_process_unknown_to_the_node_is_refused(node: LocalNode) -> None:
    with pytest.raises(Superseded):
        list(attendance(node, "another").commands())
    address = Address(str(node.socket), "another")
    link = NodeLink(address)
    with pytest.raises(Superseded, match="another"):
        link.call(link.stub.Locate, pb.LocateRequest(incarnation="another"))


def test_command_stream_ends_when_the_node_ends_it(node: LocalNode) -> None:
    node.command(pb.QueryCommand(run=pb.RunQuery(query="sums")))
    node.end_attendance()
    assert [one.run.query for one in attendance(node, node.incarnation).commands()] == ["sums"]
