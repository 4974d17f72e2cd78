"""Streams of records: from the files, then live, over cuts, within their bound."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ha_engine.core import inputs as on
from ha_engine.core.messages import Ack, Follow, Records
from ha_engine.journal import Journal
from ha_engine.sync import stream
from ha_engine.sync.tail import Chunk, Files, Tail, Trimmed
from ha_engine.types import ORIGIN, Position, Record
from tests.journal.samples import events, flip, mark, some_records
from tests.sync.conftest import Make
from tests.sync.pair import EPOCH, SyncNode, plain
from tests.sync.proxy import Proxy
from tests.waiting import async_wait_until

Pair = tuple[SyncNode, SyncNode]
MIB = 1 << 20


def batches(node: SyncNode) -> list[Records]:
    return [message for message in node.heard() if isinstance(message, Records)]


async def equal(a: SyncNode, b: SyncNode, within: float = 60) -> None:
    """Wait until b's journal has a's records, then compare every byte."""
    await async_wait_until(lambda: b.journal.last == a.appended == a.journal.last, within=within)
    assert a.content() == b.content()


def sized(sequence: int, source: random.Random) -> Record:
    size = source.choice((0, 10, 300, 5_000, 70_000, 700_000))
    payload = source.randbytes(source.randint(0, size))
    return replace(events(sequence), payload=payload) if size else mark(sequence)


def large(sequence: int, megabytes: int) -> Record:
    return replace(events(sequence), payload=random.Random(sequence).randbytes(megabytes * MIB))


async def test_stream_sends_the_files_first_and_then_each_appended_record(
    pair: Pair,
) -> None:
    a, b = pair
    a.append(some_records(200, size=2_000))
    await a.writer.wait_for_space(0)
    a.append([events(201)])  # nothing before it is in memory any more
    a.stream("node-b")
    await equal(a, b)
    a.append([mark(202)])
    await equal(a, b)
    assert batches(b)[-1].records == (mark(202),)


async def test_concurrent_appends_of_any_size_arrive_whole_once_and_in_order(pair: Pair) -> None:
    a, b = pair
    source = random.Random(7)
    for sequence in range(1, 1_001):
        if sequence == 100:
            a.stream("node-b")
        a.append([sized(sequence, source)])
        if source.random() < 0.3:
            await asyncio.sleep(0)
    await equal(a, b)
    assert b.received == 1_000


async def test_a_stream_begins_behind_any_position(pair: Pair) -> None:
    a, b = pair
    records = some_records(50)
    a.append(records)
    b.append(records[:20])
    a.stream("node-b", after=Position(1, 20))
    await equal(a, b)
    assert batches(b)[0].previous == Position(1, 20)
    assert b.received == 30


async def test_active_sends_records_that_are_not_yet_durable(pair: Pair) -> None:
    """The test blocks a's writer thread, so no record that a appends is written or durable."""
    a, b = pair
    a.stream("node-b")
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        release.wait(30)

    holding = a.writer.run_exclusive(hold)
    await async_wait_until(held.is_set)
    a.append(some_records(20))
    await async_wait_until(lambda: b.journal.last.sequence == 20)
    assert a.journal.last == ORIGIN
    release.set()
    await holding
    await equal(a, b)


