"""The features of AsyncProducer that ``test_producer`` does not test: batches by size and by the
clock, and work on a shared event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ha_engine.client import Ack, AsyncProducer
from ha_engine.client.over_grpc import OverGrpc
from ha_engine.client.payload import as_line, of_lines
from ha_engine.client.transport import NoAnswer, Request
from ha_engine.errors import InvalidEvents
from tests.receive.solo import Solo, served
from tests.waiting import async_wait_until


@pytest.fixture
async def solo(tmp_path: Path) -> AsyncIterator[Solo]:
    solo = Solo(tmp_path)
    yield solo
    await solo.close()


@pytest.fixture
async def url(solo: Solo) -> AsyncIterator[str]:
    async with served(solo.app()) as url:
        yield url


def events(*flights: int) -> list[dict[str, Any]]:
    return [{"origin": "EWR", "at": "2013-01-01T05:15:00Z", "flight": flight} for flight in flights]


def flights(solo: Solo) -> list[object]:
    return [row["flight"] for row in solo.stored()]


async def test_batch_is_sent_at_its_limit_of_rows_or_bytes(solo: Solo, url: str) -> None:
    acks: list[Ack] = []
    three = 3 * (len(as_line(events(1)[0])) + 1)
    async with AsyncProducer([url], batch_bytes=three, on_ack=acks.append) as producer:
        await producer.send("flights", events(*range(7)))
    async with AsyncProducer([url], batch_rows=2, on_ack=acks.append) as producer:
        await producer.send("flights", events(7, 8, 9))
    assert [ack.rows for ack in acks] == [3, 3, 1, 2, 1]
    assert flights(solo) == list(range(10))


async def test_clock_sends_pending_rows_and_they_are_acked_without_another_call(
    solo: Solo, url: str
) -> None:
    acks: list[Ack] = []
    async with AsyncProducer([url], linger=0.01, on_ack=acks.append) as producer:
        for flight in (1, 2):
            await producer.send("flights", events(flight))
            await async_wait_until(lambda flight=flight: len(acks) == flight)
    assert flights(solo) == [1, 2]


async def test_next_call_raises_the_refusal_of_rows_sent_by_the_clock(solo: Solo, url: str) -> None:
    producer = AsyncProducer([url], linger=0.01)
    await producer.send("flights", [{"origin": 1}])
    await async_wait_until(lambda: solo.gate.counters.requests_rejected)  # type: ignore[attr-defined]
    with pytest.raises(InvalidEvents, match="field 'at' is missing"):
        await producer.flush()
    await producer.abandon()


async def test_rows_wait_for_flush_without_a_clock(solo: Solo, url: str) -> None:
    async with AsyncProducer([url]) as producer:
        await producer.send("flights", events(1))
        await producer.columns("flights")  # takes as long as a request
        assert flights(solo) == []
        await producer.flush()
        assert flights(solo) == [1]


async def test_cancelled_call_keeps_its_request_in_order(solo: Solo, url: str) -> None:
    acks: list[Ack] = []
    solo.log.hold()
    producer = AsyncProducer([url], batch_rows=1, on_ack=acks.append)
    await producer.send("flights", events(1))
    waiting = asyncio.create_task(producer.send("flights", events(2)))
    await async_wait_until(lambda: flights(solo) == [1])
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    solo.log.release()
    await producer.send("flights", events(3))
    await producer.close()
    assert [ack.sequence for ack in acks] == list(range(len(acks)))
    assert flights(solo)[0] == 1
    assert flights(solo)[-1] == 3
    assert producer.rows_acked == len(flights(solo))


async def test_many_tasks_send_concurrently_without_lost_or_mixed_rows(
    solo: Solo, url: str
) -> None:
    async with AsyncProducer([url], batch_rows=7, in_flight=4) as producer:
        parts = [range(start, start + 50) for start in range(0, 500, 50)]
        await asyncio.gather(*(producer.send("flights", events(*part)) for part in parts))
    assert sorted(flights(solo), key=str) == sorted(range(500), key=str)
    assert producer.rows_acked == 500


async def test_requests_over_a_closed_connection_get_no_answer_and_no_cancellation() -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # the kernel accepts its connections
        url = f"grpc://127.0.0.1:{frozen.getsockname()[1]}"
        transport = OverGrpc()
        request = Request("flights", "p", 0, of_lines([b"{}"]))
        asked = [asyncio.create_task(transport.post(url, request, 60)) for _ in range(3)]
        frozen.setblocking(False)
        await asyncio.get_running_loop().sock_accept(frozen)
        await transport.close()
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers] == [NoAnswer] * 3
