"""Remote write and CloudEvents over real HTTP: answers, acks, retries, limits and refusals."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ha_engine.auth import Access, Right, digest_of
from ha_engine.errors import Backpressure
from ha_engine.receive.gate import MemoryCounters
from tests.receive import remote_write as prw
from tests.receive.solo import Solo, served
from tests.receive.test_cloud_events import BINARY, EVENT
from tests.receive.test_cloud_events import ORDERS as ORDERS_SCHEMA
from tests.receive.test_remote_write import SCHEMA as METRICS_SCHEMA
from tests.receive.test_remote_write import UP
from tests.waiting import async_wait_until

METRICS, ORDERS = "/v1/streams/metrics/remote-write", "/v1/streams/orders/cloudevents"
SCHEMAS = {"metrics": METRICS_SCHEMA, "orders": ORDERS_SCHEMA}
MAX_BODY = 1 << 20
SERIES = [prw.Series(UP, [(1.0, 1_000), (2.0, 2_000)])]
BODY = prw.snappy(prw.version_1(SERIES))
STRUCTURED = {"Content-Type": "application/cloudevents+json; charset=UTF-8"}
BATCH = {"Content-Type": "application/cloudevents-batch+json"}
ORDER = EVENT | {"data": {"order": 1}}
TWICE = {"X-Producer-Id": "p", "X-Sequence": "0"}


@pytest.fixture
async def solo(tmp_path: Path) -> AsyncIterator[Solo]:
    solo = Solo(tmp_path, schemas=SCHEMAS)
    yield solo
    await solo.close()


@pytest.fixture
async def client(solo: Solo) -> AsyncIterator[httpx.AsyncClient]:
    app = solo.app(max_body=MAX_BODY, body_within_seconds=1.0)
    async with served(app) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield client


async def write(
    client: httpx.AsyncClient, body: Any = BODY, headers: dict[str, str] | None = None
) -> httpx.Response:
    return await client.post(METRICS, content=body, headers=prw.VERSION_1 | (headers or {}))


async def publish(
    client: httpx.AsyncClient, event: Any = ORDER, headers: dict[str, str] | None = None
) -> httpx.Response:
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    return await client.post(ORDERS, content=body, headers=STRUCTURED | (headers or {}))


async def senders(client: httpx.AsyncClient) -> list[httpx.Response]:
    """Send a good request of each protocol."""
    return [await write(client), await publish(client)]


def written(answer: httpx.Response) -> list[str]:
    names = ("samples", "histograms", "exemplars")
    return [answer.headers[f"x-prometheus-remote-write-{name}-written"] for name in names]


# -- stored ----------------------------------------------------------------------------------------


async def test_samples_of_both_versions_are_stored_and_counted_in_the_answer(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    second = prw.snappy(prw.version_2(SERIES))
    for answer in (await write(client), await write(client, second, prw.VERSION_2)):
        assert (answer.status_code, answer.content) == (204, b"")
        assert written(answer) == ["2", "0", "0"]
    assert [row["value"] for row in solo.stored()] == [1.0, 2.0, 1.0, 2.0]


async def test_a_large_request_is_stored(solo: Solo, client: httpx.AsyncClient) -> None:
    many = [prw.Series([*UP, ("n", str(n))], [(1.0, 0)]) for n in range(5_000)]
    assert written(await write(client, prw.snappy(prw.version_1(many)))) == ["5000", "0", "0"]
    events = [EVENT | {"data": {"order": n}} for n in range(5_000)]
    assert (await publish(client, events, BATCH)).status_code == 204
    assert len(solo.stored()) == 10_000


async def test_metadata_and_an_empty_batch_are_acked_without_a_record(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    body = prw.snappy(prw.version_1([], metadata=True))
    assert written(await write(client, body, TWICE)) == ["0", "0", "0"]
    assert (await publish(client, [], BATCH)).status_code == 204
    assert solo.records() == []


async def test_events_of_each_mode_are_stored_and_acked_without_a_body(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    answers = [
        await client.post(ORDERS, content=b'{"order": 0}', headers=BINARY),
        await publish(client, ORDER),
        await publish(client, [ORDER, ORDER], BATCH),
    ]
    assert [(answer.status_code, answer.content) for answer in answers] == [(204, b"")] * 3
    assert [(row["ce_id"], row["order"]) for row in solo.stored()] == [
        ("7", 0),
        ("7", 1),
        ("7", 1),
        ("7", 1),
    ]


async def test_events_that_arrive_together_are_answered_each_for_itself(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    events = [EVENT | {"data": {"order": number}} for number in range(50)]
    events[20] = EVENT | {"data": {"order": "x"}}
    answers = await asyncio.gather(*(publish(client, event) for event in events))
    assert [answer.status_code for answer in answers].count(400) == 1
    assert {row["order"] for row in solo.stored()} == set(range(50)) - {20}


async def test_a_gzip_event_is_stored(solo: Solo, client: httpx.AsyncClient) -> None:
    body = gzip.compress(json.dumps(ORDER).encode())
    answer = await publish(client, body, {"Content-Encoding": "gzip"})
    assert (answer.status_code, len(solo.stored())) == (204, 1)


async def test_the_ack_waits_for_the_commit(solo: Solo, client: httpx.AsyncClient) -> None:
    solo.log.hold()
    sent = asyncio.gather(write(client), publish(client))
    await async_wait_until(lambda: len(solo.records()) == 2, within=10)
    assert not sent.done()
    solo.log.release()
    assert [answer.status_code for answer in await sent] == [204, 204]


# -- web hooks -------------------------------------------------------------------------------------


async def test_sender_of_web_hooks_that_asks_may_send(client: httpx.AsyncClient) -> None:
    asked = {"WebHook-Request-Origin": "events.example.com", "WebHook-Request-Rate": "120"}
    answer = await client.options(ORDERS, headers=asked)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["webhook-allowed-origin"] == "events.example.com"
    assert answer.headers["webhook-allowed-rate"] == "*"
    assert answer.headers["allow"] == "OPTIONS, POST"
    assert (await publish(client, headers=asked)).status_code == 204


async def test_nobody_may_send_web_hooks_unasked_or_to_an_unknown_stream(
    client: httpx.AsyncClient,
) -> None:
    asked = {"WebHook-Request-Origin": "events.example.com"}
    unknown = await client.options(ORDERS.replace("orders", "none"), headers=asked)
    assert unknown.status_code == 404
    for answer in (unknown, await client.options(ORDERS), await client.options(METRICS)):
        assert "webhook-allowed-origin" not in answer.headers


# -- retries ---------------------------------------------------------------------------------------


async def test_a_retry_with_the_same_sequence_is_stored_once(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    for _ in range(2):
        assert written(await write(client, headers=TWICE))[0] == "2"
        assert (await publish(client, headers=TWICE | {"X-Producer-Id": "q"})).status_code == 204
    assert len(solo.stored()) == 3


async def test_a_sequence_with_other_headers_of_the_event_is_a_conflict(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    answers = [
        await client.post(ORDERS, content=b"{}", headers=BINARY | TWICE | {"ce-id": number})
        for number in ("1", "2")
    ]
    assert [answer.status_code for answer in answers] == [204, 409]
    assert len(solo.stored()) == 1


# -- refusals --------------------------------------------------------------------------------------


async def test_a_bad_sample_or_event_is_400_and_nothing_is_stored(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    bad = prw.snappy(prw.version_1([*SERIES, prw.Series(UP[1:], [(1.0, 0)])]))
    answers = [await write(client, bad), await publish(client, [ORDER, EVENT | {"id": ""}], BATCH)]
    assert [(answer.status_code, answer.json()["row"]) for answer in answers] == [
        (400, 2),
        (400, 1),
    ]
    assert written(answers[0]) == ["0", "0", "0"]
    assert solo.stored() == []


async def test_a_stream_that_fits_no_samples_is_400(client: httpx.AsyncClient) -> None:
    answer = await client.post(
        METRICS.replace("metrics", "orders"), content=BODY, headers=prw.VERSION_1
    )
    assert answer.status_code == 400
    assert "has no column 'time'" in answer.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "identity"},
        {"Content-Type": "application/json"},
        {"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v3.Request"},
    ],
)
async def test_other_formats_of_samples_are_415(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert (await write(client, headers=headers)).status_code == 415


async def test_snappy_is_for_samples_only(client: httpx.AsyncClient) -> None:
    assert (await publish(client, headers={"Content-Encoding": "snappy"})).status_code == 415


async def test_an_event_with_a_header_twice_is_400(client: httpx.AsyncClient) -> None:
    headers = [*BINARY.items(), ("ce-id", "8")]
    answer = await client.post(ORDERS, content=b"{}", headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"] == "the header ce-id occurs more than once"


@pytest.mark.parametrize(
    "body", [b"", b"\x05", b"\x05\x10hell", b"\xff" * 10, BODY[:-1], BODY + b"x", b"{}"]
)
async def test_a_body_that_is_not_snappy_is_400(
    solo: Solo, client: httpx.AsyncClient, body: bytes
) -> None:
    assert (await write(client, body)).status_code == 400
    assert solo.stored() == []


async def test_a_snappy_body_is_refused_by_the_size_that_it_states(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    """Nothing is allocated for a size above the limit: 4 GiB would be too much for this host."""
    states = prw.varint((1 << 32) - 1) + b"\0" * 100
    bomb = prw.snappy(b"\x0a\x00" * MAX_BODY)
    for body in (states, bomb):
        assert len(body) < MAX_BODY
        assert (await write(client, body)).status_code == 413
    assert solo.gate.budget.taken == 0


async def test_memory_of_a_body_is_reserved_before_it_is_unpacked(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    solo.gate.budget.take(solo.gate.budget.size - len(BODY) - 10)
    answer = await write(client)
    assert answer.status_code == 503
    solo.gate.budget.give(solo.gate.budget.size - len(BODY) - 10)
    assert (await write(client)).status_code == 204


async def test_an_unknown_stream_is_404(client: httpx.AsyncClient) -> None:
    for path, headers in ((METRICS, prw.VERSION_1), (ORDERS, STRUCTURED)):
        unknown = path.replace("metrics", "none").replace("orders", "none")
        assert (await client.post(unknown, content=b"", headers=headers)).status_code == 404


async def test_a_passive_answers_503_and_names_the_active(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    solo.gate.close("this node is passive", "http://b:8080")
    for answer in await senders(client):
        assert (answer.status_code, answer.json()["active"]) == (503, "http://b:8080")


async def test_backpressure_is_an_answer_after_which_the_sender_repeats(
    solo: Solo, client: httpx.AsyncClient
) -> None:
    """By default Prometheus drops samples that get 429."""
    solo.backlog.refused = Backpressure("the queries are behind", 2.0)
    samples, events = await senders(client)
    assert (samples.status_code, samples.headers["retry-after"]) == (503, "2")
    assert (events.status_code, events.headers["retry-after"]) == (429, "2")


async def test_a_slow_body_is_an_answer_after_which_the_sender_repeats(
    client: httpx.AsyncClient,
) -> None:
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    headers = "".join(f"{name}: {value}\r\n" for name, value in prw.VERSION_1.items())
    head = f"POST {METRICS} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n{headers}\r\n"
    writer.write(head.encode() + BODY[:3])
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 503")
    writer.close()


async def test_refusals_are_counted_by_reason(solo: Solo, client: httpx.AsyncClient) -> None:
    await write(client, b"")
    await write(client, headers={"Content-Encoding": "gzip"})
    await publish(client, b"")
    assert isinstance(solo.gate.counters, MemoryCounters)
    assert solo.gate.counters.requests_rejected == {"InvalidEvents": 2, "UnsupportedFormat": 1}


async def test_senders_need_a_token_with_the_right_to_send(tmp_path: Path) -> None:
    solo = Solo(tmp_path, schemas=SCHEMAS)
    tokens = {Right.INGEST: "secret", Right.READ: "other"}
    access = Access.of({right: {"x": digest_of(token)} for right, token in tokens.items()})
    async with served(solo.app(access=access)) as url:
        for token, statuses in (
            (None, [401, 401]),
            ("other", [403, 403]),
            ("secret", [204, 204]),
        ):
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            async with httpx.AsyncClient(base_url=url, headers=headers) as client:
                assert [answer.status_code for answer in await senders(client)] == statuses
                asked = await client.options(ORDERS, headers={"WebHook-Request-Origin": "a.b"})
                assert asked.status_code == (statuses[1] if statuses[1] != 204 else 200)
    await solo.close()
