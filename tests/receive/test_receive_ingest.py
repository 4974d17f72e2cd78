"""Events over real gRPC: one answer to each request, and no refused request ends its stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from ha_engine.auth import OPEN
from ha_engine.client.payload import of_batch
from ha_engine.config import ReceiveConfig
from ha_engine.config.ingest import IngestConfig
from ha_engine.errors import AddressInUse, Backpressure
from ha_engine.receive.gate import MemoryCounters
from ha_engine.receive.ingest import IngestServer
from ha_engine.receive.intake import Intake
from ha_engine.v1 import ingest_pb2 as pb
from ha_engine.v1 import ingest_pb2_grpc as rpc
from tests.idle_connections import require_bound
from tests.receive.solo import Solo, served
from tests.receive.test_receive_http import EVENT, EVENTS, NDJSON, flights_from
from tests.waiting import async_wait_until

BODY_MAX = 1 << 20
CONNECTIONS_MAX = 10
ADDRESSES = {"http://b:8080": "b:9894"}
Refused = pb.EventsRefused


class Serving:
    """A gate behind Ingest on a real socket of this loop."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.solo = Solo(directory, ReceiveConfig(dedup_window=2))
        base = {"listen": "127.0.0.1:0", "max_body": f"{BODY_MAX}B"}
        self.config = IngestConfig(**(base | settings))
        self.closed = Counter[str]()
        self.server = IngestServer(
            Intake(self.solo.gate),
            self.config,
            OPEN,
            lambda url: ADDRESSES.get(url, ""),
            CONNECTIONS_MAX,
            self.closed,
        )

    async def start(self) -> None:
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.server.port}")
        self.stub: Any = rpc.IngestStub(self.channel)

    async def close(self) -> None:
        await self.channel.close()
        await self.server.stop()
        await self.solo.close()

    async def publish(self, *requests: pb.PublishRequest) -> dict[int, pb.PublishAnswer]:
        """Send the requests; return the answers by id once the stream is over."""
        call = self.stub.Publish(iter(requests))
        return {answer.id: answer async for answer in call}

    @property
    def rejected(self) -> dict[str, int]:
        assert isinstance(self.solo.gate.counters, MemoryCounters)
        return self.solo.gate.counters.requests_rejected


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    serving = Serving(tmp_path)
    await serving.start()
    yield serving
    await serving.close()


def good(request_id: int = 1, **others: Any) -> pb.PublishRequest:
    return pb.PublishRequest(**({"id": request_id, "stream": "flights", "ndjson": EVENT} | others))


def from_p(sequence: int, **others: Any) -> pb.PublishRequest:
    return good(sequence + 1, producer="p", sequence=sequence, **others)


def flights(*numbers: int) -> bytes:
    return b"\n".join(EVENT.replace(b"1545", b"%d" % number) for number in numbers)


# -- stored ----------------------------------------------------------------------------------------


async def test_stored_events_are_acked_with_count_and_position(serving: Serving) -> None:
    arrow = of_batch(flights_from(["EWR", "JFK"])).body
    first = (await serving.publish(good(7, ndjson=EVENT + b"\n" + EVENT)))[7].stored
    second = (await serving.publish(good(8, arrow=arrow)))[8].stored
    assert first == pb.EventsStored(accepted=2, epoch=1, sequence=1)
    assert second == pb.EventsStored(accepted=2, epoch=1, sequence=2)
    assert [row["origin"] for row in serving.solo.stored()] == ["EWR", "EWR", "EWR", "JFK"]


async def test_an_ack_comes_only_when_the_events_are_committed(serving: Serving) -> None:
    serving.solo.log.hold()
    call = serving.stub.Publish()
    await call.write(good())
    await async_wait_until(lambda: serving.solo.stored())
    assert serving.solo.gate.budget.taken > 0
    serving.solo.log.release()
    assert (await call.read()).HasField("stored")


async def test_requests_of_a_stream_are_stored_in_their_order_whatever_their_size(
    serving: Serving,
) -> None:
    """A thread parses a large body, and a small body behind it could overtake it."""
    large = flights(*range(2_000))
    await serving.publish(
        good(1, ndjson=large), good(2, ndjson=flights(2_000)), good(3, ndjson=flights(2_001))
    )
    assert [row["flight"] for row in serving.solo.stored()] == list(range(2_002))


