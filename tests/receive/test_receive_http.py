"""Events over real HTTP: every answer of the public interface, every kind of bad input."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pytest

from ha_engine.client.payload import of_batch
from ha_engine.errors import Backpressure
from ha_engine.receive.gate import MemoryCounters
from tests.receive.solo import Solo, served
from tests.waiting import async_wait_until

NDJSON = {"Content-Type": "application/x-ndjson"}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
EVENTS = "/v1/streams/flights/events"
EVENT = b'{"origin":"EWR","at":"2013-01-01T05:15:00Z","delay":2,"flight":1545}'
MAX_BODY = 1 << 20


@pytest.fixture
async def solo(tmp_path: Path) -> AsyncIterator[Solo]:
    solo = Solo(tmp_path)
    yield solo
    await solo.close()


@pytest.fixture
async def client(solo: Solo) -> AsyncIterator[httpx.AsyncClient]:
    app = solo.app(max_body=MAX_BODY, body_within_seconds=1.0)
    async with served(app) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield client


async def post(
    client: httpx.AsyncClient,
    content: Any,
    headers: dict[str, str] | None = None,
    path: str = EVENTS,
) -> httpx.Response:
    return await client.post(path, content=content, headers=NDJSON | (headers or {}))


async def test_stored_events_are_acked_with_count_and_position(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    answer = await post(client, EVENT + b"\n" + EVENT)
    assert (answer.status_code, answer.json()) == (
        200,
        {"accepted": 2, "position": {"epoch": 1, "sequence": 1}},
    )
    assert [row["flight"] for row in solo.stored()] == [1545, 1545]


@pytest.mark.parametrize("body", [EVENT, b"[" + EVENT + b"," + EVENT + b"]"])
async def test_json_object_and_json_array_are_accepted(
    solo: Solo, client: httpx.AsyncClient, body: bytes
) -> None:
    answer = await post(client, body, {"Content-Type": "application/json"})
    assert answer.json()["accepted"] == len(solo.stored()) == body.count(b"EWR")


async def test_large_body_is_accepted(solo: Solo, client: httpx.AsyncClient) -> None:
    answer = await post(client, b"\n".join([EVENT] * 10_000))
    assert answer.json()["accepted"] == len(solo.stored()) == 10_000


async def test_gzip_body_is_accepted(solo: Solo, client: httpx.AsyncClient) -> None:
    answer = await post(client, gzip.compress(EVENT), {"Content-Encoding": "gzip"})
    assert answer.json()["accepted"] == len(solo.stored()) == 1


async def test_arrow_stream_is_accepted_as_one_request(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    identity = ARROW | {"X-Producer-Id": "p", "X-Sequence": "0"}
    answers = [await post(client, arrow(origin=["EWR", "JFK"]), identity) for _ in range(2)]
    assert answers[0].json() == {"accepted": 2, "position": {"epoch": 1, "sequence": 1}}
    assert answers[1].content == answers[0].content
    assert [row["origin"] for row in solo.stored()] == ["EWR", "JFK"]


async def test_large_arrow_stream_is_accepted(solo: Solo, client: httpx.AsyncClient) -> None:
    answer = await post(client, arrow(origin=["EWR"] * 10_000), ARROW)
    assert answer.json()["accepted"] == len(solo.stored()) == 10_000


async def test_a_bad_row_of_arrow_is_400_with_row_and_reason(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    answer = await post(client, arrow(origin=["EWR", None]), ARROW)
    assert answer.status_code == 400
    assert (answer.json()["row"], answer.json()["reason"]) == (
        1,
        "field 'origin' is null, but the stream declares it not null",
    )
    assert solo.stored() == []


async def test_many_connections_lose_and_mix_no_events(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    bodies = [EVENT.replace(b"1545", str(number).encode()) for number in range(300)]
    bodies[100] = b'{"origin":1}'
    answers = await asyncio.gather(*(post(client, body) for body in bodies))
    assert [answer.status_code for answer in answers].count(400) == 1
    stored = [row["flight"] for row in solo.stored()]
    assert sorted(stored, key=str) == sorted(set(range(300)) - {100}, key=str)


def flights_from(origin: list[str | None]) -> pa.RecordBatch:
    at = pa.array([0] * len(origin), pa.timestamp("ms", tz="UTC"))
    return pa.RecordBatch.from_pydict({"at": at, "origin": origin})


def arrow(origin: list[str | None]) -> bytes:
    return of_batch(flights_from(origin)).body


# -- retries ---------------------------------------------------------------------------------------


async def test_a_retry_is_acked_and_not_stored_twice(solo: Solo, client: httpx.AsyncClient) -> None:
    identity = {"X-Producer-Id": "p", "X-Sequence": "0"}
    answers = [await post(client, EVENT, identity) for _ in range(3)]
    assert len({answer.content for answer in answers}) == 1
    assert len(solo.stored()) == 1


async def test_a_repeated_sequence_with_another_payload_is_409(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    identity = {"X-Producer-Id": "p", "X-Sequence": "0"}
    await post(client, EVENT, identity)
    answer = await post(client, EVENT + b"\n" + EVENT, identity)
    assert (answer.status_code, answer.json()["conflict"]) == (409, "payload")
    assert len(solo.stored()) == 1


@pytest.mark.parametrize(
    "identity",
    [
        {"X-Producer-Id": "p"},
        {"X-Sequence": "0"},
        {"X-Producer-Id": "", "X-Sequence": "0"},
        {"X-Producer-Id": "a b", "X-Sequence": "0"},
        {"X-Producer-Id": "p" * 129, "X-Sequence": "0"},
        {"X-Producer-Id": "p", "X-Sequence": "-1"},
        {"X-Producer-Id": "p", "X-Sequence": "1e3"},
        {"X-Producer-Id": "p", "X-Sequence": str(1 << 63)},
    ],
)
async def test_a_wrong_identity_is_400(
    solo: Solo, client: httpx.AsyncClient, identity: dict[str, str]
) -> None:
    assert (await post(client, EVENT, identity)).status_code == 400
    assert solo.stored() == []


async def test_a_header_that_occurs_twice_is_400(solo: Solo, client: httpx.AsyncClient) -> None:
    twice = [("X-Producer-Id", "p"), ("X-Sequence", "0"), ("X-Sequence", "1")]
    answer = await client.post(EVENTS, content=EVENT, headers=[*NDJSON.items(), *twice])
    assert answer.status_code == 400
    assert answer.json()["error"] == "the header x-sequence occurs more than once"
    assert solo.stored() == []


# -- bad input: a clear answer, no event stored, no crash ------------------------------------------


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (b'{"origin":1,"at":"2013-01-01"}', "field 'origin' is 1, expected a string"),
        (b'{"origin":"EWR"}', "field 'at' is missing"),
        (b'{"origin":null,"at":"2013-01-01"}', "field 'origin' is null"),
        (b'{"origin":"EWR","at":"2013-01-01","x":1}', "the stream has no field 'x'"),
        (b'{"origin":"EWR","at":"2013-01-01","delay":NaN}', "field 'delay' is NaN"),
        (b"null", "an event must be a JSON object"),
        (b'{"origin":"EWR",', "not valid JSON"),
        (b'{"origin":"\xff","at":"2013-01-01"}', "not valid UTF-8"),
        (b'{"origin":' * ((512 << 10) // 10), "nested too deep"),
    ],
)
async def test_a_bad_row_is_400_with_row_and_reason_and_nothing_is_stored(
    solo: Solo, client: httpx.AsyncClient, event: bytes, reason: str
) -> None:
    answer = await post(client, EVENT + b"\n" + event)
    assert answer.status_code == 400
    assert answer.json()["row"] == 1
    assert reason in answer.json()["reason"]
    assert solo.stored() == []
    assert (await post(client, EVENT)).status_code == 200


@pytest.mark.parametrize("content_type", ["application/x-ndjson", "application/json"])
async def test_two_mebibytes_of_nesting_are_400(tmp_path: Path, content_type: str) -> None:
    solo = Solo(tmp_path)
    async with served(solo.app()) as url, httpx.AsyncClient(base_url=url) as client:
        answer = await post(client, b"[" * (2 << 20), {"Content-Type": content_type})
        assert answer.status_code == 400
        assert (await post(client, EVENT)).status_code == 200
    await solo.close()


async def test_an_empty_body_is_400(client: httpx.AsyncClient) -> None:
    answer = await post(client, b"")
    assert (answer.status_code, answer.json()["row"]) == (400, None)


async def test_an_unknown_stream_is_404(client: httpx.AsyncClient) -> None:
    answer = await post(client, EVENT, path="/v1/streams/nope/events")
    assert answer.status_code == 404
    assert "the application has flights" in answer.json()["error"]


async def test_another_method_is_405(client: httpx.AsyncClient) -> None:
    answer = await client.get(EVENTS)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/csv"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Encoding": "br"},
    ],
)
async def test_another_format_is_415(
    solo: Solo, client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await post(client, EVENT, headers)
    assert answer.status_code == 415
    assert answer.json()["error"]
    assert solo.stored() == []


async def test_a_body_of_100_mib_is_413_by_its_length_and_never_in_memory(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    before = psutil.Process().memory_info().rss
    chunk = b" " * (1 << 20)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield chunk

    answer = await post(client, body(), {"Content-Length": str(100 << 20)})
    assert answer.status_code == 413
    assert psutil.Process().memory_info().rss - before < 20 << 20
    assert (await post(client, EVENT)).status_code == 200


async def test_a_body_of_unknown_length_is_413_while_it_streams(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * (1 << 20)

    answer = await post(client, body())
    assert answer.status_code == 413
    assert "larger than 1048576 bytes" in answer.json()["error"]
    assert solo.gate.budget.taken == 0


async def test_a_gzip_bomb_is_413(solo: Solo, client: httpx.AsyncClient) -> None:
    bomb = gzip.compress(b" " * (100 << 20))
    answer = await post(client, bomb, {"Content-Encoding": "gzip"})
    assert answer.status_code == 413
    assert solo.gate.budget.taken == 0


ZIPPED = gzip.compress(EVENT, mtime=0)


@pytest.mark.parametrize("body", [EVENT, ZIPPED[:-4], ZIPPED + b"x"])
async def test_broken_gzip_is_400(solo: Solo, client: httpx.AsyncClient, body: bytes) -> None:
    assert (await post(client, body, {"Content-Encoding": "gzip"})).status_code == 400
    assert solo.stored() == []


async def test_too_many_rows_are_413(solo: Solo, client: httpx.AsyncClient) -> None:
    answer = await post(client, b'{"a":1}\n' * 20_001)
    assert answer.status_code == 413
    assert "at most 20000 events" in answer.json()["error"]


async def test_a_body_that_trickles_is_408(solo: Solo, client: httpx.AsyncClient) -> None:
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(
        f"POST {EVENTS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Content-Length: 1000\r\n\r\n{".encode()
    )
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"did not arrive within 1 s" in answer
    assert solo.gate.budget.taken == 0
    writer.close()


async def test_request_of_a_client_that_leaves_is_dropped(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(
        f"POST {EVENTS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Content-Length: 1000\r\n\r\n{".encode()
    )
    await async_wait_until(lambda: solo.gate.budget.taken == 1)
    writer.close()
    await async_wait_until(lambda: solo.gate.budget.taken == 0, within=0.9)


# -- temporary refusals ----------------------------------------------------------------------------


async def test_a_node_that_is_not_active_is_503_with_the_active(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    solo.gate.close("this node is passive", "http://b:8080")
    answer = await post(client, EVENT)
    assert (answer.status_code, answer.json()["active"]) == (503, "http://b:8080")
    assert answer.json()["error"] == "this node is passive"


async def test_back_pressure_is_429_with_retry_after(solo: Solo, client: httpx.AsyncClient) -> None:
    solo.backlog.refused = Backpressure("2000000 events wait for the queries", 1.5)
    answer = await post(client, EVENT)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert answer.json()["retry_after_seconds"] == 1.5


async def test_rejections_are_counted_by_kind(solo: Solo, client: httpx.AsyncClient) -> None:
    await post(client, b"1")
    await post(client, EVENT, path="/v1/streams/nope/events")
    assert isinstance(solo.gate.counters, MemoryCounters)
    assert solo.gate.counters.requests_rejected == {"InvalidEvents": 1, "UnknownStream": 1}


# -- the stream itself -----------------------------------------------------------------------------


async def test_a_stream_shows_its_columns(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/streams/flights")).json() == {
        "name": "flights",
        "schema": [
            {"name": "origin", "type": "string", "nullable": False},
            {"name": "at", "type": "timestamp[us, tz=UTC]", "nullable": False},
            {"name": "delay", "type": "double", "nullable": True},
            {"name": "flight", "type": "int64", "nullable": True},
        ],
    }
    unknown = await client.get("/v1/streams/nope")
    assert unknown.status_code == 404
    assert unknown.json()["error"]


def _mutations() -> Iterator[bytes]:
    for index in range(len(EVENT)):
        yield EVENT[:index] + EVENT[index + 1 :]
        yield EVENT[:index] + b"\x00" + EVENT[index + 1 :]
        yield EVENT[:index]


async def test_no_mutation_of_an_event_is_a_server_error(client: httpx.AsyncClient) -> None:
    for body in _mutations():
        answer = await post(client, body)
        assert answer.status_code in (200, 400), json.dumps(body.decode("latin-1"))
