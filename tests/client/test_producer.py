"""The producer against real nodes, over HTTP and over gRPC: it finds the active, and no event is
stored twice."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from starlette.applications import Starlette

from ha_engine.auth import OPEN, Access, Right, digest_of
from ha_engine.client import endpoints
from ha_engine.client.over_grpc import OverGrpc
from ha_engine.client.over_http import OverHttp
from ha_engine.client.payload import as_line
from ha_engine.client.producer import Ack, Producer
from ha_engine.client.transport import RemoteColumn
from ha_engine.config import IngestConfig, ReceiveConfig
from ha_engine.config.server_tls import ServerTls
from ha_engine.errors import (
    Backpressure,
    ConfigError,
    DeliveryFailed,
    InvalidEvents,
    NotActive,
    NotAllowed,
    PayloadTooLarge,
    SequenceConflict,
    SequenceForgotten,
    UnknownStream,
)
from ha_engine.receive.ingest import IngestServer
from ha_engine.receive.intake import Intake
from tests.client.serving import PLAIN
from tests.receive.solo import SCHEMA, Solo, served
from tests.waiting import wait_until

GRPC = "grpc://"


class Node:
    """A gate that serves from a separate thread; ``call`` runs a function on its loop."""

    def __init__(
        self,
        directory: Path,
        config: ReceiveConfig | None = None,
        wrap: Callable[[Starlette], Any] = lambda app: app,
        scheme: str = "http://",
        access: Access = OPEN,
        tls: ServerTls = PLAIN,
    ) -> None:
        self._directory, self._config, self._wrap = directory, config, wrap
        self._scheme, self._access, self._tls = scheme, access, tls
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(10)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.solo = Solo(self._directory, self._config)
        async with self._served() as self.url:
            self._ready.set()
            await self._stop.wait()
        await self.solo.close()

    @contextlib.asynccontextmanager
    async def _served(self) -> AsyncIterator[str]:
        if not self._scheme.startswith("grpc"):
            async with served(self._wrap(self.solo.app(access=self._access))) as url:
                yield url
            return
        config = IngestConfig(listen="127.0.0.1:0", tls=self._tls)
        intake = Intake(self.solo.gate)
        server = IngestServer(
            intake, config, self._access, self._address, config.max_streams, Counter()
        )
        await server.start()
        yield f"{self._scheme}127.0.0.1:{server.port}"
        await server.stop()

    def _address(self, url: str) -> str:
        return url.removeprefix(self._scheme)

    def call(self, action: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return action()

        work: Coroutine[Any, Any, Any] = run()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def flights(self) -> list[object]:
        return [row["flight"] for row in self.call(self.solo.stored)]

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(20)
            assert not self._thread.is_alive()


@pytest.fixture(params=["http://", GRPC])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def node(tmp_path: Path, scheme: str) -> Iterator[Node]:
    node = Node(tmp_path / "a", scheme=scheme)
    yield node
    node.stop()


@pytest.fixture
def other(tmp_path: Path, scheme: str) -> Iterator[Node]:
    node = Node(tmp_path / "b", scheme=scheme)
    yield node
    node.stop()


@pytest.fixture
def node_over_grpc(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, scheme=GRPC)
    yield node
    node.stop()


def events(*flights: int) -> list[dict[str, Any]]:
    return [{"origin": "EWR", "at": "2013-01-01T05:15:00Z", "flight": flight} for flight in flights]


def test_rows_are_batched_and_stored_in_the_order_of_their_acks(node: Node) -> None:
    acks: list[Ack] = []
    with Producer([node.url], batch_rows=10, on_ack=acks.append) as producer:
        producer.send("flights", events(*range(25)))
        producer.flush()
        assert producer.rows_acked == 25
    assert sorted(node.flights(), key=int) == list(range(25))  # type: ignore[call-overload]
    assert [(ack.sequence, ack.first_row, ack.rows) for ack in acks] == [
        (0, 0, 10),
        (1, 10, 10),
        (2, 20, 5),
    ]


def test_producer_without_the_right_fails_at_once_and_with_it_sends(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = {"may": Right.INGEST, "reads": Right.READ, "rules": Right.ADMIN}
    access = Access.of({right: {token: digest_of(token)} for token, right in tokens.items()})
    guarded = Node(tmp_path / "c", scheme=scheme, access=access)
    try:
        for token in ("", "unknown", "reads"):
            monkeypatch.setenv("HA_ENGINE_TOKEN", token)
            with pytest.raises(NotAllowed, match="HA_ENGINE_TOKEN"), Producer([guarded.url]) as one:
                one.send("flights", events(1))
            with pytest.raises(NotAllowed), Producer([guarded.url]) as one:
                one.columns("flights")
        for token in ("may", "rules"):
            monkeypatch.setenv("HA_ENGINE_TOKEN", token)
            with Producer([guarded.url]) as one:
                one.send("flights", events(2))
        assert guarded.flights() == [2, 2]
    finally:
        guarded.stop()


def test_malformed_token_raises_in_the_caller_and_logs_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HA_ENGINE_TOKEN", "two words")
    with pytest.raises(ConfigError, match="the token alone"), Producer([node.url]) as producer:
        producer.send("flights", events(1))
    assert caplog.messages == []


def test_python_values_and_record_batches_arrive_in_the_types_of_the_stream(node: Node) -> None:
    at = dt.datetime(2013, 1, 1, 5, 15, tzinfo=dt.UTC)
    row = {"origin": "EWR", "at": at, "delay": -1.5, "flight": 1}
    with Producer([node.url]) as producer:
        producer.send("flights", [row])
        producer.send("flights", pa.RecordBatch.from_pylist([row], schema=SCHEMA))
    assert node.call(node.solo.stored) == [row, row]
    line = as_line({"day": dt.date(2013, 1, 1), "price": Decimal("1.10"), "raw": b"hi"})
    assert line == b'{"day":"2013-01-01","price":"1.10","raw":"aGk="}'


def test_arrow_batches_are_sent_unchanged_and_split_into_requests(node: Node) -> None:
    acks: list[Ack] = []
    at = pa.array([0] * 25, pa.timestamp("ns"))
    origin = pa.array(["EWR"] * 25).dictionary_encode()
    batch = pa.RecordBatch.from_pydict({"flight": range(25), "at": at, "origin": origin})
    with Producer([node.url], batch_rows=10, on_ack=acks.append) as producer:
        producer.send("flights", events(-1))
        producer.send_batch("flights", batch)
    assert node.flights() == list(range(-1, 25))
    assert [(ack.first_row, ack.rows) for ack in acks] == [(0, 1), (1, 10), (11, 10), (21, 5)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_value_without_a_json_form_is_refused_before_sending(node: Node, value: object) -> None:
    producer = Producer([node.url])
    with pytest.raises(InvalidEvents, match="cannot be sent as JSON"):
        producer.send("flights", [{"delay": value}])
    producer.abandon()


def test_producer_finds_the_active_through_the_passive(node: Node, other: Node) -> None:
    node.call(lambda: node.solo.gate.close("this node is passive", other.url))
    with Producer([node.url]) as producer:
        producer.send("flights", events(1))
    assert (node.flights(), other.flights()) == ([], [1])


def test_producer_skips_a_dead_node(node: Node, other: Node) -> None:
    node.stop()
    with Producer([node.url, other.url]) as producer:
        producer.send("flights", events(1))
    assert other.flights() == [1]


def test_producer_skips_an_unreachable_address(node: Node, other: Node, scheme: str) -> None:
    """The passive is the first in the list, and names an address of the active that only hosts
    reach."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        inside = f"{scheme}127.0.0.1:{closed.getsockname()[1]}"
    node.call(lambda: node.solo.gate.close("this node is passive", inside))
    with Producer([node.url, other.url], deadline=20) as producer:
        producer.send("flights", events(1))
    assert (node.flights(), other.flights()) == ([], [1])


