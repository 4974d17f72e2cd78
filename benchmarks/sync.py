"""How fast a journal follows another: ``python -m benchmarks.sync [DIRECTORY]``.

Two processes on loopback, plain text, each with a journal on disk. Prints MB/s, records/s and
messages/s of a backlog that is read from the files and of records that are sent as they are
appended, then the time from an append to the ack of the follower's fdatasync.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles

import structlog
import uvloop

from benchmarks.journal import events
from ha_engine.config import EventSyncConfig
from ha_engine.core import inputs as on
from ha_engine.core.messages import Ack, Records
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from ha_engine.sync import EventSync, Hello
from ha_engine.sync.report import Report
from ha_engine.types import Position, Record

SMALL, LARGE = 4 << 10, 256 << 10
PENDING_MAX = 32 << 20
EPOCH = 1


class Side:
    """One node, with what the core would do: follow, ack, note acks."""

    def __init__(self, directory: Path, node: str, peers: dict[str, int]) -> None:
        self.node, self.acked, self.peer = node, 0, ""
        self.journal = Journal.open(directory / node, group="bench")
        self.writer = JournalWriter(self.journal, self._durable, self.fail)
        self.changed = asyncio.Event()
        config = EventSyncConfig(
            listen="127.0.0.1:0",
            peers={name: f"127.0.0.1:{port}" for name, port in peers.items()},
            insecure=True,
        )
        self.sync = EventSync(config, self.journal, self, Counter())

    def hello(self) -> Hello:
        identity = self.journal.journal_id
        return Hello("bench", "bench", "", self.node, self.node, identity, "", "", {}, "")

    def report(self) -> Report:
        last = self.journal.last.sequence
        return Report(
            role="",
            reason="",
            epoch=EPOCH,
            url="",
            journal_id=self.journal.journal_id,
            last=last,
            durable=last,
            committed=self.acked,
            suspended=False,
            warm=True,
            headroom=True,
            follows=True,
            query_process_connected=True,
        )

    def committed(self) -> int:
        return self.acked

    def handle(self, event: on.Input) -> None:
        match event:
            case on.PeerConnected(peer):
                self.peer = peer
            case on.PeerMessage(_, Records(_, _, records, _)):
                self.append(list(records))
            case on.PeerMessage(_, Ack(durable=durable)):
                self.acked = durable
        self.changed.set()

    async def wait_for_space(self) -> None:
        await self.writer.wait_for_space(PENDING_MAX)

    def fail(self, error: BaseException) -> None:
        raise SystemExit(str(error))

    def append(self, records: list[Record]) -> None:
        self.writer.append(records)
        self.sync.appended(records)

    async def until_acked(self, sequence: int) -> None:
        while self.acked < sequence:
            self.changed.clear()
            await self.changed.wait()

    async def close(self) -> None:
        await self.sync.stop()
        await self.writer.close()
        self.journal.close()

    def _durable(self, sequence: int) -> None:
        if self.node == "follower":
            ack = Ack(EPOCH, self.journal.journal_id, sequence, True, False)
            self.sync.send(self.peer, ack)


def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def follow(directory: Path, pipe: Connection) -> None:
    """The follower's process; ends when the pipe is closed."""

    async def run() -> None:
        side = Side(directory, "follower", {"a-leader": 1})
        await side.sync.start()
        pipe.send(side.sync.port)
        await asyncio.to_thread(pipe.poll, None)
        await side.close()

    quiet()
    uvloop.run(run())


def payload(size: int) -> bytes:
    return bytes(range(256)) * (size // 256)


def show(name: str, side: Side, count: int, size: int, messages: int, began: float) -> None:
    took = time.perf_counter() - began
    sent = side.sync.traffic()["follower"].messages_sent - messages
    print(
        f"{name}, {count} records of {size >> 10} KiB: {count * size / took / 1e6:,.0f} MB/s, "
        f"{count / took:,.0f} records/s, {sent / took:,.0f} messages/s"
    )


async def backlog(side: Side, first: int, count: int, size: int) -> None:
    """From the files: nothing of it is in memory when the stream begins."""
    body = payload(size)
    for sequence in range(first, first + count):
        side.append([events(sequence, body)])
        await side.wait_for_space()
    await side.writer.wait_for_space(0)
    side.sync.appended([])
    messages, began = side.sync.traffic()["follower"].messages_sent, time.perf_counter()
    side.sync.stream("follower", EPOCH, Position(min(1, first - 1), first - 1))
    await side.until_acked(first + count - 1)
    show("backlog", side, count, size, messages, began)
    side.sync.stop_streams()


async def live(side: Side, first: int, count: int, size: int) -> None:
    """As fast as both disks take them, each record an append of its own."""
    body = payload(size)
    side.sync.stream("follower", EPOCH, Position(1, first - 1))
    messages, began = side.sync.traffic()["follower"].messages_sent, time.perf_counter()
    for sequence in range(first, first + count):
        side.append([events(sequence, body)])
        while sequence - side.acked > PENDING_MAX // size:
            await side.until_acked(sequence - PENDING_MAX // size)
        if sequence % 8 == 0:
            await asyncio.sleep(0)
    await side.until_acked(first + count - 1)
    show("live", side, count, size, messages, began)
    side.sync.stop_streams()


async def round_trips(side: Side, first: int, count: int, size: int) -> None:
    body, took = payload(size), []
    side.sync.stream("follower", EPOCH, Position(1, first - 1))
    for sequence in range(first, first + count):
        began = time.perf_counter()
        side.append([events(sequence, body)])
        await side.until_acked(sequence)
        took.append(time.perf_counter() - began)
    p50, p99 = median(took) * 1e3, quantiles(took, n=100)[98] * 1e3
    print(f"append to ack, {size >> 10} KiB one at a time: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    side.sync.stop_streams()


async def lead(directory: Path, port: int) -> None:
    side = Side(directory, "a-leader", {"follower": port})
    await side.sync.start()
    while not side.peer:
        side.changed.clear()
        await side.changed.wait()
    first = 1
    for measure, count, size in (
        (backlog, 40_000, SMALL),
        (backlog, 1_500, LARGE),
        (live, 40_000, SMALL),
        (live, 1_500, LARGE),
        (round_trips, 2_000, SMALL),
        (round_trips, 400, LARGE),
    ):
        await measure(side, first, count, size)
        first += count
    await side.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "directory", nargs="?", type=Path, help="where to write, default: temporary"
    )
    given = parser.parse_args().directory
    quiet()
    with tempfile.TemporaryDirectory(dir=given, prefix="sync-") as name:
        here, there = multiprocessing.get_context("spawn").Pipe()
        follower = multiprocessing.get_context("spawn").Process(
            target=follow, args=(Path(name), there), daemon=True
        )
        follower.start()
        there.close()
        uvloop.run(lead(Path(name), here.recv()))
        here.close()
        follower.join(10)


if __name__ == "__main__":
    main()