async def test_many_requests_of_many_streams_are_each_answered(serving: Serving) -> None:
    async def one(stream: int) -> int:
        sent = [good(number, ndjson=flights(stream * 100 + number)) for number in range(100)]
        answers = await serving.publish(*sent)
        return sum(answer.HasField("stored") for answer in answers.values())

    assert sum(await asyncio.gather(*map(one, range(10)))) == 1_000
    stored = [row["flight"] for row in serving.solo.stored()]
    assert sorted(stored) == list(range(1_000))  # type: ignore[type-var]


async def test_a_retry_is_acked_and_not_stored_twice(serving: Serving) -> None:
    first = await serving.publish(from_p(0))
    again = await serving.publish(from_p(0))
    assert first == again
    assert len(serving.solo.stored()) == 1


async def test_a_retry_over_the_other_transport_is_not_stored_twice(serving: Serving) -> None:
    app = serving.solo.app()
    headers = NDJSON | {"X-Producer-Id": "p", "X-Sequence": "0"}
    async with served(app) as url, httpx.AsyncClient(base_url=url) as client:
        over_http = await client.post(EVENTS, content=EVENT, headers=headers)
    over_grpc = await serving.publish(from_p(0))
    assert over_http.json()["position"]["sequence"] == over_grpc[1].stored.sequence
    assert len(serving.solo.stored()) == 1


# -- refused: a typed answer, and the stream continues ---------------------------------------------

BAD = {
    "invalid row": (
        good(ndjson=EVENT + b'\n{"origin":1}'),
        Refused(reason=Refused.INVALID_EVENTS, row=1, error="field 'at' is missing"),
    ),
    "invalid row of arrow": (
        good(arrow=of_batch(flights_from(["EWR", None])).body),
        Refused(reason=Refused.INVALID_EVENTS, row=1, error="field 'origin' is null"),
    ),
    "no arrow": (good(arrow=b"x"), Refused(reason=Refused.INVALID_EVENTS, error="not in Arrow")),
    "no payload": (
        pb.PublishRequest(id=1, stream="flights"),
        Refused(reason=Refused.INVALID_EVENTS, error="no payload; send arrow or ndjson"),
    ),
    "half an identity": (
        good(producer="p"),
        Refused(reason=Refused.INVALID_EVENTS, error="producer and sequence belong together"),
    ),
    "a sequence beyond all": (
        good(producer="p", sequence=1 << 63),
        Refused(reason=Refused.INVALID_EVENTS, error="sequence must be a whole number from 0"),
    ),
    "unknown stream": (
        good(stream="nope"),
        Refused(reason=Refused.UNKNOWN_STREAM, error="there is no stream 'nope'"),
    ),
    "too many bytes": (
        good(ndjson=b" " * (BODY_MAX + 1)),
        Refused(reason=Refused.TOO_LARGE, error="raise ingest.max_body"),
    ),
    "too many rows": (
        good(ndjson=b'{"a":1}\n' * 20_001),
        Refused(reason=Refused.TOO_LARGE, error="at most 20000 events"),
    ),
}


@pytest.mark.parametrize(("bad", "expected"), BAD.values(), ids=BAD)
async def test_bad_request_gets_a_typed_refusal_and_the_stream_continues(
    serving: Serving, bad: pb.PublishRequest, expected: pb.EventsRefused
) -> None:
    answers = await serving.publish(good(10), bad, good(11))
    assert same(answers[1].refused, expected)
    assert answers[10].HasField("stored")
    assert answers[11].HasField("stored")
    assert len(serving.solo.stored()) == 2
    assert sum(serving.rejected.values()) == 1
    assert serving.solo.gate.budget.taken == 0


def same(refused: pb.EventsRefused, expected: pb.EventsRefused) -> bool:
    """Compare all fields but the sentence, which contains the expected words."""
    assert expected.error in refused.error
    bare = [pb.EventsRefused(), pb.EventsRefused()]
    for copy, original in zip(bare, (refused, expected), strict=True):
        copy.CopyFrom(original)
        copy.ClearField("error")
    return bare[0] == bare[1]


async def test_reused_sequence_is_a_conflict_and_an_old_one_is_refused(
    serving: Serving,
) -> None:
    answers = await serving.publish(from_p(5), from_p(6, ndjson=flights(6)))
    assert all(answer.HasField("stored") for answer in answers.values())
    answers = await serving.publish(from_p(5, ndjson=flights(5)), from_p(0))
    assert answers[6].refused.reason == Refused.SEQUENCE_CONFLICT
    assert answers[1].refused.reason == Refused.SEQUENCE_FORGOTTEN