def test_producer_waits_for_a_node_that_becomes_active_later(node: Node) -> None:
    node.call(lambda: node.solo.gate.close("no active yet"))
    producer = Producer([node.url], batch_rows=1)
    producer.send("flights", events(1))
    wait_until(lambda: node.solo.gate.counters.requests_rejected.get("NotActive", 0) >= 3)  # type: ignore[attr-defined]
    node.call(node.solo.gate.open)
    producer.close()
    assert node.flights() == [1]


@contextlib.contextmanager
def sending_to_a_frozen_active(node: Node, scheme: str) -> Iterator[tuple[Producer, socket.socket]]:
    """Return a producer that sends to a frozen active, which the passive ``node`` names."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # the kernel accepts its connections
        url = f"{scheme}127.0.0.1:{frozen.getsockname()[1]}"
        node.call(lambda: node.solo.gate.close("this node is passive", url))
        producer = Producer([url, node.url], batch_rows=1)
        producer.send("flights", events(1))
        yield producer, frozen


def has_refused_twice(node: Node) -> None:
    wait_until(lambda: node.solo.gate.counters.requests_rejected.get("NotActive", 0) >= 2)  # type: ignore[attr-defined]


def test_producer_does_not_retry_a_frozen_active_during_a_takeover(
    node: Node, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "SILENT_SECONDS", 600)
    asked = asked_over(OverGrpc if scheme.startswith("grpc") else OverHttp, monkeypatch)
    with sending_to_a_frozen_active(node, scheme) as (producer, frozen):
        has_refused_twice(node)
        node.call(node.solo.gate.open)
        producer.close()
        assert node.flights() == [1]
        assert asked.count(f"{scheme}127.0.0.1:{frozen.getsockname()[1]}") == 1


def asked_over(
    transport: type[OverGrpc] | type[OverHttp], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Record the nodes that the producer asks; gRPC itself may connect twice within one request."""
    asked: list[str] = []
    post = transport.post

    async def noted(self: Any, url: str, *more: Any) -> Any:
        asked.append(url)
        return await post(self, url, *more)

    monkeypatch.setattr(transport, "post", noted)
    return asked


