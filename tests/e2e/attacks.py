"""Attacks on a real node without Spark, and what each costs its other clients.

``python -m tests.e2e.attacks`` prints a table of the latencies of another producer's acks, before
and during each attack. The names of attacks as arguments select some.
"""

from __future__ import annotations

import argparse
import math
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.databases import fresh_database
from tests.e2e.node_under_test import free_port, running
from tests.e2e.well_behaved import WellBehaved, memory_of
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.shared_postgres import new_postgres
from tests.waiting import wait_until

PATIENCE = 10
"""An attack uses the CPU all the time, so that a wait lasts SLOW_HOST times as long at most."""
INGEST = ("idle_http2", "huge_messages", "half_open_streams", "endless_streams", "many_producers")
"""The attacks on the gRPC interface."""
LASTING = {"keep_alive": "1h"}
"""Idle connections stay open until there are too many of them, however long that takes."""


@dataclass(frozen=True)
class Attack:
    """An attack of ``tests.e2e.hostile``, and the settings of the attacked node.

    The node must soon count refusals with the reasons ``counted``.
    """

    name: str
    clients: int
    counted: Collection[str] = ()
    http: dict[str, Any] = field(default_factory=dict)
    ingest: dict[str, Any] = field(default_factory=lambda: {"max_streams": 150})

    def __str__(self) -> str:
        return f"{self.name}-{self.clients}"


QUICK = (
    Attack("idle", 1_020, {"displaced"}, {**LASTING, "max_connections": 1_000}),
    Attack("pipelining", 10, {"pipelined"}),
    Attack("slow_readers", 50, {"unread"}),
    Attack("half_open_streams", 10, {"streams"}, ingest={"max_streams": 15}),
)
FULL = (
    Attack("idle", 10_200, {"displaced"}, LASTING),
    Attack("slow_headers", 1_000, {"late"}),
    Attack("slow_bodies", 500, {"BodyTooSlow"}),
    Attack("slow_readers", 500, {"unread"}),
    Attack("leaving", 20, {"InvalidEvents"}),
    # Even a slow host receives the largest body before the body is late.
    Attack("endless_bodies", 10, {"PayloadTooLarge"}, {"max_body": "1MiB"}),
    Attack("gzip_bombs", 10, {"PayloadTooLarge"}),
    Attack("idle_http2", 2_000),
    # gRPC takes messages of up to 1.25 times the largest body, and holds one for each stream.
    Attack("huge_messages", 100, ingest={"max_body": "3MiB", "max_streams": 15}),
    Attack("half_open_streams", 100, {"streams"}),
    Attack("endless_streams", 10),
    Attack("many_producers", 4, {"TooManyProducers"}),
)


class AttackedNode(NodeWithoutSpark):
    """A node with the settings of an attack, which reaches ``target``."""

    def __init__(self, directory: Path, database_url: str, against: Attack) -> None:
        ingest = f"127.0.0.1:{free_port()}"
        super().__init__(
            directory,
            APPLICATION,
            database_url,
            receive=ROOM["receive"],
            http={"keep_alive": "2s", **against.http},
            ingest={"listen": ingest, **against.ingest},
        )
        self.target = ingest if against.name in INGEST else self.url.removeprefix("http://")


@contextmanager
def attack(target: str, against: Attack, launcher: Sequence[str] = ()) -> Iterator[None]:
    """Let clients of ``tests.e2e.hostile`` misbehave on the host of ``launcher``, once all have
    begun."""
    command = [*launcher, sys.executable, "-m", "tests.e2e.hostile"]
    command += [against.name, str(against.clients), target]
    attacking = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert attacking.stdin is not None
    assert attacking.stdout is not None
    try:
        with selectors.DefaultSelector() as output:
            output.register(attacking.stdout, selectors.EVENT_READ)
            wait_until(lambda: output.select(timeout=0), within=PATIENCE)
        assert attacking.stdout.readline() == "attacking\n"
        yield
    finally:
        attacking.stdin.close()
        attacking.stdout.close()
        attacking.kill()
        attacking.wait()


# -- the table -------------------------------------------------------------------------------------


def _measure(against: Attack, database_url: str, seconds: float) -> str:
    """Return a row of the table."""
    with (
        tempfile.TemporaryDirectory() as directory,
        running(node := AttackedNode(Path(directory), database_url, against)),
    ):
        node.wait_active()
        producer = WellBehaved(node)
        producer.start()
        time.sleep(seconds / 3)
        before, memory = list(producer.acks), [memory_of(node)]
        with attack(node.target, against):
            began = len(producer.acks)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(0.5)
                memory.append(memory_of(node))
            during = producer.acks[began:]
        producer.stop()
    cells = [f"{against!s:22}", *_latencies(before), f"{len(during):5}", *_latencies(during)]
    return " | ".join([*cells, f"{len(producer.refusals):7}", f"{max(memory) - memory[0]:6.0f}"])


def _latencies(acks: Sequence[float]) -> Iterator[str]:
    """Median, 99th percentile and maximum, in ms."""
    ordered = sorted(acks) or [math.nan]
    for share in (0.5, 0.99, 1):
        yield f"{1000 * ordered[math.ceil(share * len(ordered)) - 1]:6.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=sorted({one.name for one in FULL}), default=[])
    parser.add_argument("--seconds", type=float, default=12.0)
    chosen = parser.parse_args()
    latencies = "p50 p99 max"
    print(
        f"{'attack':22} | before, ms: {latencies} | acks | during, ms: {latencies} | refused | MiB"
    )
    with new_postgres() as server:
        for number, one in enumerate(FULL):
            if not chosen.names or one.name in chosen.names:
                with fresh_database(server, f"attacked_{number}") as url:
                    print(_measure(one, url, chosen.seconds), flush=True)


if __name__ == "__main__":
    main()
