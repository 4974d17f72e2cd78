"""The alerts of a pair and every panel of the dashboard, with a real Prometheus and a pair under
load. tests/cluster/test_alerts.py has the alerts of a cluster.

A query that names a wrong label, or joins series that never match, is valid and silent for ever.
So each alert must fire on its fault, and each panel must have data.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.cluster.test_alerts import FAULTS as FAULTS_OF_A_CLUSTER
from tests.e2e.alerts import alerts, hastened_rules, require_firing, until_firing
from tests.e2e.databases import refusing
from tests.e2e.observers import Observer
from tests.e2e.pair import Pair, running_pair
from tests.e2e.prometheus import PATIENCE, RULES, Prometheus, scraping
from tests.e2e.stand_in import NodeWithStandIn
from tests.e2e.well_behaved import WellBehaved
from tests.e2e.without_spark import APPLICATION as COPIES
from tests.programs import needs
from tests.publish.http_receiver import Receiver, listening
from tests.waiting import wait_until

BOARD = Path(__file__).parents[2] / "compose" / "grafana" / "dashboards" / "ha-engine.json"
APPLICATION = """
name: copies
streams:
  events:
    schema: {{id: int not null, text: string}}
    sources:
      - {{name: drop, type: file, directory: {drop}, format: ndjson}}
queries:
  copies:
    sql: SELECT id, text FROM events
    sinks:
      - {{name: hook, type: http, url: "{hook}", attempts: 1}}
