"""Producers over gRPC at real node processes: the passive names the active, and across a planned or
unplanned end of the active no acked event is lost or stored twice. Without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from ha_engine.client import Ack, Producer
from ha_engine.journal import Journal
from ha_engine.types import Events
from ha_engine.v1 import ingest_pb2 as pb
from ha_engine.v1 import ingest_pb2_grpc as rpc
from tests.e2e.node_under_test import NodeUnderTest, free_port
from tests.e2e.pair import NAMES, Pair, running_pair
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow]

PATIENCE = 60
SCHEMA = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("text", pa.string())])
EVENT = b'{"id":1,"text":"one"}'


class Traffic(threading.Thread):
    """Sends events 0, 1, 2, ... until it is stopped; ``acked`` has those that a node acked."""

    def __init__(self, endpoints: list[str]) -> None:
        super().__init__(name="traffic", daemon=True)
        self._endpoints, self._ended = endpoints, threading.Event()
        self.acked: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Producer(self._endpoints, batch_rows=5, in_flight=4, on_ack=self._ack) as producer:
                number = 0
                while not self._ended.is_set():
                    producer.send("events", [{"id": number, "text": "x"}])
                    number += 1
        except BaseException as error:
            self.error = error

    def _ack(self, ack: Ack) -> None:
        self.acked.extend(range(ack.first_row, ack.first_row + ack.rows))

    def wait_acks(self) -> None:
        """Wait until a node has acked more than at the time of the call."""
        before = len(self.acked)
        wait_until(lambda: self.error or len(self.acked) > before + 50, within=PATIENCE)
        assert self.error is None, self.error

    def finish(self) -> None:
        self._ended.set()
        self.join(PATIENCE)
        assert self.error is None, self.error


@pytest.fixture
def ports() -> dict[str, int]:
    return {name: free_port() for name in NAMES}


@pytest.fixture
def pair(node_database: str, tmp_path: Path, ports: dict[str, int]) -> Iterator[Pair]:
    pair = Pair(tmp_path, APPLICATION, node_database, NodeWithoutSpark, **ROOM)
    for node in pair.nodes.values():
        node.reconfigure(ingest={"listen": f"127.0.0.1:{ports[node.name]}"})
    with running_pair(pair):
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        yield pair


def ask(port: int, ndjson: bytes = EVENT) -> pb.PublishAnswer:
    """Send one request alone and return its answer."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = pb.PublishRequest(id=1, stream="events", ndjson=ndjson)
        answers = list(rpc.IngestStub(channel).Publish(iter([request])))
    return answers[0]


def stored_ids(node: NodeUnderTest) -> list[int]:
    """Return the ids of the events in the journal of an ended node, in order."""
    journal = Journal.open(node.data_dir / "journal", group="test")
    batches = [
        pa.ipc.read_record_batch(record.payload, SCHEMA)
        for record in journal.read(journal.first)
        if isinstance(record.body, Events)
    ]
    journal.close()
    return [number for batch in batches for number in batch.column("id").to_pylist()]


def test_passive_names_the_active_and_both_count_their_requests(
    pair: Pair, ports: dict[str, int]
) -> None:
    active = pair.active()
    assert active is not None
    passive = pair.other(active)
    expected = pb.EventsRefused(
        reason=pb.EventsRefused.NOT_ACTIVE,
        active=active.url,
        active_address=f"127.0.0.1:{ports[active.name]}",
    )
    # The active reports its address once a second.
    wait_until(lambda: _but_its_sentence(ask(ports[passive.name])) == expected, within=10)
    assert ask(ports[active.name]).stored.accepted == 1
    refused = ask(ports[active.name], ndjson=b'{"id":"x"}').refused
    assert (refused.reason, refused.row) == (pb.EventsRefused.INVALID_EVENTS, 0)
    assert active.send("events", [{"id": 2, "text": "over HTTP"}]).status_code == 200
    received = (active.status() or {})["receive"]
    assert received["accepted_events"] == 2
    assert received["rejected_requests"] == {"InvalidEvents": 1}
    labels = f'{{group="test",node="{active.name}"}}'
    assert f"ha_engine_events_accepted_total{labels} 2.0" in active.http.get("/metrics").text


def _but_its_sentence(answer: pb.PublishAnswer) -> pb.EventsRefused:
    answer.refused.ClearField("error")
    return answer.refused


def test_no_acked_event_is_lost_or_doubled_when_the_active_stops_or_dies(
    pair: Pair, ports: dict[str, int]
) -> None:
    traffic = Traffic([f"grpc://127.0.0.1:{port}" for port in ports.values()])
    traffic.start()
    traffic.wait_acks()
    first = pair.active()
    assert first is not None
    assert first.stop() == 0
    traffic.wait_acks()
    first.start()
    wait_until(pair.is_protected, within=PATIENCE, every=0.1)
    traffic.wait_acks()
    pair.other(first).kill_everything()
    traffic.wait_acks()
    traffic.finish()
    assert first.stop() == 0
    stored = stored_ids(first)
    assert len(stored) == len(set(stored)), "an event was stored twice"
    assert set(traffic.acked) - set(stored) == set(), "an acked event was lost"
    assert len(traffic.acked) == len(set(traffic.acked))
