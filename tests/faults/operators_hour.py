"""An operator's hour with a pair under load, with real processes, Spark and a database.

    python -m tests.faults.operators_hour

The script installs a pair, deploys an application, changes a rule of it, compares the changed rule
with the live one, promotes it, upgrades both hosts, loses the host of the active with its disk, and
brings it back. It uses the commands that an operator types. Meanwhile a producer sends events. The
run prints how long each step took, and the longest time without an ack in it. At the end each acked
event must be in the sink once, and the changed rule must hold from one event on.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from rich.console import Console
from rich.table import Table

from ha_engine.client import Ack, Producer
from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.e2e.databases import rows
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
from tests.e2e.pair import Pair, running_pair
from tests.e2e.test_deploy import ACCESS, TOKEN, TOKEN_VARIABLE
from tests.releases import release, run, version
from tests.waiting import wait_until

PAUSE_SECONDS = 0.05
PATIENCE = 1000
"""Seconds after which a step of the upgrade counts as hanging. A slow host needs minutes."""
READINGS = """
name: plant
streams:
  readings:
    schema: {id: bigint not null, celsius: int not null}
queries:
  copies:
    sql: SELECT id FROM readings
    sinks: [{name: table, type: postgres, table: copies, auto_create: true}]
"""
ALARMS = """
  alarms:
    sql: SELECT id FROM readings WHERE celsius > {limit}
    on_change: reset
    sinks: [{{name: table, type: postgres, table: alarms, auto_create: true}}]
"""
BEFORE, AFTER = 90, 80
"""The limits of the rule in degrees."""


def celsius_of(number: int) -> int:
    """The temperature in event ``number``."""
    return number % 100


class Load(threading.Thread):
    """Sends numbered events, one after the other, and notes when each is acked."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__(daemon=True)
        self._urls, self._ended = urls, threading.Event()
        self.sent, self.acks = 0, list[float]()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Producer(self._urls, deadline=float("inf"), on_ack=self._acked) as producer:
                while not self._ended.wait(PAUSE_SECONDS):
                    event = {"id": self.sent, "celsius": celsius_of(self.sent)}
                    producer.send("readings", [event])
                    producer.flush()
                    self.sent += 1
        except BaseException as error:
            self.error = error
            raise

    def _acked(self, ack: Ack) -> None:
        self.acks.append(time.monotonic())

    def longest_gap(self, since: float) -> float:
        """The longest time without an ack from ``since`` to now, in seconds."""
        moments = [since, *(at for at in self.acks if at > since), time.monotonic()]
        return max(later - at for at, later in pairwise(moments))

    def wait_for_more(self) -> None:
        """Return once events that are sent from now on are acked."""
        wanted = len(self.acks) + 20
        wait_until(lambda: len(self.acks) >= wanted, within=SPARK_SECONDS, every=0.1)

    def end(self) -> None:
        self._ended.set()
        self.join()
        if self.error is not None:
            raise self.error


