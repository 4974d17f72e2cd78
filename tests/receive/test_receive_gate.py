"""The gate over a real journal: all or nothing, once, and only when committed (RULES.md#i3,
RULES.md#i11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from ha_engine.config import ReceiveConfig
from ha_engine.errors import (
    Backpressure,
    NotActive,
    PayloadTooLarge,
    SequenceConflict,
    SequenceForgotten,
    TooManyProducers,
    UnknownStream,
)
from ha_engine.receive.gate import MemoryCounters, Receipt
from ha_engine.receive.producers import ProducerTable
from ha_engine.types import Events, Position, Record, Submission
from tests.receive.solo import SCHEMA, Solo
from tests.waiting import async_wait_until


@pytest.fixture
async def solo(tmp_path: Path) -> AsyncIterator[Solo]:
    solo = Solo(tmp_path)
    yield solo
    await solo.close()


def batch(*flights: int) -> pa.RecordBatch:
    rows = [{"origin": "EWR", "at": 0, "delay": None, "flight": flight} for flight in flights]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def submission(sequence: int, digest: str = "d", rows: int = 1) -> Submission:
    return Submission("p", sequence, digest, rows)


def flights(solo: Solo) -> list[object]:
    return [row["flight"] for row in solo.stored()]


def events_of(record: Record) -> Events:
    assert isinstance(record.body, Events)
    return record.body


async def test_an_ack_names_the_record_that_holds_the_rows(solo: Solo) -> None:
    receipt = await solo.gate.submit("flights", batch(1, 2))
    assert receipt == Receipt(2, Position(1, 1))
    (record,) = solo.records()
    assert (record.position, events_of(record).rows) == (Position(1, 1), 2)
    assert flights(solo) == [1, 2]


async def test_nothing_is_acked_before_it_is_committed(solo: Solo) -> None:
    solo.log.hold()
    request = asyncio.create_task(solo.gate.submit("flights", batch(1)))
    await async_wait_until(lambda: flights(solo) == [1])
    assert not request.done()
    solo.log.release()
    assert (await request).accepted == 1


async def test_requests_of_one_turn_share_a_record_and_streams_do_not(solo: Solo) -> None:
    await asyncio.gather(
        solo.gate.submit("flights", batch(1)),
        solo.gate.submit("other", batch(2)),
        solo.gate.submit("flights", batch(3)),
    )
    assert [(events_of(record).stream, events_of(record).rows) for record in solo.records()] == [
        ("flights", 2),
        ("other", 1),
    ]


async def test_requests_during_a_write_share_the_next_record(solo: Solo) -> None:
    solo.log.hold()
    first = asyncio.create_task(solo.gate.submit("flights", batch(0)))
    await async_wait_until(lambda: len(solo.records()) == 1)
    later = [
        asyncio.create_task(solo.gate.submit("flights", batch(flight))) for flight in range(1, 20)
    ]
    await asyncio.sleep(0)
    solo.log.release()
    receipts = await asyncio.gather(first, *later)
    assert [receipt.position.sequence for receipt in receipts] == [1] + [2] * 19
    assert flights(solo) == list(range(20))


async def test_a_full_record_does_not_wait_for_the_one_in_flight(tmp_path: Path) -> None:
    solo = Solo(tmp_path, ReceiveConfig(max_record_rows=3))
    solo.log.hold()
    requests = [asyncio.create_task(solo.gate.submit("flights", batch(n, n))) for n in range(4)]
    await async_wait_until(lambda: len(solo.records()) == 4)
    solo.log.release()
    await asyncio.gather(*requests)
    assert [events_of(record).rows for record in solo.records()] == [2, 2, 2, 2]
    await solo.close()


async def test_a_stream_does_not_wait_for_the_records_of_another(tmp_path: Path) -> None:
    """The other stream may have any number of them: under load one is always in flight."""
    solo = Solo(tmp_path)
    solo.log.hold()
    busy = asyncio.create_task(solo.gate.submit("flights", batch(1)))
    await async_wait_until(lambda: len(solo.records()) == 1)
    other = asyncio.create_task(solo.gate.submit("other", batch(2)))
    more = asyncio.create_task(solo.gate.submit("flights", batch(3)))
    await async_wait_until(lambda: len(solo.records()) == 2)
    solo.log.release()
    await asyncio.gather(busy, other, more)
    streams = [events_of(record).stream for record in solo.records()]
    assert streams == ["flights", "other", "flights"]
    await solo.close()


async def test_a_request_larger_than_a_record_is_refused_whole(tmp_path: Path) -> None:
    solo = Solo(tmp_path, ReceiveConfig(max_record_rows=3))
    with pytest.raises(PayloadTooLarge, match="at most 3 events"):
        await solo.gate.submit("flights", batch(1, 2, 3, 4))
    assert solo.stored() == []
    await solo.close()


async def test_rows_match_their_submissions_in_order(solo: Solo) -> None:
    await asyncio.gather(
        solo.gate.submit("flights", batch(9)),
        solo.gate.submit("flights", batch(1, 2), submission(0, rows=2)),
        solo.gate.submit("flights", batch(3), submission(1)),
    )
    (record,) = solo.records()
    assert [one.rows for one in events_of(record).submissions] == [2, 1]
    assert flights(solo) == [1, 2, 3, 9]


async def test_a_retry_gets_the_ack_of_its_original(solo: Solo) -> None:
    first = await solo.gate.submit("flights", batch(1), submission(0))
    again = await solo.gate.submit("flights", batch(1), submission(0))
    assert again == first
    assert flights(solo) == [1]
    assert isinstance(solo.gate.counters, MemoryCounters)
    assert (solo.gate.counters.rows_accepted, solo.gate.counters.rows_duplicate) == (1, 1)


async def test_a_retry_while_its_original_is_gathered_waits_for_the_commit(solo: Solo) -> None:
    receipts = await asyncio.gather(
        *(solo.gate.submit("flights", batch(1), submission(0)) for _ in range(5))
    )
    assert set(receipts) == {Receipt(1, Position(1, 1))}
    assert flights(solo) == [1]


async def test_a_retry_while_its_original_is_in_flight_waits_for_the_commit(solo: Solo) -> None:
    solo.log.hold()
    first = asyncio.create_task(solo.gate.submit("flights", batch(1), submission(0)))
    await async_wait_until(lambda: len(solo.records()) == 1)
    again = asyncio.create_task(solo.gate.submit("flights", batch(1), submission(0)))
    await asyncio.sleep(0)
    assert not again.done()
    solo.log.release()
    assert await first == await again
    assert flights(solo) == [1]


async def test_the_same_sequence_with_another_payload_is_refused(solo: Solo) -> None:
    outcomes = await asyncio.gather(
        solo.gate.submit("flights", batch(1), submission(0, "one")),
        solo.gate.submit("flights", batch(2), submission(0, "two")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [Receipt, SequenceConflict]
    with pytest.raises(SequenceConflict):
        await solo.gate.submit("flights", batch(2), submission(0, "two"))
    assert flights(solo) == [1]


async def test_sequence_older_than_the_dedup_window_is_refused(tmp_path: Path) -> None:
    solo = Solo(tmp_path, ReceiveConfig(dedup_window=2))
    for number in range(4):
        await solo.gate.submit("flights", batch(number), submission(number))
    with pytest.raises(SequenceForgotten):
        await solo.gate.submit("flights", batch(0), submission(0))
    await solo.close()


async def test_a_retry_after_a_restart_is_not_stored_twice(tmp_path: Path) -> None:
    solo = Solo(tmp_path)
    first = await solo.gate.submit("flights", batch(1), submission(0))
    await solo.close()
    restarted = Solo(tmp_path)
    assert await restarted.gate.submit("flights", batch(1), submission(0)) == first
    assert flights(restarted) == [1]
    await restarted.close()


async def test_records_of_another_node_are_known_after_replay(solo: Solo) -> None:
    original = Events("flights", 1, 0, (submission(0),))
    solo.gate.replay(Record(Position(1, 1), 0, original))
    with pytest.raises(SequenceConflict):
        await solo.gate.submit("flights", batch(1), submission(0, "other"))


async def test_a_closed_gate_names_the_active(solo: Solo) -> None:
    solo.gate.close("this node is passive", "http://b:8080")
    with pytest.raises(NotActive, match="this node is passive") as refusal:
        await solo.gate.submit("flights", batch(1))
    assert refusal.value.active == "http://b:8080"
    solo.gate.open()
    assert (await solo.gate.submit("flights", batch(1))).accepted == 1


async def test_closing_the_gate_refuses_requests_not_yet_in_a_record(solo: Solo) -> None:
    request = asyncio.create_task(solo.gate.submit("flights", batch(1), submission(0)))
    await asyncio.sleep(0)
    solo.gate.close("this node steps down")
    with pytest.raises(NotActive):
        await request
    assert solo.stored() == []
    assert solo.gate.budget.taken == 0


async def test_record_of_unknown_fate_is_neither_acked_nor_stored_twice(
    solo: Solo,
) -> None:
    solo.log.hold()
    request = asyncio.create_task(solo.gate.submit("flights", batch(1), submission(0)))
    await async_wait_until(lambda: len(solo.records()) == 1)
    solo.log.refuse(NotActive("suspended"))
    with pytest.raises(NotActive, match="suspended"):
        await request
    solo.log.release()
    assert (await solo.gate.submit("flights", batch(1), submission(0))).position.sequence == 1
    assert flights(solo) == [1]
    assert solo.gate.budget.taken == 0


async def test_failed_journal_ends_every_wait_for_an_ack(
    solo: Solo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(events: Events, payload: bytes) -> Position:
        raise OSError("no disk")

    monkeypatch.setattr(solo.log, "offer", broken)
    with pytest.raises(OSError, match="no disk"):
        await solo.gate.submit("flights", batch(1))
    assert solo.gate.budget.taken == 0


async def test_pending_bytes_are_bounded(tmp_path: Path) -> None:
    size = batch(*range(100)).nbytes
    solo = Solo(tmp_path, ReceiveConfig(max_pending=f"{3 * size}B"))  # type: ignore[arg-type]
    solo.log.hold()
    requests = [
        asyncio.create_task(solo.gate.submit("flights", batch(*range(100)))) for _ in range(3)
    ]
    await asyncio.sleep(0)
    with pytest.raises(Backpressure) as refusal:
        await solo.gate.submit("flights", batch(1))
    assert refusal.value.retry_after_seconds > 0
    solo.log.release()
    await asyncio.gather(*requests)
    assert solo.gate.budget.taken == 0
    await solo.gate.submit("flights", batch(1))
    await solo.close()


async def test_queries_that_are_behind_cause_back_pressure(solo: Solo) -> None:
    solo.backlog.refused = Backpressure("2000000 events wait for the queries", 5.0)
    with pytest.raises(Backpressure, match="wait for the queries"):
        await solo.gate.submit("flights", batch(1))
    assert solo.stored() == []


async def test_client_that_leaves_does_not_affect_others(solo: Solo) -> None:
    leaving = asyncio.create_task(solo.gate.submit("flights", batch(1), submission(0)))
    staying = asyncio.create_task(solo.gate.submit("flights", batch(2)))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).accepted == 1
    assert (await solo.gate.submit("flights", batch(1), submission(0))).accepted == 1
    assert sorted(flights(solo), key=str) == [1, 2]


async def test_an_unknown_stream_is_refused_with_those_that_exist(solo: Solo) -> None:
    with pytest.raises(UnknownStream, match="no stream 'fligths'; the application has flights"):
        await solo.gate.submit("fligths", batch(1))


async def test_thousands_of_producer_ids_make_no_other_producer_forgotten(tmp_path: Path) -> None:
    solo = Solo(tmp_path, ReceiveConfig(max_producers=3))
    original = await solo.gate.submit("flights", batch(1), submission(1))
    others = [
        solo.gate.submit("flights", batch(2), Submission(f"id-{number}", 0, "d", 1))
        for number in range(2000)
    ]
    answers = await asyncio.gather(*others, return_exceptions=True)
    assert sum(isinstance(one, Receipt) for one in answers) == 2
    assert sum(isinstance(one, TooManyProducers) for one in answers) == 1998
    assert await solo.gate.submit("flights", batch(1), submission(1)) == original
    assert await solo.gate.submit("flights", batch(3), submission(2)) != original
    await solo.close()


async def test_a_new_producer_does_not_displace_one_of_a_base(tmp_path: Path) -> None:
    kept = ProducerTable(max_producers=1, dedup_window=1)
    kept.apply(Position(1, 1), Events("flights", 1, 0, (Submission("p", 0, "d", 1),)))
    solo = Solo(tmp_path, ReceiveConfig(max_producers=1))
    solo.gate.load_base(kept.to_table(), {})
    with pytest.raises(TooManyProducers):
        await solo.gate.submit("flights", batch(1), Submission("q", 0, "d", 1))
    await solo.close()