"""
CONNECTIONS_MAX = 24
KEPT_BATCHES = 16
"""An observer that is not away misses no batch, even on a slow host."""


@dataclass
class Story:
    """A pair, and the world around it."""

    pair: Pair
    observer: Observer
    prometheus: Prometheus
    receiver: Receiver
    """What the sink sends to."""
    drop: Path
    """The directory of the source."""
    server: EmbeddedPostgres
    database: str

    @property
    def active(self) -> NodeWithStandIn:
        """Return the active of a whole pair."""
        active = self.pair.wait_protected()
        assert isinstance(active, NodeWithStandIn)
        return active

    @property
    def passive(self) -> NodeWithStandIn:
        passive = self.pair.other(self.active)
        assert isinstance(passive, NodeWithStandIn)
        return passive

    def restart(self, node: NodeWithStandIn) -> None:
        node.start()
        self.pair.wait_protected()


@contextmanager
def story(home: Path, server: EmbeddedPostgres, database: str, rules: str) -> Iterator[Story]:
    """Run a whole pair that Prometheus scrapes."""
    receiver, drop = Receiver(), home / "drop"
    drop.mkdir()
    with ExitStack() as stack:
        hook = stack.enter_context(listening(receiver))
        pair = Pair(
            home,
            APPLICATION.format(drop=drop, hook=hook),
            database,
            NodeWithStandIn,
            snapshot={"interval": "0s"},
            http={"max_connections": CONNECTIONS_MAX},
            observe={"keep_batches": KEPT_BATCHES},
        )
        stack.enter_context(running_pair(pair))
        # Prometheus first sees the active as active, so it did not just fail over.
        pair.wait_protected()
        urls = {name: node.url for name, node in pair.nodes.items()}
        observer = Observer(home / "observer", urls)
        stack.callback(observer.stop)
        observer.start()
        prometheus = stack.enter_context(scraping(pair, home / "prometheus", rules, [observer.url]))
        stack.enter_context(sending(pair))
        yield Story(pair, observer, prometheus, receiver, drop, server, database)


# -- faults: each lasts for its with block; all but the last two let the pair become whole again ---

Fault = Callable[[Story], AbstractContextManager[None]]


@contextmanager
def missing_directory(story: Story) -> Iterator[None]:
    away = story.drop.rename(story.drop.with_name("away"))
    yield
    away.rename(story.drop)


@contextmanager
def wrong_row_in_a_file(story: Story) -> Iterator[None]:
    draft = story.drop / "1.ndjson.part"
    draft.write_text('{"id": "one"}\n')
    draft.rename(draft.with_suffix(""))
    yield


@contextmanager
def rows_that_the_sink_refuses(story: Story) -> Iterator[None]:
    with answering(story.receiver, 400):
        yield


@contextmanager
def failing_sink(story: Story) -> Iterator[None]:
    with answering(story.receiver, 503):
        yield


@contextmanager
def answering(receiver: Receiver, status: int) -> Iterator[None]:
    before, receiver.answer = receiver.answer, lambda rows: status
    yield
    receiver.answer = before


@contextmanager
def failing_query(story: Story) -> Iterator[None]:
    nodes = story.active, story.passive
    for node in nodes:
        node.failing = "a division by zero"
    wait_until(lambda: all(map(has_failed, nodes)), within=PATIENCE)
    yield
    for node in nodes:
        node.failing = ""
        node.http.post("/v1/queries/copies/retry").raise_for_status()


def has_failed(node: NodeWithStandIn) -> bool:
    status = node.status()
    return status is not None and status["queries"]["copies"]["state"] == "failed"


@contextmanager
def many_connections(story: Story) -> Iterator[None]:
    host, port = story.active.url.removeprefix("http://").split(":")
    with ExitStack() as opened:
        for _ in range(5 * CONNECTIONS_MAX):
            opened.enter_context(socket.create_connection((host, int(port))))
        yield


@contextmanager
def database_away(story: Story) -> Iterator[None]:
    with refusing(story.server, story.database):
        yield


@contextmanager
def dead_passive(story: Story) -> Iterator[None]:
    passive = story.passive
    passive.kill_everything()
    yield
    story.restart(passive)


@contextmanager
def dead_observer(story: Story) -> Iterator[None]:
    story.observer.stop()
    yield
    story.observer.start()


@contextmanager
def observer_that_was_away(story: Story) -> Iterator[None]:
    wait_until(lambda: story.observer.query("copies").get("last_batch"), within=PATIENCE)
    story.observer.stop()
    seen, active = newest_batch(story.active), story.active
    wait_until(lambda: newest_batch(active) > seen + KEPT_BATCHES + 1, within=PATIENCE)
    story.observer.start()
    yield


def newest_batch(node: NodeWithStandIn) -> int:
    """The number of the newest batch that the sink has."""
    return int(node.require_status()["queries"]["copies"]["published"]["hook"])


@contextmanager
def passive_with_an_older_disk(story: Story) -> Iterator[None]:
    active, passive = story.active, story.passive
    image, batches = story.drop.with_name("image"), dict(passive.batches)
    passive.kill_everything()
    shutil.copytree(passive.data_dir, image)
    story.restart(passive)
    seen = journal_end(active)
    wait_until(lambda: journal_end(passive) > seen, within=PATIENCE)
    passive.kill_everything()
    shutil.rmtree(passive.data_dir)
    image.rename(passive.data_dir)
    passive.batches = batches
    story.restart(passive)
    yield


def journal_end(node: NodeWithStandIn) -> int:
    status = node.status()
    return int(status["journal"]["durable_sequence"]) if status else 0


@contextmanager
def passive_without_room(story: Story) -> Iterator[None]:
    passive = story.passive
    with reloaded(passive, min_free="1000TiB"):
        yield


@contextmanager
def reloaded(node: NodeWithStandIn, **journal: str) -> Iterator[None]:
    before = node.config_path.read_text()
    assert node.process is not None
    node.reconfigure(journal=journal)
    node.process.send_signal(signal.SIGHUP)
    yield
    node.config_path.write_text(before)
    node.process.send_signal(signal.SIGHUP)


@contextmanager
def dead_active(story: Story) -> Iterator[None]:
    active, passive = story.active, story.passive
    active.kill_everything()
    wait_until(lambda: story.pair.active() is passive, within=PATIENCE)
    yield
    story.restart(active)


@contextmanager
def dead_active_during_a_pause(story: Story) -> Iterator[None]:
    active, passive = story.active, story.passive
    config = str(active.config_path)
    assert active.command("pause", "--config", config).code == 0
    wait_until(
        lambda: (
            story.prometheus.values("ha_engine_failover_paused")
            == {active.name: 1, passive.name: 1}
        ),
        within=PATIENCE,
    )
    active.kill_everything()
    yield
    assert active.command("resume", "--config", config).code == 0
    wait_until(lambda: story.pair.active() is passive, within=PATIENCE)
    story.restart(active)


@contextmanager
def passive_with_other_output(story: Story) -> Iterator[None]:
    story.passive.rows = pa.table({"id": pa.array([2], pa.int32()), "text": ["y"]})
    yield


@contextmanager
def both_dead(story: Story) -> Iterator[None]:
    for node in story.pair.nodes.values():
        node.kill_everything()
    yield


NO_SNAPSHOT = "HaEngineSnapshotOld"
"""It fires all the time, since a snapshot needs a checkpoint, which the stand-in does not write."""
OF_A_BACKUP = "HaEngineBackupBehind"
"""It needs a backup that is five minutes behind, so only promtool tests it."""
FAULTS: Mapping[Fault, set[str]] = {
    # It is the first, since a sink that catches up after a fault may outrun the observer, and the
    # alert lasts for an hour.
    observer_that_was_away: {"HaEngineObserverMissedBatches"},
    missing_directory: {"HaEngineSourceFails"},
    wrong_row_in_a_file: {"HaEngineRowsRejected"},
    rows_that_the_sink_refuses: {"HaEngineDeadLetters"},
    failing_sink: {"HaEngineSinkBehind"},
    failing_query: {"HaEngineQueryFailed", "HaEngineQueryBehind", "HaEngineNotWarm"},
    many_connections: {"HaEngineConnectionsRefused"},
    database_away: {"HaEngineDatabaseFails"},
    dead_observer: {"HaEngineObserverDown"},
    dead_passive: {"HaEngineNodeDown", "HaEngineNotProtected"},
    passive_with_an_older_disk: {"HaEngineDiskWentBack"},
    passive_without_room: {"HaEngineNoRoom", "HaEngineProducersHeldBack"},
    dead_active: {"HaEngineFailedOver"},
    dead_active_during_a_pause: {"HaEnginePaused", "HaEngineNoActive"},
    passive_with_other_output: {"HaEngineDigestMismatch"},
    both_dead: {"HaEngineNobodyAnswers", "HaEngineObserverReachesNoNode"},
}


@needs("prometheus")
@pytest.mark.slow
@pytest.mark.nightly("test_prometheus has four of the alerts, and promtool tests each with numbers")
def test_each_alert_fires_on_its_fault_and_fills_its_summary(
    postgres: EmbeddedPostgres, module_database: str, tmp_path: Path
) -> None:
    with story(tmp_path, postgres, module_database, hastened_rules()) as told:
        until_firing(told.prometheus, {NO_SNAPSHOT})
        for fault, names in FAULTS.items():
            require_firing(told.prometheus, names, fault(told))


def test_each_alert_has_a_fault_that_makes_it_fire() -> None:
    told = {NO_SNAPSHOT, OF_A_BACKUP}.union(*FAULTS.values(), *FAULTS_OF_A_CLUSTER.values())
    assert told == set(alerts())


# -- the dashboard ---------------------------------------------------------------------------------


@needs("prometheus")
@pytest.mark.spark
@pytest.mark.nightly("test_alerts compares the metrics of the dashboard with those of a node")
def test_each_panel_has_data_before_and_after_a_failover(
    node_database: str, tmp_path: Path
) -> None:
    board = json.loads(BOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert queries
    pair = Pair(tmp_path, COPIES, node_database, snapshot={"interval": "1s"})
    with (
        running_pair(pair),
        sending(pair),
        scraping(pair, tmp_path / "prometheus", RULES.read_text()) as prometheus,
    ):
        active = pair.wait_protected()
        (group,) = variable(prometheus, board, "group")
        for query in queries:
            until_data(prometheus, query.replace("$group", group))
        active.kill_everything()
        wait_until(lambda: pair.active() is pair.other(active), within=PATIENCE)
        active.start()
        pair.wait_protected()
        for query in queries:
            until_data(prometheus, query.replace("$group", group))


@contextmanager
def sending(pair: Pair) -> Iterator[None]:
    """Send events to whichever node is active."""
    load = [WellBehaved(node) for node in pair.nodes.values()]
    for one in load:
        one.start()
    try:
        yield
    finally:
        for one in load:
            one.stop()


def variable(prometheus: Prometheus, board: dict[str, Any], name: str) -> list[str]:
    """Return the values of a variable of the dashboard that Grafana queries."""
    (query,) = [one["query"]["query"] for one in board["templating"]["list"] if one["name"] == name]
    matched = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
    assert matched, query
    found: list[str] = []

    def there() -> bool:
        found[:] = prometheus.label_values(*matched.groups())
        return bool(found)

    wait_until(there, within=PATIENCE)
    return found


def until_data(prometheus: Prometheus, query: str) -> None:
    """Return once the result has series, and each has a number."""

    def has_data() -> bool:
        series = prometheus.query(query)
        return bool(series) and all(math.isfinite(one.value) for one in series)

    wait_until(has_data, within=PATIENCE)
