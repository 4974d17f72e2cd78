"""What a second node costs a producer: acks and rows a second of a pair, against a node alone.

Real node processes without Spark, so that the machine's cores, which both nodes and the producer
share, go to receive, journal and sync alone. Both sides run all the time and are measured in turns.
Latencies under load count from the moment at which a request was due, so that a request which waits
for a slow one before it counts its wait (coordinated omission).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import httpx
import psutil
from rich.console import Console

from benchmarks.database import Database
from benchmarks.processes import cpu_seconds, spent
from benchmarks.report import Result
from benchmarks.waiting import wait_until
from tests.e2e.node_under_test import NodeUnderTest, running
from tests.e2e.pair import Pair
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark

CLIENTS = 8
ROWS = 500
IDLE_EVERY_SECONDS = 0.02
LOAD_SECONDS = 4.0


def body(rows: int) -> bytes:
    """NDJSON of ``rows`` events of about 80 bytes."""
    return b"".join(b'{"id": %d, "text": "%s"}\n' % (n, b"x" * 60) for n in range(rows))


@dataclass(frozen=True)
class Side:
    """The active's node process, and the others behind it. Rows come in at ``ports``."""

    name: str
    active: NodeUnderTest
    ports: tuple[int, ...]
    others: tuple[NodeUnderTest, ...] = ()

    @property
    def url(self) -> str:
        return self.active.url

    def cpu(self) -> tuple[dict[int, float], dict[int, float]]:
        """Of the active, and of the others."""
        return _cpu(self.active), _cpu(*self.others)


def _cpu(*nodes: NodeUnderTest) -> dict[int, float]:
    return cpu_seconds([psutil.Process(one.process.pid) for one in nodes if one.process])


@contextlib.contextmanager
def both_sides(
    directory: Path, database: Database, passive_data: Path | None = None
) -> Iterator[tuple[Side, Side]]:
    """A node alone, and the active of a pair that is in sync; ``passive_data`` is the directory of
    its passive, elsewhere than on the active's disk."""
    home = directory / "alone"
    home.mkdir(parents=True)
    alone = NodeWithoutSpark(home, APPLICATION, database.url, "alone", **ROOM)
    alone.reconfigure(group="alone")
    pair = Pair(directory, APPLICATION, database.url, NodeWithoutSpark, **ROOM)
    if passive_data is not None:
        pair.b.data_dir = passive_data
        pair.b.reconfigure(node={"data_dir": str(passive_data)})
    with running(alone), running(pair.a):
        wait_until(lambda: alone.is_active() and pair.a.is_active(), within=60)
        with running(pair.b):
            wait_until(pair.is_protected, within=60)
            ports = _http_port(pair.a), pair.sync_port(pair.b.name)
            single = Side("alone", alone, (_http_port(alone),))
            yield single, Side("pair", pair.a, ports, (pair.b,))


def _http_port(node: NodeUnderTest) -> int:
    return int(node.url.rpartition(":")[2])


def measure(sides: tuple[Side, Side], rounds: int, result: Result, console: Console) -> None:
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for side in sides if number % 2 else sides[::-1]:
            idle = _paced(side, body(1), 1 / IDLE_EVERY_SECONDS, seconds=LOAD_SECONDS)
            rate, *cpu = saturated(side, seconds=LOAD_SECONDS)
            half = min(found.get("pair rows/s", [rate])) / 2 / ROWS
            loaded = _paced(side, body(ROWS), half, seconds=LOAD_SECONDS)
            _keep(found, side.name, idle, rate, cpu, loaded)
            console.print(f"{number + 1}/{rounds} {side.name}: {rate:,.0f} rows/s", highlight=False)
    _report(found, result)


