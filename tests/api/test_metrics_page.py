"""docs/METRICS.md documents exactly the metrics that a node exposes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ha_engine.api.cluster import report_of
from ha_engine.api.prometheus import SOURCE_CODES, NodeMetrics
from ha_engine.api.status import Executors, Progress, Queues, Stages, status_of
from ha_engine.config.reload import Reloaded
from ha_engine.core import inputs as on
from ha_engine.core.role import LEGAL
from ha_engine.errors import Rejected
from ha_engine.observer.asking import AskedNode
from ha_engine.observer.following import Following
from ha_engine.observer.metrics import ObserverMetrics
from ha_engine.observer.next_batch import Output
from ha_engine.observer.store import OutputStore
from ha_engine.plugins import Backlog
from ha_engine.publish import SinkState, SinkStatus
from ha_engine.receive.byte_budget import ByteBudget
from ha_engine.receive.offsets import SourceOffset
from ha_engine.receive.pull.puller import SourceState, SourceStatus
from ha_engine.receiver.metrics import ReceiverMetrics
from ha_engine.stats.counters import NodeCounters, Restored, SnapshotCounters, Transfer
from ha_engine.stats.lag import Arrivals
from ha_engine.sync import Hello, Report, Traffic
from ha_engine.types import Holder, LeaseRow, LogHeadroom, Position, Revision, Role
from ha_engine.web.closed import Closed
from tests.core.surroundings import IDENTITY
from tests.core.world import World
from tests.sync.pair import hello

PAGE = Path(__file__).parents[2] / "docs" / "METRICS.md"
USUAL = {"group", "node"}


class Links:
    """One peer, with bytes in both directions."""

    def names(self) -> list[str]:
        return ["b"]

    def hellos(self) -> dict[str, Hello]:
        return {"a": hello("a")}

    def reports(self) -> dict[str, tuple[float, Report]]:
        return {}

    def refusals(self) -> dict[str, str]:
        return {}

    def unreachable(self) -> dict[str, str]:
        return {}

    def silent_seconds(self) -> dict[str, float]:
        return {}

    def in_flight(self) -> dict[str, int]:
        return {"b": 9}

    def traffic(self) -> dict[str, Traffic]:
        return {"b": Traffic(connected=True, links=1, bytes_sent=5, bytes_received=7)}


class Revisions:
    """One snapshot, taken by another node."""

    def __init__(self) -> None:
        now = datetime.now(UTC)
        self.counts, self.transfer, self.upload = SnapshotCounters(), Transfer(), Transfer()
        self.restored: Restored | None = None
        self.revisions = [
            Revision(7, "b", Position(1, 4), Position(1, 5), now, now, 2000, 500, 12.0)
        ]

    @property
    def age_seconds(self) -> float | None:
        return self.revisions[0].age_seconds


def executors(world: World) -> Executors:
    incarnation = world.core.query_control.process.incarnation
    assert incarnation is not None
    return Executors(incarnation, "app-1", live=1, wanted=2, master_connected=True)


@pytest.fixture
def families() -> dict[str, Any]:
    """Return the metrics of an active with a member in sync, by name."""
    world, counters = World(), NodeCounters()
    world.start()
    world.ghost.link()
    world.offer("flights", 10)
    world.wait(1)
    counters.role_changed(Role.STARTING, Role.JOINING, on.Tick(), stopping=False)

    arrivals = Arrivals()
    arrivals.saw(world.now, world.disk.records)
    sink = SinkStatus("delays", "board", SinkState.PUBLISHING, 1, 0, None, 0.0, dead_letters=3)

    known = SourceOffset("7", 40, 2, 5)
    unread = Backlog(events=0, bytes=0, seconds=0.0)
    source = SourceStatus(
        "flights", "drop", "file", SourceState.IDLE, known, unread, None, 0.0, 1, Path("/rejected")
    )

    def status() -> dict[str, Any]:
        stages = Stages(
            metrics.gate,
            (sink,),
            (source,),
            {"orders": LogHeadroom(0, 20, 100)},
            {"delays": Progress(1, 10, 100, late_rows=2, dropped_rows=5, skew=1.5)},
            None,
            executors(world),
            Links(),
            counters,
            Revisions(),
            arrivals,
            Queues(receive_bytes=11, acks=12, journal_bytes=13, mark_polls=14, connections=15),
            {Closed.UNREAD: 1},
            False,
            Reloaded(),
            0.0,
        )
        return status_of(world.core, "g", report_of(world.core, world.now, 0), stages, world.now)

    metrics = NodeMetrics("g", "a", status)
    metrics.gate.rejected("flights", "InvalidEvents")
    metrics.gate.accepted("flights", 10, 0.01)
    metrics.observe_batch("delays", 0.1)
    text = metrics.exposition().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def _rows(process: str = "node") -> dict[str, list[str]]:
    """Return the table of a kind of process: name, type, labels, meaning."""
    lines = re.findall(r"^\| `(ha_engine_\w+)` \|(.*)\|$", PAGE.read_text(), flags=re.MULTILINE)
    return {
        name: [cell.strip() for cell in rest.split("|")]
        for name, rest in lines
        if _process_of(name) == process
    }


def _process_of(metric: str) -> str:
    word = metric.split("_")[2]
    return word if word in ("receiver", "observer") else "node"


def _exposed_name(family: Any) -> str:
    return family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")


def test_the_page_has_every_metric_with_its_type_labels_and_meaning(
    families: dict[str, Any],
) -> None:
    exposed = {}
    for family in families.values():
        assert family.samples, f"{family.name} has no sample"
        labels = set.intersection(*(set(sample.labels) for sample in family.samples))
        own = ", ".join(label for label in family.samples[0].labels if label in labels - USUAL)
        assert labels >= USUAL
        exposed[_exposed_name(family)] = [family.type, own or "-", family.documentation]
    assert _rows() == exposed


class OneStream:
    """A receiver's store with one stream."""

    def __init__(self) -> None:
        self.budget, self.waiting = ByteBudget(10), Counter({"orders": 3})
        self.problems: dict[str, str | None] = {"orders": "no broker answers"}
        self.under_replicated = {"orders": 2}