def test_producer_waits_less_for_a_node_that_was_silent_before(
    node: Node, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The active freezes, and the other names it while its lease lasts. 2. The producer asks it
    again. 3. Meanwhile the other takes over."""
    monkeypatch.setattr(endpoints, "ANSWER_TIMEOUT_SECONDS", 0.5)
    with sending_to_a_frozen_active(node, scheme) as (producer, frozen):
        frozen.accept()
        has_refused_twice(node)
        monkeypatch.setattr(endpoints, "ANSWER_TIMEOUT_SECONDS", 600)
        frozen.accept()
        node.call(node.solo.gate.open)
        producer.close()
        assert node.flights() == [1]


class LosesAnswers:
    """A proxy that forwards every request and breaks the connection instead of the first
    answers."""

    def __init__(self, app: Starlette, lost: int = 3) -> None:
        self._app, self._lost = app, lost

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        lose = scope["type"] == "http" and self._lost > 0
        self._lost -= lose

        async def swallow(message: Any) -> None:
            if message["type"] == "http.response.start":
                raise ConnectionResetError("the answer is lost")

        await self._app(scope, receive, swallow if lose else send)


@pytest.mark.filterwarnings("ignore")
def test_a_lost_ack_does_not_store_the_events_twice(tmp_path: Path) -> None:
    node = Node(tmp_path, wrap=LosesAnswers)
    with Producer([node.url], batch_rows=2) as producer:
        producer.send("flights", events(*range(10)))
    assert sorted(node.flights(), key=int) == list(range(10))  # type: ignore[call-overload]
    node.stop()


def test_many_requests_in_flight_are_stored_once_each(node: Node) -> None:
    with Producer([node.url], batch_rows=3, in_flight=32) as producer:
        producer.send("flights", events(*range(1_000)))
    assert sorted(node.flights(), key=int) == list(range(1_000))  # type: ignore[call-overload]


def test_a_second_run_under_the_same_id_stores_nothing_twice(node: Node) -> None:
    for _ in range(2):
        with Producer([node.url], producer_id="p", batch_rows=2) as producer:
            producer.send("flights", events(*range(10)))
            producer.flush()
            assert producer.rows_acked == 10
    assert len(node.flights()) == 10


def test_other_data_under_the_same_id_is_a_conflict(node: Node) -> None:
    with Producer([node.url], producer_id="p") as producer:
        producer.send("flights", events(1))
    with (
        pytest.raises(SequenceConflict),
        Producer([node.url], producer_id="p") as producer,
    ):
        producer.send("flights", events(2))
    assert node.flights() == [1]


def test_forgotten_sequence_counts_as_stored_only_with_repeats(tmp_path: Path) -> None:
    node = Node(tmp_path, ReceiveConfig(dedup_window=2))
    with Producer([node.url], producer_id="p", batch_rows=1, in_flight=1) as producer:
        producer.send("flights", events(*range(5)))
    with (
        pytest.raises(SequenceForgotten),
        Producer([node.url], producer_id="p") as producer,
    ):
        producer.send("flights", events(0))
    acks: list[Ack] = []
    repeating = Producer(
        [node.url], producer_id="p", batch_rows=1, in_flight=1, repeats=True, on_ack=acks.append
    )
    with repeating:
        repeating.send("flights", events(*range(6)))
    assert [ack.position is None for ack in acks] == [True, True, True, False, False, False]
    assert node.flights() == list(range(6))
    node.stop()


def test_error_names_a_bad_row_by_its_number_among_all_rows_sent(node: Node) -> None:
    producer = Producer([node.url], batch_rows=2)
    producer.send("flights", events(0, 1))
    producer.send("flights", [*events(2), {"origin": 3}])
    with pytest.raises(InvalidEvents, match="field 'at' is missing") as refusal:
        producer.flush()
    assert refusal.value.row == 3
    producer.abandon()
    assert (producer.rows_acked, node.flights()) == (2, [0, 1])


@pytest.mark.parametrize("size", [5 << 20, 12 << 20])
def test_event_too_large_for_grpc_raises_at_once_and_no_other_is_lost(
    node_over_grpc: Node, size: int
) -> None:
    # Above the larger size, gRPC ends the whole stream, and the producer sends the first event
    # again.
    producer = Producer([node_over_grpc.url], batch_rows=1, in_flight=2)
    producer.send("flights", events(1))
    producer.send("flights", [events(2)[0] | {"origin": "x" * size}])
    with pytest.raises(PayloadTooLarge, match="max_body"):
        producer.flush()
    producer.abandon()
    assert node_over_grpc.flights() == [1]


def test_unknown_stream_raises_at_once(node: Node) -> None:
    producer = Producer([node.url])
    producer.send("nope", events(1))
    with pytest.raises(UnknownStream, match="there is no stream 'nope'"):
        producer.flush()
    producer.abandon()


def test_producer_retries_until_back_pressure_ends(node: Node) -> None:
    def refuse(refusal: Backpressure | None) -> None:
        node.solo.backlog.refused = refusal

    node.call(lambda: refuse(Backpressure("the queries are behind", 0.05)))
    producer = Producer([node.url], batch_rows=1)
    producer.send("flights", events(1))
    wait_until(lambda: node.solo.gate.counters.requests_rejected.get("Backpressure", 0) >= 2)  # type: ignore[attr-defined]
    node.call(lambda: refuse(None))
    producer.close()
    assert node.flights() == [1]


def test_delivery_fails_with_the_last_reason_when_the_deadline_passes(node: Node) -> None:
    node.call(lambda: node.solo.gate.close("this node is passive"))
    with (
        pytest.raises(DeliveryFailed, match=r"no node answered for 0\.3 s; .*this node is passive"),
        Producer([node.url], deadline=0.3) as producer,
    ):
        producer.send("flights", events(1))


def test_suspended_node_acks_its_stored_rows_after_it_resumes(node: Node) -> None:
    node.call(node.solo.log.hold)
    producer = Producer([node.url], batch_rows=1)
    producer.send("flights", events(1))
    wait_until(lambda: node.flights() == [1])
    node.call(lambda: node.solo.log.refuse(NotActive("suspended")))
    node.call(node.solo.log.release)
    producer.close()
    assert (producer.rows_acked, node.flights()) == (1, [1])


def test_error_in_the_block_of_the_caller_does_not_wait_for_delivery(node: Node) -> None:
    node.call(lambda: node.solo.gate.close("this node is passive"))

    def fail() -> None:
        with Producer([node.url], batch_rows=1) as producer:
            producer.send("flights", events(1))
            raise KeyError("the caller's own")

    with pytest.raises(KeyError):
        fail()
    assert node.flights() == []


def test_producer_returns_the_columns_of_a_stream(node: Node) -> None:
    with Producer([node.url]) as producer:
        assert producer.columns("flights")[0] == RemoteColumn("origin", "string", nullable=False)
        with pytest.raises(UnknownStream):
            producer.columns("nope")


@pytest.mark.parametrize(
    "wrong", [{"in_flight": 0}, {"in_flight": 33}, {"batch_rows": 0}, {"endpoints": []}]
)
def test_invalid_settings_are_refused_by_the_constructor(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|at least one"):
        Producer(**({"endpoints": ["http://127.0.0.1:1"]} | wrong))