async def test_back_pressure_says_when_to_retry(serving: Serving) -> None:
    serving.solo.backlog.refused = Backpressure("the queries are behind", 1.5)
    refused = (await serving.publish(good()))[1].refused
    assert (refused.reason, refused.retry_after_seconds) == (Refused.BACKPRESSURE, 1.5)
    assert serving.rejected == {"Backpressure": 1}


@pytest.mark.parametrize(
    ("active", "address"), [("http://b:8080", "b:9894"), ("http://c:8080", ""), (None, "")]
)
async def test_passive_names_the_active_in_its_refusal(
    serving: Serving, active: str | None, address: str
) -> None:
    serving.solo.gate.close("this node is passive", active)
    refused = (await serving.publish(good()))[1].refused
    assert refused == pb.EventsRefused(
        reason=Refused.NOT_ACTIVE,
        error="this node is passive",
        active=active or "",
        active_address=address,
    )


# -- bounds ----------------------------------------------------------------------------------------


async def test_server_reads_no_more_requests_than_its_bound_allows(tmp_path: Path) -> None:
    serving = Serving(tmp_path, max_in_flight=2)
    await serving.start()
    serving.solo.log.hold()
    call = serving.stub.Publish()
    for request in (good(1), good(2), good(3, ndjson=b"bad")):
        await call.write(request)
    await async_wait_until(lambda: serving.solo.stored())
    for _ in range(
        20
    ):  # the server reads all that it may of the first stream before it answers these
        await serving.publish(good(ndjson=b"bad"))
    assert serving.rejected == {"InvalidEvents": 20}
    serving.solo.log.release()
    answers = [await call.read() for _ in range(3)]
    assert {answer.id: answer.WhichOneof("answer") for answer in answers} == {
        1: "stored",
        2: "stored",
        3: "refused",
    }
    await serving.close()


async def test_message_above_the_size_limit_ends_its_stream_and_no_other(serving: Serving) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await serving.publish(good(ndjson=b" " * (4 * BODY_MAX)))
    assert ended.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await serving.publish(good()))[1].HasField("stored")


async def test_streams_beyond_the_bound_are_refused(tmp_path: Path) -> None:
    serving = Serving(tmp_path, max_streams=1)
    await serving.start()
    call = serving.stub.Publish()
    await call.write(good())
    await call.read()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await serving.publish(good())
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == (
        "the node has ingest.max_streams (1) streams already; close unused ones, or raise the "
        "setting"
    )
    assert serving.closed == {"streams": 1}
    call.cancel()
    await serving.close()


async def test_connections_beyond_the_bound_are_closed(serving: Serving) -> None:
    await require_bound(serving.server.port, CONNECTIONS_MAX)


async def test_requests_of_a_producer_that_leaves_are_dropped(serving: Serving) -> None:
    serving.solo.log.hold()
    call = serving.stub.Publish()
    await call.write(good())
    await async_wait_until(lambda: serving.solo.stored())
    call.cancel()
    serving.solo.log.release()
    await async_wait_until(lambda: serving.solo.gate.budget.taken == 0)
    assert (await serving.publish(good()))[1].HasField("stored")


# -- the server ------------------------------------------------------------------------------------


async def test_a_stream_shows_its_columns(serving: Serving) -> None:
    seen = await serving.stub.Describe(pb.DescribeRequest(stream="flights"))
    assert seen.columns[1] == pb.StreamColumn(name="at", type="timestamp[us, tz=UTC]")
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await serving.stub.Describe(pb.DescribeRequest(stream="nope"))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    assert "the application has flights" in (unknown.value.details() or "")


async def test_address_in_use_is_an_error_only_if_configured(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = f"127.0.0.1:{serving.server.port}"
    monkeypatch.setattr("ha_engine.receive.ingest.DEFAULT_LISTEN", taken)
    for listen, refused in ((taken, pytest.raises(AddressInUse)), (None, contextlib.nullcontext())):
        second = Serving(tmp_path / str(listen), listen=listen)
        with refused:
            await second.server.start()
        assert second.server.address == ""
        await second.server.stop()
        await second.solo.close()
