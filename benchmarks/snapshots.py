"""What snapshots cost, and how long a node takes to come back from an empty disk.

A pair with real Spark counts events by key. Its state has one row a key, and each key comes again
in a round that is to change it; only keys that came often are put out, so that the sink is no part
of what is measured.
"""

from __future__ import annotations

import re
import secrets
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from rich.console import Console
from sqlalchemy import text

from benchmarks.database import Database
from benchmarks.feeder import Feeder
from benchmarks.report import Result
from benchmarks.waiting import wait_until
from ha_engine.client.snapshot import await_snapshot
from ha_engine.postgres.engine import open_engine
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair

QUERY, STREAM, TABLE = "totals", "events", "totals"
SHOWN_FROM = 3
"""A key is put out from so many events on."""
CHANGES = (0.01, 0.1, 1.0)
REQUEST_ROWS, REQUEST_BYTES = 20_000, 4 << 20
SECONDS_MAX = 600.0
MIB = 1 << 20
ONE_EVENT = b'{"key":-1,"amount":0,"text":""}\n'
RESTORED_MIB_MAX = 500.0
RESTORED = re.compile(r"snapshot restored.* bytes=(\d+).* seconds=([0-9.]+)")


def application() -> str:
    schema = {"key": "bigint not null", "amount": "bigint not null", "text": "string not null"}
    sink = {"name": "table", "type": "postgres", "table": TABLE, "mode": "upsert", "key": ["key"]}
    sql = (
        "SELECT key, count(*) AS n, sum(amount) AS total, length(max(text)) AS size "
        f"FROM {STREAM} GROUP BY key HAVING count(*) >= {SHOWN_FROM}"
    )
    query = {"sql": sql, "output_mode": "update", "sinks": [{**sink, "auto_create": True}]}
    tree = {"name": "keys", "streams": {STREAM: {"schema": schema}}, "queries": {QUERY: query}}
    return yaml.safe_dump(tree, sort_keys=False)