def _keep(
    found: dict[str, list[float]],
    side: str,
    idle: list[float],
    rate: float,
    cpu: list[float],
    loaded: list[float],
) -> None:
    figures = {
        "rows/s": rate,
        "active's CPU s per million rows": cpu[0] / rate * 1e6,
        "others' CPU s per million rows": cpu[1] / rate * 1e6,
        "idle p50": median(idle),
        "idle p99": quantiles(idle, n=100)[98],
        "half load p50": median(loaded),
        "half load p99": quantiles(loaded, n=100)[98],
    }
    for name, value in figures.items():
        found.setdefault(f"{side} {name}", []).append(value)


def _report(found: dict[str, list[float]], result: Result) -> None:
    def both(figure: str) -> Iterator[tuple[float, float]]:
        return zip(found[f"pair {figure}"], found[f"alone {figure}"], strict=True)

    def over(figure: str) -> list[float]:
        return [1000 * (with_peer - alone) for with_peer, alone in both(figure)]

    result.add("rows/s of the pair over alone", "ratio", [p / a for p, a in both("rows/s")])
    spent_alone = [a / p for p, a in both("active's CPU s per million rows")]
    result.at_least("rows by CPU second of the active, over alone", spent_alone, 0.85, "ratio")
    result.at_most("idle: ack p50 over alone", over("idle p50"), 1.5, "ms")
    result.at_most("half load: ack p50 over alone", over("half load p50"), 3.0, "ms")
    for load in ("idle", "half load"):
        p99 = [1000 * seconds for seconds in found[f"pair {load} p99"]]
        result.at_most(f"{load}: ack p99 of the pair", p99, 20.0, "ms")
    for name, samples in found.items():
        seconds = "p50" in name or "p99" in name
        result.add(name, "ms" if seconds else "", [s * (1000 if seconds else 1) for s in samples])
    result.notes.append(
        "Both nodes and the producer share the cores, so rows/s of the pair is what these allow. "
        "What sync costs an active on a host of its own is its CPU: rows by CPU second."
    )


def _paced(side: Side, payload: bytes, a_second: float, seconds: float) -> list[float]:
    """Latencies in seconds of requests that are due at an even pace, whoever is late."""
    count = int(a_second * seconds)
    with _clients(side) as (threads, sends):
        began = time.perf_counter() + 0.05

        def one(send: Callable[[bytes], None], number: int) -> float:
            due = began + number / a_second
            time.sleep(max(0.0, due - time.perf_counter()))
            send(payload)
            return time.perf_counter() - due

        def all_of(client: int) -> list[float]:
            return [one(sends[client], number) for number in range(client, count, CLIENTS)]

        return [latency for part in threads.map(all_of, range(CLIENTS)) for latency in part]


def saturated(side: Side, seconds: float) -> tuple[float, float, float]:
    """Rows a second of clients that send without a break, and CPU seconds a second of the active
    and of the others."""
    payload = body(ROWS)
    with _clients(side) as (threads, sends):
        before, began = side.cpu(), time.perf_counter()

        def flood(send: Callable[[bytes], None]) -> int:
            sent = 0
            while time.perf_counter() < began + seconds:
                send(payload)
                sent += ROWS
            return sent

        rows = sum(threads.map(flood, sends))
        took, after = time.perf_counter() - began, side.cpu()
    active, others = (spent(*both) / took for both in zip(before, after, strict=True))
    return rows / took, active, others


@contextlib.contextmanager
def _clients(side: Side) -> Iterator[tuple[ThreadPoolExecutor, list[Callable[[bytes], None]]]]:
    """As many connections as threads, each already open."""
    url = f"{side.url}/v1/streams/events/events"
    headers = {"Content-Type": "application/x-ndjson"}
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(headers=headers)) for _ in range(CLIENTS)]
        threads = stack.enter_context(ThreadPoolExecutor(CLIENTS))

        def sender(client: httpx.Client) -> Callable[[bytes], None]:
            client.get(f"{side.url}/liveness")
            return lambda payload: _require_taken(client.post(url, content=payload))

        yield threads, [sender(client) for client in clients]


def _require_taken(answer: httpx.Response) -> None:
    assert answer.status_code == httpx.codes.OK, answer.text