class Hour:
    """The pair, and what the operator does with it."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory, self._url = directory, url
        self._old = release(directory / "old", version("8.0.0"))
        self._new = release(directory / "new", version("9.0.0"))
        _printed(run(self._old, "db", "init", "--url", url))
        # On a slow host, a passive that is behind catches up only with larger batches.
        slow = {"query": {"min_batch_interval": "2s"}, "snapshot": {"interval": "10s"}}
        self.pair = Pair(directory, READINGS, url, **ACCESS, **slow)
        for node in self.pair.nodes.values():
            node.code = self._old
        self.load = Load(self.pair.urls)
        self.steps: list[tuple[str, float, float]] = []

    def run(self) -> list[str]:
        """Return what is wrong at the end."""
        with running_pair(self.pair):
            self.pair.wait_protected()
            self.load.start()
            try:
                for step in (
                    self.deploy,
                    self.change_a_rule,
                    self.compare,
                    self.promote,
                    self.upgrade,
                    self.lose_a_host,
                    self.bring_it_back,
                ):
                    self._take(step)
            finally:
                self.load.end()
            self.pair.wait_settled()
        return self._wrong()

    def _take(self, step: Callable[[], None]) -> None:
        began = time.monotonic()
        step()
        self.load.wait_for_more()
        name = step.__name__.replace("_", " ")
        self.steps.append((name, time.monotonic() - began, self.load.longest_gap(began)))
        print(f"{name}: {self.steps[-1][1]:.0f} s, {self.steps[-1][2]:.2f} s without an ack")

    # -- the steps ---------------------------------------------------------------------------------

    def deploy(self) -> None:
        self._deploy(BEFORE)

    def change_a_rule(self) -> None:
        self._deploy(AFTER, "--shadow")

    def _deploy(self, limit: int, *options: str) -> None:
        file = self._directory / f"plant-{limit}.yaml"
        file.write_text(READINGS + ALARMS.format(limit=limit))
        self._type("app", "deploy", str(file), *options)
        self.pair.wait_protected()

    def _type(self, *words: str) -> str:
        """Type a command on the host of the active; return what it prints."""
        node = self.pair.wait_protected()
        assert node.code is not None
        token = {TOKEN_VARIABLE: TOKEN, "HA_ENGINE_URL": node.url, "USER": "alice"}
        return _printed(run(node.code, *words, environ=token))

    def compare(self) -> None:
        """The changed rule finds more, and misses nothing."""
        wait_until(self._shadow_finds_more, within=SPARK_SECONDS, every=1.0)

    def _shadow_finds_more(self) -> bool:
        found: dict[str, Any] = json.loads(self._type("query", "compare", "alarms", "--json"))
        assert found["total"]["only_live"] == 0, found
        return bool(found["total"]["only_shadow"] > 0)

    def promote(self) -> None:
        self._type("query", "promote", "alarms")
        self.pair.wait_protected()

    def upgrade(self) -> None:
        config = str(self.pair.a.config_path)
        _printed(run(self._old, "upgrade", "check", "--to", str(self._new), "-c", config))
        _printed(run(self._new, "db", "upgrade", "--url", self._url))
        active = self.pair.wait_protected()
        for node in (self.pair.other(active), active):
            self._upgrade(node)
        _printed(run(self._new, "db", "upgrade", "--finalize", "--url", self._url))

    def _upgrade(self, node: NodeUnderTest) -> None:
        wait = ("--url", node.url, "--wait", str(PATIENCE))
        _printed(run(self._old, "upgrade", "prepare", *wait))
        assert node.stop() == 0
        node.code = self._new
        node.start()
        _printed(run(self._new, "upgrade", "verify", *wait))
        self.pair.wait_protected()

    def lose_a_host(self) -> None:
        lost = self.pair.wait_protected()
        lost.kill_everything()
        shutil.rmtree(lost.data_dir)
        self._lost = lost
        self.pair.other(lost).wait_active(within=SPARK_SECONDS)

    def bring_it_back(self) -> None:
        self._lost.start()
        self.pair.wait_protected()

    # -- the judgement -----------------------------------------------------------------------------

    def _wrong(self) -> list[str]:
        sent = range(self.load.sent)
        copies = sorted(number for (number,) in rows(self._url, "SELECT id FROM copies"))
        alarms = sorted(number for (number,) in rows(self._url, "SELECT id FROM alarms"))
        wrong = (
            [] if copies == list(sent) else [f"copies: {len(copies)} rows of {len(sent)} events"]
        )
        # The first alarm is of the deployment; the first of the changed rule is of the promotion.
        new = next((n for n in alarms if celsius_of(n) <= BEFORE), len(sent))
        expected = [
            number
            for number in sent
            if number >= alarms[0]
            if celsius_of(number) > (BEFORE if number < new else AFTER)
        ]
        if alarms != expected:
            differing = sorted(set(alarms) ^ set(expected))
            wrong.append(f"alarms: {len(alarms)} rows instead of {len(expected)}: {differing[:10]}")
        return wrong


def _printed(done: CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def main() -> int:
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-hour-"))
    with EmbeddedPostgres(directory / "postgres") as server:
        hour = Hour(directory, server.url)
        wrong = hour.run()
    Console().print(table_of(hour))
    print("\n".join(wrong) or f"equal: {hour.load.sent} events, none lost, none twice")
    return 1 if wrong else 0


def table_of(hour: Hour) -> Table:
    table = Table(title="an operator's hour, in seconds")
    for name in ("step", "took", "longest without an ack"):
        table.add_column(name, justify="left" if name == "step" else "right")
    for step, took, gap in hour.steps:
        table.add_row(step, f"{took:.0f}", f"{gap:.2f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