def bodies(keys: int, width: int) -> Iterator[bytes]:
    """One event of each of the first ``keys`` keys, as NDJSON; its amount is the key, its text
    ``width`` characters that no codec makes much smaller."""
    rows = min(REQUEST_ROWS, max(1, REQUEST_BYTES // (width + 50)))
    for first in range(0, keys, rows):
        numbers = np.arange(first, min(first + rows, keys))
        key = pa.array(numbers).cast(pa.string())
        texts = pa.array([secrets.token_hex(width // 2) for _ in numbers], pa.string())
        parts = ('{"key":', key, ',"amount":', key, ',"text":"', texts, '"}\n', "")
        yield pc.binary_join_element_wise(*parts).buffers()[2].to_pybytes()


@dataclass
class Counted:
    """How often each key was sent."""

    keys: int
    times: np.ndarray[Any, np.dtype[np.int64]] = field(init=False)

    def __post_init__(self) -> None:
        self.times = np.zeros(self.keys, dtype=np.int64)

    def sent(self, keys: int) -> None:
        self.times[:keys] += 1

    def rows(self) -> list[tuple[int, int, int]]:
        shown = np.flatnonzero(self.times >= SHOWN_FROM)
        return [(int(k), int(self.times[k]), int(k * self.times[k])) for k in shown]


class Snapshots:
    """``keys`` of state, each with a text of ``width`` characters, on a pair that is warm."""

    def __init__(
        self, pair: Pair, database: Database, keys: int, width: int, console: Console
    ) -> None:
        self.pair, self.keys, self.width, self.console = pair, keys, width, console
        self._engine, self._sent = open_engine(database.url), Counted(keys)

    # -- steps -------------------------------------------------------------------------------------

    def active(self) -> NodeUnderTest:
        active = self.pair.active()
        assert active is not None
        return active

    def send(self, keys: int) -> None:
        """Each of the first ``keys`` keys once; returns when both nodes have worked that off."""
        address = self.active().url.removeprefix("http://")
        Feeder(address, STREAM).feed(bodies(keys, self.width))
        self._sent.sent(keys)
        wait_until(self._is_level, within=SECONDS_MAX, every=0.2)

    def _is_level(self) -> bool:
        queries = [
            (node.status() or {"queries": {}})["queries"] for node in self.pair.nodes.values()
        ]
        batches = {query.get(QUERY, {}).get("batch") for query in queries}
        return len(batches) == 1 and self.active().settled()

    def take(self) -> tuple[float, dict[str, Any]]:
        began = time.monotonic()
        revision = await_snapshot(self.active().url, SECONDS_MAX)
        return time.monotonic() - began, revision

    def require_equal(self) -> None:
        statement = text(f"SELECT key, n, total FROM {TABLE} ORDER BY key")
        with self._engine.connect() as connection:
            found = [(int(k), int(n), int(total)) for k, n, total in connection.execute(statement)]
        assert found == self._sent.rows(), "the sink differs from the reference"
        self.console.print(f"  equal: {len(found):,} rows of the sink", highlight=False)

    # -- what is measured --------------------------------------------------------------------------

    def cost(self, result: Result) -> None:
        self.send(self.keys)
        self._taken("first snapshot", result)
        for share in CHANGES:
            self.send(int(self.keys * share))
            self._taken(f"snapshot after {share:.0%} of the keys changed", result)

    def _taken(self, name: str, result: Result) -> None:
        seconds, revision = self.take()
        result.add(name, "s", [seconds])
        result.add(f"{name}, new", "MiB", [revision["bytes_new"] / MIB])
        result.add(f"{name}, all", "MiB", [revision["bytes_total"] / MIB])
        self.console.print(f"  {name}: {seconds:.1f} s, {revision['bytes_new'] / MIB:.1f} MiB new")

    def acks(self, result: Result) -> None:
        """Of single events at an even pace, with and without a snapshot under way."""
        calm = self._paced(threading.Event(), seconds=10)
        self.send(self.keys)
        done = threading.Event()

        def take() -> None:
            self.take()
            done.set()

        taking = threading.Thread(target=take)
        taking.start()
        during = self._paced(done, seconds=SECONDS_MAX)
        taking.join()
        for name, samples in (("without", calm), ("during", during)):
            p99 = statistics.quantiles(samples, n=100)[98]
            result.add(f"ack p99 {name} a snapshot ({len(samples)} acks)", "ms", [1000 * p99])

    def _paced(self, done: threading.Event, seconds: float, every: float = 0.02) -> list[float]:
        found, began = list[float](), time.monotonic() + 0.05
        with httpx.Client() as client:
            url = f"{self.active().url}/v1/streams/{STREAM}/events"
            headers = {"Content-Type": "application/x-ndjson"}
            while not done.is_set() and len(found) * every < seconds:
                due = began + len(found) * every
                time.sleep(max(0.0, due - time.monotonic()))
                answer = client.post(url, content=ONE_EVENT, headers=headers)
                assert answer.status_code == httpx.codes.OK, answer.text
                found.append(time.monotonic() - due)
        return found

    def restore(self, result: Result) -> None:
        """The passive loses its disk, and misses events; then the active dies, and it goes on."""
        active = self.active()
        passive = self.pair.other(active)
        passive.kill_everything()
        shutil.rmtree(passive.data_dir)
        missed = int(self.keys * CHANGES[1])
        self.send_to_one(active, missed)
        began = time.monotonic()
        with _peak_memory(passive) as peak:
            passive.start()
            wait_until(lambda: _in_sync(passive), within=SECONDS_MAX)
            in_sync = time.monotonic() - began
            self.pair.wait_protected()
        warm = time.monotonic() - began
        found = RESTORED.search(passive.log_text())
        assert found is not None, "nothing was restored"
        size, seconds = int(found[1]), float(found[2])
        peers = (passive.status() or {"peers": {}})["peers"]
        result.at_most("wiped node in sync", [in_sync], 20.0, "s")
        result.add(
            f"of that, from the active ({missed:,} events that it missed)",
            "MiB",
            [peers[active.name]["bytes_received"] / MIB],
        )
        result.add("wiped node warm", "s", [warm])
        result.add("of that, restoring", "s", [seconds])
        result.add("restored", "MiB", [size / MIB])
        result.add("restored a second", "MiB/s", [size / MIB / seconds])
        result.at_most("node process meanwhile, most", [max(peak)], RESTORED_MIB_MAX, "MiB")
        active.kill_everything()
        wait_until(lambda: passive.is_active(), within=60)
        self.send_to_one(passive, int(self.keys * CHANGES[0]))
        self.require_equal()
        active.start()
        self.pair.wait_protected()

    def send_to_one(self, node: NodeUnderTest, keys: int) -> None:
        Feeder(node.url.removeprefix("http://"), STREAM).feed(bodies(keys, self.width))
        self._sent.sent(keys)
        wait_until(node.settled, within=SECONDS_MAX, every=0.2)

    def throughput(self, rounds: int, result: Result, every: float = 10.0) -> None:
        """Rows a second with a snapshot each ``every`` seconds over without, in turns."""
        ratios = []
        for number in range(rounds):
            rates = {}
            for taking in (True, False) if number % 2 else (False, True):
                with self._snapshots_each(every if taking else None) as taken:
                    rates[taking] = self._rate(3.5 * every)
                assert len(taken) >= (2 if taking else 0), "too few snapshots in that time"
            ratios.append(rates[True] / rates[False])
            self.console.print(f"  {rates[True]:,.0f} rows/s with, {rates[False]:,.0f} without")
        result.at_least(
            f"rows/s with a snapshot each {every:g} s, over none", ratios, 0.97, "ratio"
        )

    def _rate(self, seconds: float) -> float:
        """Rows a second, of all keys again and again for at least so long."""
        began, rows = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            self.send(self.keys)
            rows += self.keys
        return rows / (time.monotonic() - began)

    @contextmanager
    def _snapshots_each(self, seconds: float | None) -> Iterator[list[int]]:
        """Their ids, as they become visible."""
        over, taken = threading.Event(), list[int]()

        def ask() -> None:
            while seconds is not None and not over.wait(seconds):
                taken.append(self.take()[1]["id"])

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            yield taken
        finally:
            over.set()
            asking.join()


def _in_sync(node: NodeUnderTest) -> bool:
    status = node.status()
    return status is not None and bool(status["in_sync"]) and status["role"] == "passive"


@contextmanager
def _peak_memory(node: NodeUnderTest) -> Iterator[list[float]]:
    """MiB of the node process, looked at ten times a second."""
    found, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            pid = node.pid_of("node")
            if pid is not None:
                try:
                    found.append(psutil.Process(pid).memory_info().rss / MIB)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


@contextmanager
def state_of(
    directory: Path, database: Database, keys: int, width: int, provider: str, console: Console
) -> Iterator[Snapshots]:
    """A pair that takes a snapshot when it is asked to."""
    settings: dict[str, dict[str, Any]] = {
        "snapshot": {"interval": "0s"},
        "query": {"heap": "3GiB", "state_store": provider},
        "receive": {"max_backlog_events": 50_000_000},
    }
    pair = Pair(directory, application(), database.url, **settings)
    with running_pair(pair):
        pair.wait_protected()
        yield Snapshots(pair, database, keys, width, console)
