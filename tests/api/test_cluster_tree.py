"""The stages of a member before it could take over, in /v1/cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ha_engine.api.cluster import SILENT_SECONDS, cluster_of, report_of
from ha_engine.sync import Hello, QueryReport, Report
from tests.core.world import World, plan
from tests.sync.pair import hello

JOINS = Report("joining", "", 0, "", "j2", 0, 0, 0, False, False, True, False, False)


class Links:
    """One peer, b, that has sent one report."""

    def __init__(self, report: Report | None, age: float = 0.5) -> None:
        self.said = {} if report is None else {"b": (age, report)}

    def names(self) -> list[str]:
        return ["b"]

    def hellos(self) -> dict[str, Hello]:
        return {name: hello(name) for name in ("a", *self.said)}

    def reports(self) -> dict[str, tuple[float, Report]]:
        return self.said

    def refusals(self) -> dict[str, str]:
        return {"b": "another application", "c": "nobody knows it"}

    def unreachable(self) -> dict[str, str]:
        return {"b": "nothing listens"}

    def silent_seconds(self) -> dict[str, float]:
        return {}


@pytest.fixture
def world() -> World:
    """Return the active a, with some batches and without b."""
    world = World(plans=(plan("delays", "flights", "board"),))
    world.start()
    world.offer("flights", 10)
    world.offer("flights", 10)
    return world


def cluster(world: World, links: Links) -> dict[str, Any]:
    report = report_of(world.core, world.now, 0)
    return dict(cluster_of(world.core, "g", report, links))


def seen(world: World, report: Report | None, age: float = 0.5) -> dict[str, Any]:
    found: dict[str, Any] = cluster(world, Links(report, age))["nodes"]["b"]
    return found


def lacks(stage: str, records: int, batches: int, size: int = 0) -> dict[str, Any]:
    return {"stage": stage, "records": records, "batches": batches, "bytes": size}


def delays(world: World, behind: int = 0, differs: int = 0) -> tuple[QueryReport, ...]:
    batch = world.core.deployment.marks["delays"].admitted - behind
    return (QueryReport("delays", "running", batch, batch, 0, differs),)


def test_a_member_out_of_sync_compares_journals_and_then_takes_records(world: World) -> None:
    last, batches = world.core.journal.last.sequence, world.core.deployment.marks["delays"].admitted
    assert seen(world, JOINS)["rejoin"] == lacks("comparing", last, batches)
    follows = replace(JOINS, follows=True, durable=last - 3, queries=delays(world, behind=1))
    node = seen(world, follows)
    assert node["rejoin"] == lacks("journal", 3, 1)
    assert (node["in_sync"], node["lag_records"]) == (False, 3)
    restores = replace(JOINS, to_restore=7_000_000)
    assert seen(world, restores)["rejoin"] == lacks("snapshot", last, batches, size=7_000_000)


def test_member_in_sync_starts_spark_and_then_runs_its_batches(world: World) -> None:
    world.ghost.link()
    world.wait(1)
    passive = replace(JOINS, role="passive", follows=True)
    assert seen(world, passive)["in_sync"] is True
    starts = replace(passive, queries=delays(world, behind=2))
    assert seen(world, starts)["rejoin"] == lacks("starting Spark", 0, 2)
    runs = replace(passive, query_process_connected=True, queries=delays(world, behind=1))
    assert seen(world, runs)["rejoin"] == lacks("batches", 0, 1)
    differs = replace(passive, query_process_connected=True, queries=delays(world, differs=2))
    assert seen(world, differs)["rejoin"] == lacks("rebuild", 0, 0)
    assert seen(world, differs)["queries"]["delays"]["differs"] == 2
    assert seen(world, replace(runs, warm=True))["rejoin"] is None


def test_member_lacks_no_batch_of_a_query_that_only_the_active_runs(world: World) -> None:
    world.ghost.link()
    world.wait(1)
    standby = (QueryReport("delays", "standby", 0, 0, 0, 0),)
    passive = replace(JOINS, role="passive", query_process_connected=True, queries=standby)
    assert seen(world, passive)["rejoin"] == lacks("batches", 0, 0)


def test_another_journal_of_a_listed_node_is_not_in_sync(world: World) -> None:
    world.ghost.link()
    world.wait(1)
    assert seen(world, replace(JOINS, journal_id="j3"))["in_sync"] is False


@pytest.mark.parametrize(("report", "age"), [(None, 0.0), (JOINS, SILENT_SECONDS + 1)])
def test_silent_peer_is_shown_as_not_answering(
    world: World, report: Report | None, age: float
) -> None:
    node = seen(world, report, age)
    assert node.pop("answers") is False
    assert node.pop("refused") == "another application"
    assert node.pop("unreachable") == "nothing listens"
    assert set(node.values()) == {None}


def test_node_with_the_higher_epoch_is_active_when_two_claim_it(world: World) -> None:
    tree = cluster(world, Links(replace(JOINS, role="active", epoch=2)))
    assert (tree["node"], tree["active"]) == ("a", "b")


def test_refused_node_that_is_no_peer_is_shown_as_unknown(world: World) -> None:
    assert cluster(world, Links(None))["unknown_peers"] == {"c": "nobody knows it"}
