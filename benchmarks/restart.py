"""A node loses all its processes (kill -9) and is started again: when is its first output there?

With and without an archive of Spark's classes, in turns. A producer tries all the time; the times
of the steps are looked at ten times a second, that of the row is PostgreSQL's own. The node is
alone; it has one query, or three that start at once. Processes that do nothing but compute may
compete with it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from rich.console import Console

from benchmarks.database import Database
from benchmarks.engine_side import EngineSide
from benchmarks.report import Result
from benchmarks.waiting import wait_until
from benchmarks.workload import WORKLOADS, as_ndjson, events
from ha_engine.client.payload import Form
from tests.e2e.node_under_test import NodeUnderTest
from tests.slow_host import busy

FIRST_OUTPUT = WORKLOADS[1]
"""The query whose output is waited for: all rows pass, so each event is one."""
STREAM, TABLE = FIRST_OUTPUT.name, f"engine_{FIRST_OUTPUT.name}"
FIRST_ID = 1 << 40
TARGET_SECONDS = 7.0
ARCHIVE_SECONDS_MAX, START_SECONDS_MAX = 900.0, 900.0
RETRY_SECONDS = 0.02
STEPS = (
    "node process answers",
    "node is active",
    "Java runs",
    "Spark is up",
    "event is acked",
    "row is visible",
)


class Restarts:
    """Of the node of ``engine``, which runs and has worked."""

    def __init__(
        self, engine: EngineSide, database: Database, competitors: int, console: Console
    ) -> None:
        self._node, self._database, self._console = engine.node, database, console
        self._competitors = competitors
        self._ids = itertools.count(FIRST_ID)

    def measure(self, rounds: int, result: Result) -> None:
        self._make_archive()
        for archive in (True, False) * rounds:
            self._node.kill_everything()
            self._node.reconfigure(query={"class_archive": archive})
            words = "with the class archive" if archive else "without"
            with busy(self._competitors):
                steps = self._restart()
            for step, seconds in steps.items():
                result.extend(f"{words}: {step}", "s", seconds)
            self._console.print(f"  {words}: {result.samples(f'{words}: {STEPS[-1]}')[-1]:.1f} s")
        if not self._competitors:
            result.aim(f"with the class archive: {STEPS[-1]}", TARGET_SECONDS)

    def _make_archive(self) -> None:
        """One start that lists the classes, and what follows it in idle time."""
        self._node.kill_everything()
        self._node.reconfigure(query={"class_archive": True})
        self._restart()
        self._console.print("  waiting for the class archive")
        classes = self._node.data_dir / "classes"
        wait_until(lambda: list(classes.glob("*.jsa")), within=ARCHIVE_SECONDS_MAX, every=1.0)

    def _restart(self) -> dict[str, float]:
        """Seconds from the start to each step."""
        seen, began = dict[str, float](), time.time()
        self._node.start()
        event = next(self._ids)
        with _one_event(self._node, event, began, seen):
            wait_until(lambda: self._looked(began, seen), within=START_SECONDS_MAX)
        wait_until(lambda: self._database.committed_at(TABLE, [event]), within=START_SECONDS_MAX)
        seen[STEPS[-1]] = self._database.committed_at(TABLE, [event])[event] - began
        return {step: seen[step] for step in STEPS}

    def _looked(self, began: float, seen: dict[str, float]) -> bool:
        """Notes what is so for the first time; true when all but the row is."""
        status = self._node.status()
        now = {
            STEPS[0]: status is not None,
            STEPS[1]: status is not None and status["role"] == "active",
            STEPS[2]: STEPS[2] in seen or self._node.pid_of("jvm") is not None,
            STEPS[3]: _attended(status),
        }
        for step in (step for step, so in now.items() if so):
            seen.setdefault(step, time.time() - began)
        return all(step in seen for step in STEPS[:-1])


def _attended(status: dict[str, Any] | None) -> bool:
    return status is not None and bool(status["query_process"]["attended"])


@contextmanager
def _one_event(
    node: NodeUnderTest, event: int, began: float, seen: dict[str, float]
) -> Iterator[None]:
    """Somebody who sends the one with that id until it is acknowledged."""
    body, over = as_ndjson(events(event, 1)), threading.Event()

    def send() -> None:
        with httpx.Client(headers={"Content-Type": Form.NDJSON.value}) as client:
            while not over.wait(RETRY_SECONDS):
                try:
                    answer = client.post(f"{node.url}/v1/streams/{STREAM}/events", content=body)
                except httpx.TransportError:
                    continue
                if answer.status_code == httpx.codes.OK:
                    seen[STEPS[4]] = time.time() - began
                    return

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    try:
        yield
    finally:
        over.set()
        sending.join()