def test_the_page_has_every_metric_of_a_receiver() -> None:
    metrics = ReceiverMetrics()
    metrics.attach(OneStream(), {Closed.UNREAD: 1})
    exposed = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        own = set.intersection(*(set(sample.labels) for sample in family.samples))
        exposed[_exposed_name(family)] = [family.type, ", ".join(own) or "-", family.documentation]
    assert _rows("receiver") == exposed


def test_metrics_show_the_pair(families: dict[str, Any]) -> None:
    def value(name: str, **labels: str) -> float:
        samples = families[name].samples
        return next(float(s.value) for s in samples if labels.items() <= s.labels.items())

    assert {value(f"ha_engine_{name}") for name in ("in_sync", "warm", "protected")} == {1}
    assert value("ha_engine_suspended") == 0
    assert value("ha_engine_peer_lag_records", peer="b") == 0
    assert value("ha_engine_peer_lag_events", peer="b") == 0
    assert value("ha_engine_peer_lag_seconds", peer="b") == 0
    assert value("ha_engine_sync_in_flight_bytes", peer="b") == 9
    assert value("ha_engine_sync_sent_bytes", peer="b") == 5
    assert value("ha_engine_sync_received_bytes", peer="b") == 7
    assert value("ha_engine_role_changes", role="joining", reason="started") == 1
    totals = [value(f"ha_engine_source_{name}") for name in ("rows", "rejected", "failures")]
    assert totals == [40, 2, 1]
    assert value("ha_engine_source_state", stream="flights", source="drop") == 1


def test_series_of_each_reason_begins_at_zero(families: dict[str, Any]) -> None:
    """Else Prometheus sees no increase when a reason occurs for the first time."""

    def counted(name: str) -> dict[str, float]:
        return {sample.labels["reason"]: sample.value for sample in families[name].samples}

    refusals = dict.fromkeys((kind.__name__ for kind in subclasses(Rejected)), 0)
    assert counted("ha_engine_requests_rejected") == refusals | {"InvalidEvents": 1}
    closed = dict.fromkeys(map(str, Closed), 0)
    assert counted("ha_engine_connections_closed") == closed | {"unread": 1}


def test_page_has_every_reason_of_a_refused_request() -> None:
    told = set(re.findall(r"^\| `(\w+)` \| .* \| [\d, ]+ \|$", PAGE.read_text(), re.MULTILINE))
    assert told == {kind.__name__ for kind in subclasses(Rejected)}


def test_page_has_every_reason_of_a_closed_connection() -> None:
    told = re.findall(r"^\| `(\w+)` \| (?:HTTP|gRPC)[^|]* \|", PAGE.read_text(), flags=re.MULTILINE)
    assert told == list(Closed)


def subclasses(kind: type) -> Iterator[type]:
    for below in kind.__subclasses__():
        yield below
        yield from subclasses(below)


def test_every_state_of_a_source_has_a_code() -> None:
    assert SOURCE_CODES.keys() == {state.value for state in SourceState}


def test_page_has_every_reason_of_a_role_change() -> None:
    told = set(re.findall(r"^\| (\w+) \| `(\w+)` \|", PAGE.read_text(), flags=re.MULTILINE))
    row = LeaseRow("g", None, 1, 1, ())
    events = [
        on.Tick(),
        on.LeaseRead(row, IDENTITY),
        on.LeaseWritten(row, IDENTITY),
        on.LeaseWritten(replace(row, holder=Holder("a", "p")), IDENTITY),
        on.HigherEpochSeen(2, "a ledger"),
    ]
    counters = NodeCounters()
    for before, roles in LEGAL.items():
        for role, event, stopping in product(roles, events, (True, False)):
            counters.role_changed(before, role, event, stopping=stopping)
    assert set(counters.role_changes) == told


def test_the_page_has_every_metric_of_an_observer(tmp_path: Path) -> None:
    node = AskedNode("a", "http://a", httpx.AsyncClient(), 1.0, answered_at=1.0)
    store = OutputStore(tmp_path, 1, 1)
    following = Following([node], store, 1.0)
    node.answered_at = 1.0
    store.put("delays", Output("id", 1, 0, b""))
    exposed = {}
    text = ObserverMetrics(following).exposition().decode()
    for family in text_string_to_metric_families(text):
        own = set.intersection(*(set(sample.labels) for sample in family.samples))
        exposed[_exposed_name(family)] = [family.type, ", ".join(own) or "-", family.documentation]
    assert _rows("observer") == exposed
