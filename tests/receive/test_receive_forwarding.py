"""Events that come to a node which is not the active, over real gRPC to the one that is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from ha_engine.client.exchange import REASON_HIDDEN
from ha_engine.client.transport import NoAnswer
from ha_engine.errors import Backpressure, NotActive, SequenceConflict
from ha_engine.receive import forwarding
from ha_engine.receive.decode import Format
from ha_engine.receive.forwarding import LANES, ForwardingStore, store_forwarded
from ha_engine.receive.gate import Receipt
from ha_engine.receive.intake import Intake, SubmissionIdentity
from ha_engine.sync import Forwarder, GrpcTransport, PeerCalls
from ha_engine.sync.wire import Wire
from ha_engine.types import Position
from ha_engine.v1 import ingest_pb2 as pb
from ha_engine.v1 import sync_pb2
from tests.receive.solo import Solo
from tests.receive.test_receive_http import EVENT
from tests.sync.pair import no_check, plain
from tests.waiting import async_wait_until

FLIGHTS = [EVENT.replace(b"1545", b"%d" % number) for number in range(50)]
PROCESS = "process of passive"


async def no_link(wire: Wire) -> None:
    """Serve no link, since a forwarded request needs none of its frames."""


class TwoNodes:
    """The gates of an active and a passive. A request of the passive goes to the active over gRPC,
    unless the active is ``away``."""

    def __init__(self, directory: Path) -> None:
        self.active, self.passive = Solo(directory / "active"), Solo(directory / "passive")
        self.passive.gate.close("this node is passive", "http://active:8080")
        self.away, self.attempts = False, 0
        self.forwarded: list[tuple[str, int]] = []
        self.store = ForwardingStore(
            self.passive.gate, self, "forwarded-by-passive", lambda *of: self.forwarded.append(of)
        )
        self.at_active, self.at_passive = Intake(self.active.gate), Intake(self.store)

    async def start(self) -> None:
        admits = {("passive", PROCESS)}
        forwarded = PeerCalls(lambda node, process: (node, process) in admits, no_check, self._take)
        self.transport = GrpcTransport(plain({"passive": 1}), forwarded)
        self.port = await self.transport.listen(no_link)
        self.forwarder = Forwarder(plain({"active": self.port}), "passive", PROCESS)

    async def _take(self, request: sync_pb2.ForwardRequest) -> pb.PublishAnswer:
        self.attempts += 1
        return await store_forwarded(self.active.gate, request)

    async def close(self) -> None:
        await self.forwarder.close()
        await self.transport.stop()
        await self.active.close()
        await self.passive.close()

    async def forward(self, request: sync_pb2.ForwardRequest) -> pb.PublishAnswer | None:
        with suppress(NoAnswer):
            answer = None if self.away else await self.forwarder.forward("active", request)
            if answer and answer.refused.reason != pb.EventsRefused.NOT_ACTIVE:
                return answer
        return None


async def sent(
    intake: Intake, body: bytes = EVENT, identity: SubmissionIdentity | None = None
) -> Receipt:
    intake.require_open("events")
    return await intake.store(await intake.unpack("flights", body, Format.NDJSON, identity))


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[TwoNodes]:
    nodes = TwoNodes(tmp_path)
    await nodes.start()
    yield nodes
    await nodes.close()


async def test_the_active_stores_the_events_that_a_passive_gets(nodes: TwoNodes) -> None:
    receipt = await sent(nodes.at_passive, EVENT + b"\n" + EVENT, ("p", 0))
    assert receipt == Receipt(2, Position(1, 1))
    assert [row["origin"] for row in nodes.active.stored()] == ["EWR", "EWR"]
    assert nodes.passive.stored() == []
    assert nodes.forwarded == [("flights", 2)]
    assert nodes.passive.gate.budget.taken == 0


async def test_a_request_that_both_nodes_get_is_stored_once(nodes: TwoNodes) -> None:
    ways = (nodes.at_active, nodes.at_passive)
    receipts = await asyncio.gather(*(sent(way, identity=("p", 7)) for way in ways for _ in "12"))
    assert len(nodes.active.stored()) == 1
    assert {receipt.position for receipt in receipts} == {Position(1, 1)}


async def test_another_payload_under_a_used_sequence_is_refused(nodes: TwoNodes) -> None:
    await sent(nodes.at_active, FLIGHTS[1], ("p", 7))
    with pytest.raises(SequenceConflict):
        await sent(nodes.at_passive, FLIGHTS[2], ("p", 7))


async def test_a_full_active_refuses_what_a_passive_forwards(nodes: TwoNodes) -> None:
    nodes.active.backlog.refused = Backpressure("the queries are behind", 1.5)
    with pytest.raises(Backpressure, match="the queries are behind") as refusal:
        await sent(nodes.at_passive, identity=("p", 7))
    assert refusal.value.retry_after_seconds == 1.5


async def test_forwarded_requests_keep_their_order(nodes: TwoNodes) -> None:
    await asyncio.gather(
        *(sent(nodes.at_passive, body, ("p", number)) for number, body in enumerate(FLIGHTS))
    )
    assert [row["flight"] for row in nodes.active.stored()] == list(range(len(FLIGHTS)))


async def test_a_request_waits_until_its_node_is_the_active(nodes: TwoNodes) -> None:
    nodes.away = True
    waiting = [asyncio.create_task(sent(nodes.at_passive, EVENT, who)) for who in (("p", 0), None)]
    await async_wait_until(lambda: nodes.passive.gate.budget.taken > 0)
    nodes.passive.gate.open()
    for receipt in await asyncio.gather(*waiting):
        assert receipt.accepted == 1
    assert len(nodes.passive.stored()) == 2
    assert nodes.forwarded == []


async def test_a_request_without_an_id_and_an_answer_is_stored_once(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.forwarder.patience = 0.2
    nodes.active.log.hold()
    waiting = asyncio.create_task(sent(nodes.at_passive))
    await async_wait_until(lambda: nodes.attempts == 2)
    nodes.active.log.release()
    assert (await waiting).accepted == 1
    assert len(nodes.active.stored()) == 1


async def test_a_request_does_not_wait_for_a_frozen_active(nodes: TwoNodes) -> None:
    nodes.active.log.hold()
    waiting = asyncio.create_task(sent(nodes.at_passive, identity=("p", 0)))
    await async_wait_until(lambda: nodes.attempts == 1)
    nodes.passive.gate.open()
    assert (await waiting).accepted == 1
    assert len(nodes.passive.stored()) == 1
    assert nodes.attempts == 1
    nodes.active.log.release()


async def test_a_node_that_is_the_active_again_takes_as_many_bytes_as_without_forwarding(
    nodes: TwoNodes,
) -> None:
    nodes.passive.gate.open()
    nodes.passive.gate.budget.take(nodes.passive.gate.budget.size - len(EVENT))
    assert (await sent(nodes.at_passive, identity=("p", 0))).accepted == 1
    nodes.passive.gate.budget.give(nodes.passive.gate.budget.size - len(EVENT))


async def test_requests_that_wait_for_an_active_keep_their_order(nodes: TwoNodes) -> None:
    nodes.active.gate.close("this node joins")
    waiting = [
        asyncio.create_task(sent(nodes.at_passive, body, ("p", number)))
        for number, body in enumerate(FLIGHTS)
    ]
    await async_wait_until(lambda: nodes.attempts > 0)
    nodes.active.gate.open()
    await asyncio.gather(*waiting)
    assert [row["flight"] for row in nodes.active.stored()] == list(range(len(FLIGHTS)))


async def test_one_request_looks_for_an_active_for_all_that_wait(nodes: TwoNodes) -> None:
    nodes.active.gate.close("this node joins")
    waiting = [asyncio.create_task(sent(nodes.at_passive, body)) for body in FLIGHTS]
    await async_wait_until(lambda: nodes.attempts >= 3)
    assert nodes.attempts < len(FLIGHTS)
    nodes.active.gate.open()
    await asyncio.gather(*waiting)
    assert len(nodes.active.stored()) == len(FLIGHTS)


async def test_a_repeat_is_acked_although_the_active_is_full_by_now(nodes: TwoNodes) -> None:
    await sent(nodes.at_passive, identity=("p", 0))
    nodes.active.backlog.refused = Backpressure("the queries are behind", 1.5)
    assert (await sent(nodes.at_passive, identity=("p", 0))).position == Position(1, 1)


@pytest.mark.parametrize("batch", [b"", b"no batch", b"\xff" * 64])
async def test_a_damaged_request_ends_no_other(nodes: TwoNodes, batch: bytes) -> None:
    nodes.active.log.hold()
    waiting = asyncio.create_task(sent(nodes.at_passive, identity=("p", 0)))
    await async_wait_until(lambda: nodes.attempts == 1)
    damaged = sync_pb2.ForwardRequest(stream="flights", producer="q", sequence=1, batch=batch)
    answer = await nodes.forwarder.forward("active", damaged)
    assert answer.refused.reason == pb.EventsRefused.INVALID_EVENTS
    nodes.active.log.release()
    assert (await waiting).accepted == 1
    assert nodes.attempts == 2


async def test_a_sequence_that_no_client_can_send_is_refused(nodes: TwoNodes) -> None:
    batch = (await nodes.at_active.unpack("flights", EVENT, Format.NDJSON, None)).batch
    content = batch.serialize().to_pybytes()
    request = sync_pb2.ForwardRequest(
        stream="flights", producer="q", sequence=(1 << 64) - 1, batch=content
    )
    answer = await nodes.forwarder.forward("active", request)
    assert answer.refused.reason == pb.EventsRefused.INVALID_EVENTS
    assert nodes.active.stored() == []


async def test_a_client_that_leaves_frees_its_place(nodes: TwoNodes) -> None:
    nodes.away = True
    waiting = [asyncio.create_task(sent(nodes.at_passive)) for _ in range(2 * LANES)]
    await async_wait_until(lambda: nodes.passive.gate.budget.taken > 0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert nodes.passive.gate.budget.taken == 0
    nodes.away = False
    assert (await sent(nodes.at_passive)).accepted == 1
    assert len(nodes.active.stored()) == 1


async def test_a_request_without_an_active_is_refused_in_the_end(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "WAIT_SECONDS_MAX", 0.0)
    nodes.away = True
    with pytest.raises(NotActive, match="this node is passive") as refusal:
        await sent(nodes.at_passive, identity=("p", 0))
    assert refusal.value.active == "http://active:8080"
    assert nodes.passive.gate.budget.taken == 0


async def test_a_node_that_stops_refuses_what_waits(nodes: TwoNodes) -> None:
    nodes.away = True
    waiting = asyncio.create_task(sent(nodes.at_passive, identity=("p", 0)))
    await async_wait_until(lambda: nodes.passive.gate.budget.taken > 0)
    await nodes.store.stop(seconds=5)
    with pytest.raises(NotActive, match="this node is stopping"):
        await waiting
    with pytest.raises(NotActive, match="this node is stopping"):
        nodes.at_passive.require_open("events")


async def test_waiting_events_are_limited_in_bytes(nodes: TwoNodes) -> None:
    nodes.away = True
    taken = nodes.passive.gate.budget.size - 10
    nodes.passive.gate.budget.take(taken)
    for who in (("p", 0), None):
        with pytest.raises(Backpressure):
            await sent(nodes.at_passive, EVENT, who)
    nodes.passive.gate.budget.give(taken)


async def test_only_a_process_with_a_link_may_forward(nodes: TwoNodes) -> None:
    stranger = Forwarder(plain({"active": nodes.port}), "passive", "another process")
    reason = REASON_HIDDEN
    while reason == REASON_HIDDEN:
        with pytest.raises(NoAnswer) as refusal:
            await stranger.forward("active", sync_pb2.ForwardRequest(stream="flights"))
        reason = str(refusal.value)
    assert "only a peer of this node" in reason
    assert nodes.attempts == 0
    await stranger.close()
    with pytest.raises(NoAnswer, match="this node stops"):
        await stranger.forward("active", sync_pb2.ForwardRequest(stream="flights"))
