"""One link over a wire in memory; the test decides when a write ends and a read begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ha_engine.core.messages import BatchDigest, Probe
from ha_engine.journal import Journal
from ha_engine.sync.codec import MalformedFrame, records_frame, to_sync_frame
from ha_engine.sync.link import QUEUED_BYTES_MAX, Link, Traffic, size_of
from ha_engine.sync.stream import RecordStream
from ha_engine.sync.tail import Tail
from ha_engine.sync.wire import WireBroken
from ha_engine.types import ORIGIN
from ha_engine.v1 import sync_pb2 as pb
from tests.journal.samples import some_records
from tests.waiting import async_wait_until


class MemoryWire:
    """``sent`` are the begun writes; each ends once ``passing`` is set."""

    certified = None

    def __init__(self) -> None:
        self.sent: list[pb.SyncFrame] = []
        self.passing = asyncio.Event()
        self.coming: asyncio.Future[pb.SyncFrame] = asyncio.get_running_loop().create_future()

    async def read(self) -> pb.SyncFrame:
        frame = await self.coming
        self.coming = asyncio.get_running_loop().create_future()
        return frame

    async def write(self, frame: pb.SyncFrame) -> None:
        self.sent.append(frame)
        await self.passing.wait()

    async def finish(self) -> None: ...


class Served:
    """A running link and the inputs that it delivered."""

    def __init__(self) -> None:
        self.wire, self.traffic = MemoryWire(), Traffic()
        self.link = Link("node-b", "process", self.wire, self.traffic)
        self.heard: list[pb.SyncFrame] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.over = asyncio.create_task(self.link.run(self.heard.append, self.wait_for_space))

    async def wait_for_space(self) -> None:
        await self.gate.wait()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    yield served
    served.link.end("the test is over")
    await served.over


def probe(number: int) -> pb.SyncFrame:
    return to_sync_frame(Probe(number))


def records(size: int = 100) -> pb.SyncFrame:
    return records_frame(1, ORIGIN, bytes(size), 0)


async def test_link_writes_control_messages_before_offered_records(served: Served) -> None:
    link, wire = served.link, served.wire
    link.send(probe(1))
    await async_wait_until(lambda: wire.sent)
    offered = asyncio.create_task(link.offer(records()))
    await asyncio.sleep(0)
    link.send(probe(2))
    wire.passing.set()
    await offered
    assert wire.sent == [probe(1), probe(2), records()]
    assert served.traffic.messages_sent == 3


async def test_records_wait_for_few_writes_however_many_messages_are_queued(served: Served) -> None:
    """A thousand writes may take longer than sync_timeout, after which the holder begins anew."""
    link, wire = served.link, served.wire
    digests = [to_sync_frame(BatchDigest(1, "q", n, "d" * 32)) for n in range(1024)]
    for frame in digests:
        link.send(frame)
    offered = asyncio.create_task(link.offer(records()))
    wire.passing.set()
    await offered
    assert len(wire.sent) <= 6
    assert wire.sent.pop() == records()
    assert [one for frame in wire.sent for one in frame.several.frames] == digests
    assert served.traffic.messages_sent == 1025
    assert served.traffic.bytes_sent == sum(map(size_of, (*digests, records())))


async def test_link_delivers_messages_that_came_together_in_their_order(served: Served) -> None:
    together = pb.SyncFrame(several=pb.Several(frames=[probe(1), records(), probe(2), probe(3)]))
    served.gate.clear()
    served.wire.coming.set_result(together)
    await async_wait_until(lambda: served.heard == [probe(1), records()])
    served.gate.set()
    await async_wait_until(lambda: served.heard == [probe(1), records(), probe(2), probe(3)])


async def test_link_does_not_write_a_withdrawn_offer(served: Served) -> None:
    link, wire = served.link, served.wire
    link.send(probe(1))
    await async_wait_until(lambda: wire.sent)
    offered = asyncio.create_task(link.offer(records()))
    await asyncio.sleep(0)
    offered.cancel()
    link.withdraw()
    link.send(probe(2))
    wire.passing.set()
    await async_wait_until(lambda: served.traffic.messages_sent == 2)
    assert wire.sent == [probe(1), probe(2)]


async def test_link_completes_an_offer_whose_write_began(served: Served) -> None:
    link, wire = served.link, served.wire
    offered = asyncio.create_task(link.offer(records()))
    await async_wait_until(lambda: wire.sent)
    offered.cancel()
    link.withdraw()
    wire.passing.set()
    await async_wait_until(lambda: served.traffic.messages_sent == 1)
    link.send(probe(1))
    await async_wait_until(lambda: wire.sent == [records(), probe(1)])


async def test_ended_link_delivers_no_late_frame(served: Served) -> None:
    """1. gRPC has a frame. 2. A newer link takes this one's place. 3. The reader gets its turn."""
    await asyncio.sleep(0)
    served.wire.coming.set_result(probe(1))
    served.link.end("replaced")
    assert await served.over == "replaced"
    assert served.heard == []


async def test_link_reads_nothing_behind_records_while_the_journal_has_no_room(
    served: Served,
) -> None:
    served.gate.clear()
    served.wire.coming.set_result(records())
    await async_wait_until(lambda: served.heard == [records()])
    served.wire.coming.set_result(probe(1))
    await asyncio.sleep(0)
    assert served.heard == [records()]
    served.gate.set()
    await async_wait_until(lambda: served.heard == [records(), probe(1)])


async def test_link_drops_a_peer_that_reads_nothing(served: Served) -> None:
    told = 0
    while not served.over.done() and told < 2 * QUEUED_BYTES_MAX // 100_000:
        served.link.send(records(100_000))
        told += 1
        await asyncio.sleep(0)
    assert await served.over == "the peer does not read its messages"
    assert told < QUEUED_BYTES_MAX // 100_000 + 20  # the loop takes some turns to end it


@pytest.mark.parametrize("error", [WireBroken("gone"), MalformedFrame("it sent nonsense")])
async def test_broken_wire_or_frame_ends_the_link_with_its_reason(error: Exception) -> None:
    served = Served()
    await asyncio.sleep(0)
    served.wire.coming.set_exception(error)
    assert await served.over == str(error)


async def test_link_raises_an_error_of_its_own_node() -> None:
    wire = MemoryWire()
    link = Link("node-b", "process", wire, Traffic())

    def broken(frame: pb.SyncFrame) -> None:
        raise ZeroDivisionError

    async def wait_for_space() -> None: ...

    over = asyncio.create_task(link.run(broken, wait_for_space))
    await asyncio.sleep(0)
    wire.coming.set_result(probe(1))
    with pytest.raises(ZeroDivisionError):
        await over


async def test_stopped_stream_leaves_nothing_on_the_link(served: Served, tmp_path: Path) -> None:
    link, wire = served.link, served.wire
    journal = Journal.open(tmp_path, group="test")
    journal.append(some_records(10))
    link.send(probe(1))
    await async_wait_until(lambda: wire.sent)
    stream = RecordStream(link, 1, ORIGIN, Tail(journal), journal, lambda: 0, 1 << 20)
    await async_wait_until(lambda: stream.in_flight)
    stream.stop()
    link.send(probe(2))
    wire.passing.set()
    await async_wait_until(lambda: served.traffic.messages_sent == 2)
    assert wire.sent == [probe(1), probe(2)]
    journal.close()
