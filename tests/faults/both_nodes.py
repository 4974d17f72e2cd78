"""Both nodes of a pair get each request, over any failover: nothing lost, nothing twice, no 503.

    python -m tests.faults.both_nodes --count 30 [--seed N] [--ttl 2s] [--fault F]

The faults are those of ``failovers``. Each request has the same identity at both nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx
import pyarrow as pa
from rich.console import Console

from ha_engine.client.payload import of_batch
from ha_engine.demo.traffic import EVERY_SECONDS, PAUSE_SECONDS_MAX, REST, Traffic
from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.faults.active import FAULTS, in_random_order
from tests.faults.failovers import LEASES, Report, run_failovers, table_of

PRODUCER = "both"
ARROW = "application/vnd.apache.arrow.stream"
ANSWER_SECONDS = 60.0
"""A frozen node answers late, and a node without an active for half a minute refuses."""
FORWARDING = {"forward": True}


class TrafficToBoth(Traffic):
    """Sends each request to both nodes at once, and repeats it until one of them has stored it.

    ``answers`` counts the statuses of the answers for which the client waits. ``late`` counts those
    that come when the other node has stored the request already: a node that was frozen for long
    may have forgotten the request's sequence, or find no active in time.
    """

    def __init__(self, urls: Sequence[str], stream: str, rows: pa.Table, fade: float) -> None:
        super().__init__(urls, stream, rows, fade)
        self.answers, self.late = Counter[int](), Counter[int]()
        self._stored_through = -1
        # The event loop itself keeps only weak references to tasks.
        self._late = set[asyncio.Task[bool]]()

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self.error = error

    async def _run(self) -> None:
        sequence, before = 0, time.monotonic() - EVERY_SECONDS
        # No request to one node shall wait for a connection because the other node is frozen.
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=ANSWER_SECONDS, limits=limits) as client:
            while not self.is_done and not self._ended.is_set():
                began = time.monotonic()
                batch = self._next(began - before)
                await self._until_stored(client, sequence, of_batch(batch).body)
                self.sent += batch.num_rows
                sequence += 1
                before, took = began, time.monotonic() - began
                await asyncio.sleep(min(max(EVERY_SECONDS, REST * took), PAUSE_SECONDS_MAX))

    async def _until_stored(self, client: httpx.AsyncClient, sequence: int, body: bytes) -> None:
        """Return as soon as a node has stored the request; the other one may answer later."""
        while not self._ended.is_set():
            posts = {
                asyncio.create_task(self._post(client, url, sequence, body)) for url in self._urls
            }
            while posts:
                done, posts = await asyncio.wait(posts, return_when=asyncio.FIRST_COMPLETED)
                if any(post.result() for post in done):
                    self._stored_through = sequence
                    self._late |= posts
                    return
            await asyncio.sleep(EVERY_SECONDS)

    async def _post(self, client: httpx.AsyncClient, url: str, sequence: int, body: bytes) -> bool:
        """Send the request to one node; return whether it is stored."""
        headers = {
            "Content-Type": ARROW,
            "X-Producer-Id": PRODUCER,
            "X-Sequence": str(sequence),
        }
        place = f"{url}/v1/streams/{self._stream}/events"
        try:
            answer = await client.post(place, content=body, headers=headers)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            return False  # a dead node
        is_late = sequence <= self._stored_through
        (self.late if is_late else self.answers)[answer.status_code] += 1
        if answer.is_success:
            self.acks.append((time.time(), answer.json()["position"]["epoch"]))
        return answer.is_success


def run_both(
    directory: Path, url: str, faults: list[str], ttl: str = "2s"
) -> tuple[Report, TrafficToBoth]:
    """Run ``failovers`` with requests to both nodes; return also their client."""
    made = list[TrafficToBoth]()

    def traffic(urls: Sequence[str], stream: str, rows: pa.Table, fade: float) -> Traffic:
        made.append(TrafficToBoth(urls, stream, rows, fade))
        return made[-1]

    report = run_failovers(directory, url, faults, ttl, traffic=traffic, receive=FORWARDING)
    (sent,) = made
    return report, sent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--ttl", choices=LEASES, default="2s", help="of the lease")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only this; repeat")
    given = parser.parse_args()
    print(f"seed {given.seed}, ttl {given.ttl}")
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-both-"))
    with EmbeddedPostgres(directory / "postgres") as server:
        faults = in_random_order(given.count, given.seed, given.fault or FAULTS)
        report, client = run_both(directory, server.url, faults, given.ttl)
    Console().print(table_of(report))
    print(f"answers by status: {dict(client.answers)}; late ones: {dict(client.late)}")
    print("\n".join(report.wrong) or "equal: nothing lost, nothing twice, ledger contiguous")
    return 1 if report.wrong or set(client.answers) != {200} else 0


if __name__ == "__main__":
    sys.exit(main())