async def test_a_backlog_is_gathered_into_large_messages(pair: Pair) -> None:
    a, b = pair
    a.append(some_records(2_000, size=4_000))
    await a.writer.wait_for_space(0)
    a.append([mark(2_001)])
    a.stream("node-b")
    await equal(a, b)
    sizes = [sum(len(record.payload) for record in one.records) for one in batches(b)]
    assert max(sizes) <= MIB
    assert sorted(sizes)[len(sizes) // 2] >= 64 << 10


async def test_record_above_a_megabyte_has_its_own_message(pair: Pair) -> None:
    a, b = pair
    a.stream("node-b")
    a.append([large(1, 5), events(2), large(3, 32)])
    await equal(a, b)
    assert [len(one.records) for one in batches(b)] == [1, 1, 1]


async def test_messages_have_the_epoch_and_commit_of_their_sending(pair: Pair) -> None:
    a, b = pair
    a.stream("node-b", epoch=4)
    a.append([events(1)])
    await async_wait_until(lambda: b.received == 1)
    a.append([events(2), events(3)])
    await async_wait_until(lambda: b.received == 3)
    assert [(one.epoch, one.committed) for one in batches(b)] == [(4, 0), (4, 2)]


async def test_message_sent_before_a_stream_starts_arrives_before_its_records(pair: Pair) -> None:
    a, b = pair
    a.append(some_records(100, size=10_000))
    follow = Follow(1, "j", ORIGIN, ORIGIN)
    a.send("node-b", follow)
    a.stream("node-b")
    await equal(a, b)
    assert b.heard()[0] == follow


async def test_control_message_overtakes_the_records_of_a_backlog(pair: Pair) -> None:
    a, b = pair
    b.gate.clear()
    a.append([large(sequence, 1) for sequence in range(1, 31)])
    a.stream("node-b")
    await async_wait_until(lambda: b.received >= 1)
    a.send("node-b", Follow(1, "now", ORIGIN, ORIGIN))
    b.gate.set()
    await equal(a, b)
    place = b.heard().index(Follow(1, "now", ORIGIN, ORIGIN))
    assert place < len(b.heard()) - 5


async def test_all_records_arrive_over_a_slow_line(pair: Pair, proxy: Proxy) -> None:
    a, b = pair
    proxy.delay_seconds = 0.1
    a.stream("node-b")
    source = random.Random(3)
    a.append([sized(n, source) for n in range(1, 21)])
    await equal(a, b)
    proxy.cut()
    await async_wait_until(lambda: len(a.links()) == 3 and len(b.links()) == 3, within=30)


# -- bound -----------------------------------------------------------------------------------------


async def test_bytes_in_flight_stay_bounded_while_the_peer_acks_nothing(make: Make) -> None:
    b = await make("node-b", plain({"node-a": 1}))
    a = await make("node-a", plain({"node-b": b.sync.port}, max_in_flight="1MiB"))
    await async_wait_until(lambda: a.connected("node-b") and b.connected("node-a"))
    b.acking = False
    a.stream("node-b")
    a.append([events(sequence, size=60_000) for sequence in range(1, 101)])
    await async_wait_until(lambda: b.received >= 16)  # four messages of four records each
    b.send("node-a", Ack(EPOCH + 1, "j", 16, True, False))  # an ack of another epoch
    await async_wait_until(lambda: a.heard())
    await a.writer.wait_for_space(0)
    assert b.received == 16
    assert a.sync.in_flight()["node-b"] <= MIB
    b.acking = True
    b.ack(b.journal.last.sequence)
    await equal(a, b)
    await async_wait_until(lambda: a.sync.in_flight()["node-b"] == 0)


async def test_records_appended_while_an_ack_is_due_share_a_message(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    monkeypatch.setattr(stream, "GATHER_SECONDS", 60)
    b.acking = False
    a.stream("node-b")
    a.append([events(1)])  # nothing is unconfirmed: a sends it at once
    await async_wait_until(lambda: b.received == 1)
    for sequence in range(2, 11):
        a.append([events(sequence)])
        await a.writer.wait_for_space(0)  # long enough for a separate message
    b.ack(1)
    await async_wait_until(lambda: b.received == 10)
    assert [len(one.records) for one in batches(b)] == [1, 9]


async def test_active_sends_records_to_a_peer_that_has_acked_nothing(pair: Pair) -> None:
    a, b = pair
    b.acking = False
    a.stream("node-b")
    for sequence in (1, 2, 3):
        a.append([events(sequence)])
        await async_wait_until(lambda s=sequence: b.received == s)


async def test_record_above_the_bound_is_sent_when_nothing_else_is_in_flight(make: Make) -> None:
    b = await make("node-b", plain({"node-a": 1}))
    a = await make("node-a", plain({"node-b": b.sync.port}, max_in_flight="1MiB"))
    await async_wait_until(lambda: a.connected("node-b") and b.connected("node-a"))
    a.stream("node-b")
    a.append([events(1), large(2, 3), large(3, 2), events(4)])
    await equal(a, b)


async def test_follower_without_room_reads_no_more_from_the_link(pair: Pair) -> None:
    """From the first record on b has no room: it takes one message, the rest waits on the wire."""
    a, b = pair
    b.gate.clear()
    a.stream("node-b")
    a.append([large(1, 1)])
    await async_wait_until(lambda: b.received == 1)
    a.append([large(sequence, 1) for sequence in range(2, 30)])
    await async_wait_until(lambda: a.sync.in_flight()["node-b"] > MIB)
    await a.writer.wait_for_space(0)
    assert b.received == 1
    b.gate.set()
    await equal(a, b)


# -- ends ------------------------------------------------------------------------------------------


async def test_stream_resumes_after_a_cut_link_at_the_position_of_the_follower(
    pair: Pair, proxy: Proxy
) -> None:
    a, b = pair
    source = random.Random(11)
    a.stream("node-b")
    for turn in range(8):
        a.append([sized(turn * 100 + n, source) for n in range(1, 101)])
        await async_wait_until(lambda turn=turn: b.received > turn * 100)
        links = len(a.links())
        proxy.cut()
        await async_wait_until(
            lambda links=links: len(a.links()) >= links + 2 and len(b.links()) >= links + 2
        )
        assert a.sync.in_flight() == {}
        a.stream("node-b", after=b.appended)
    await equal(a, b)
    assert b.received == 800


async def test_new_stream_request_ends_the_previous_stream(pair: Pair) -> None:
    a, b = pair
    a.append(some_records(400, size=20_000))
    a.stream("node-b", epoch=1)
    a.stream("node-b", epoch=2)
    await equal(a, b)
    assert {one.epoch for one in batches(b)} == {2}


async def test_stopped_streams_send_nothing_more(pair: Pair) -> None:
    a, b = pair
    a.stream("node-b")
    a.append([events(1)])
    await async_wait_until(lambda: b.received == 1)
    a.sync.stop_streams()
    a.append([events(2)])
    a.send("node-b", Follow(1, "end", ORIGIN, ORIGIN))
    await async_wait_until(lambda: b.heard()[-1] == Follow(1, "end", ORIGIN, ORIGIN))
    assert b.received == 1
    assert a.sync.in_flight() == {}


async def test_stream_that_needs_trimmed_records_ends_the_link_with_the_reason(
    pair: Pair,
) -> None:
    a, b = pair
    a.append(some_records(60, size=100_000))
    await a.writer.wait_for_space(0)
    await a.writer.run_exclusive(lambda: a.journal.trim_before(40))
    a.append([events(61)])
    a.stream("node-b")
    await async_wait_until(lambda: len(a.links()) >= 2)
    assert isinstance(lost := a.links()[1], on.PeerLost)
    assert "record 1 is trimmed" in lost.reason
    assert b.received == 0


# -- tail and files --------------------------------------------------------------------------------


def positions(chunk: Chunk | None) -> Position | None:
    return chunk and chunk.last


class HeldJournal:
    """A journal whose writer has stopped at ``last``."""

    def __init__(self, journal: Journal) -> None:
        self.first, self.last, self.locate = 1, journal.last, journal.locate


def test_tail_keeps_the_records_that_no_file_has_and_drops_the_rest(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, group="test")
    records = some_records(10)
    held = HeldJournal(journal)
    tail = Tail(held, kept_bytes_max=0)
    for record in records[:6]:
        tail.append([record], streaming=False)
    assert tail.first == 1
    journal.append(records[:4])
    held.last = journal.last
    tail.append(records[6:], streaming=True)
    assert tail.first == 5
    assert tail.chunk(4, MIB) is None
    assert positions(tail.chunk(5, MIB)) == Position(1, 10)
    assert Files(held).chunk(1, 4, MIB).last == Position(1, 4)
    journal.close()


def test_tail_keeps_recent_records_for_live_streams(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, group="test")
    records = some_records(10)
    tail = Tail(journal, kept_bytes_max=3_000)
    journal.append(records)
    tail.append(records, streaming=True)
    assert 1 < tail.first <= 10
    tail.append([], streaming=False)
    assert tail.first == 11
    journal.close()


def test_chunks_from_files_cross_segments_without_a_gap(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, group="test", segment_size=100_000)
    journal.append(some_records(300, size=3_000))
    files = Files(journal)
    chunks = [files.chunk(1, 300, 20_000)]
    while chunks[-1].last.sequence < 300:
        chunks.append(files.chunk(chunks[-1].last.sequence + 1, 300, 20_000))
    whole = Files(journal)
    assert all(one.last < other.last for one, other in pairwise(chunks))
    assert all(len(chunk.frames) <= 20_000 for chunk in chunks)
    assert chunks[0].frames.startswith(whole.chunk(1, 300, 1).frames)
    extents = journal.locate(1, 300)
    stored = b"".join(Path(e.path).read_bytes()[e.offset : e.offset + e.length] for e in extents)
    assert b"".join(chunk.frames for chunk in chunks) == stored
    journal.close()


def test_trimmed_records_are_not_reported_as_damage(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, group="test", segment_size=100_000)
    journal.append(some_records(300, size=3_000))
    files = Files(journal)
    files.chunk(1, 300, 10_000)
    journal.trim_before(250)
    with pytest.raises(Trimmed, match="restore a snapshot"):
        files.chunk(4, 300, 10_000)
    with pytest.raises(Trimmed, match="record 1 is trimmed"):
        Files(journal).chunk(1, 300, 10_000)
    journal.close()


async def test_damaged_old_record_ends_the_link_and_not_the_node(pair: Pair) -> None:
    """The active no longer needs the record; a follower may start from a snapshot behind it."""
    a, _ = pair
    a.append(some_records(200, size=2_000))
    await a.writer.wait_for_space(0)
    a.append([events(201)])  # nothing before it is in memory any more
    await a.writer.wait_for_space(0)
    [extent] = a.journal.locate(100, 100)
    flip(Path(extent.path), extent.offset + extent.length // 2)
    links = a.sync.traffic()["node-b"].links
    a.stream("node-b")
    await async_wait_until(lambda: a.sync.traffic()["node-b"].links > links)
    assert a.failures == []
