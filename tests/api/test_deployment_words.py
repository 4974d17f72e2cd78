"""The progress of a deployment, as the page and ``ha-engine status`` tell it."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.console import Console

from ha_engine.api.cluster import cluster_of, report_of
from ha_engine.api.rollout import RESTART_SECONDS
from ha_engine.cli.cluster_table import cluster_table
from ha_engine.core import inputs as on
from ha_engine.core.rollout import Rollout
from ha_engine.sync import Hello, Report
from ha_engine.types import LeaseRow, Member
from tests.core.world import World
from tests.sync.pair import hello

NEW, OLD = "b1946ac92492d234", ""
ACTIVE = Report("active", "", 1, "", "ja", 0, 0, 0, False, True, True, False, True)
LATE = RESTART_SECONDS + 1


class Links:
    """The peers b and c, of which some are connected."""

    def __init__(self, hellos: Mapping[str, Hello], away: float = 1.0) -> None:
        self.said, self.away = {"a": hello("a")} | dict(hellos), away

    def names(self) -> list[str]:
        return ["b", "c"]

    def hellos(self) -> dict[str, Hello]:
        return self.said

    def reports(self) -> dict[str, tuple[float, Report]]:
        follows = replace(ACTIVE, role="passive", epoch=0)
        return {name: (0.1, replace(follows, journal_id=name)) for name in self.said if name != "a"}

    def refusals(self) -> dict[str, str]:
        return {}

    unreachable = refusals

    def silent_seconds(self) -> dict[str, float]:
        return {name: self.away for name in self.names() if name not in self.said}


class Group:
    """The active a with a deployment that began ``seconds`` ago while b was in sync. Nodes without
    a link lost it ``away`` seconds ago. a runs the archive ``runs``, and the former one at
    first."""

    def __init__(self, seconds: float = LATE, away: float = 1.0) -> None:
        self.world, self.runs, self.away = World(), OLD, away
        self.world.start()
        self.world.ghost.link()
        self.world.wait(1)
        at_us = int(1e6 * (time.time() - seconds))
        self.world.feed(on.DeployAsked(NEW, "flights", "alice", at_us, "", "reset"))
        self.world.wait(1)
        self.core = self.world.core
        self.core.rollout.archives |= {"b": None, "c": None}

    def tree(self, in_sync: str = "", backup: str | None = None, **runs: str) -> dict[str, Any]:
        """GET /v1/cluster of a, where ``runs`` has the archive of each connected peer."""
        self.core.identity = replace(self.core.identity, backup=backup)
        row = self.core.lease.row
        assert isinstance(row, LeaseRow)
        listed = tuple(Member(name, name) for name in in_sync)
        self.core.lease.row = replace(row, in_sync=(*row.in_sync[:1], *listed))
        runs = {"a": self.runs, **runs}
        links = Links(
            {name: hello(name, archive=archive) for name, archive in runs.items()}, self.away
        )
        return dict(cluster_of(self.core, "g", report_of(self.core, self.world.now, 0), links))

    def told(self, in_sync: str = "", backup: str | None = None, **runs: str) -> tuple[str, str]:
        rollout = self.tree(in_sync, backup, **runs)["rollout"]
        return rollout["state"], rollout["progress"]


def test_a_group_without_a_deployment_shows_the_versions_of_its_nodes() -> None:
    world = World()
    world.start()
    report = report_of(world.core, world.now, 0)
    tree = cluster_of(
        world.core, "g", report, Links({"b": hello("b", engine="1.2.4", protocol_max=2)})
    )
    assert tree["rollout"] is None
    node = tree["nodes"]["b"]
    assert (node["version"], node["protocol_min"], node["protocol_max"]) == ("1.2.4", 1, 2)
    assert node["application"] == {
        "digest": "a" * 32, "archive": None, "deployment": None, "is_former": False,
    }  # fmt: skip


def test_the_words_follow_a_deployment_to_its_end() -> None:
    group, goes_on = Group(), "a takes events with the former application until"
    restart = f"b and c restart with it; {goes_on} b and c have restarted, and then hands over."
    assert group.told(b=OLD, c=OLD) == ("moving", restart)
    # Nodes that restart are away.
    assert group.told(c=OLD) == group.told() == ("moving", restart)
    assert group.told(b=NEW, c=OLD) == (
        "moving",
        f"b runs it; c restarts with it; {goes_on} b is in sync, and then hands over.",
    )
    assert group.told("b", b=NEW, c=NEW) == (
        "moving",
        "b and c run it; a hands over to b, and then restarts with it.",
    )
    group.runs = NEW
    assert group.told(b=NEW, c=NEW) == ("done", "Every node runs it.")
    assert group.told("b", b=NEW, c=OLD) == ("moving", "a and b run it; c restarts with it.")


def test_the_active_waits_for_no_backup_and_shows_a_follower_that_does_not_come_back() -> None:
    group = Group(away=LATE)
    assert group.told(b=OLD, c=NEW, backup="c") == (
        "moving",
        "c runs it; b restarts with it; a takes events with the former application until b has "
        "restarted, and then hands over.",
    )
    assert group.told(c=NEW, backup="c") == (
        "waiting",
        "c runs it; a takes events with the former application, and waits: b does not answer, "
        "perhaps because the application does not start there.",
    )


def test_a_pause_of_failover_holds_a_deployment() -> None:
    group = Group()
    row = group.core.lease.row
    assert row is not None
    group.core.lease.row = replace(row, paused=True)
    state, words = group.told("b", b=NEW, c=NEW)
    assert state == "waiting"
    assert "waits: failover is paused, until an operator resumes it" in words


def test_absent_nodes_get_the_deployment_later_unless_they_had_it() -> None:
    group = Group(away=LATE)
    group.runs = NEW
    absent = "a and b run it; c does not answer"
    assert group.told(b=NEW) == ("done", f"{absent}, and will get it at the next start.")
    group.core.rollout.archives["c"] = NEW
    assert group.told(b=NEW) == ("done", f"{absent}.")


def test_a_process_that_has_just_restarted_does_not_call_the_others_absent() -> None:
    group = Group(seconds=1)
    group.runs = NEW
    group.core.rollout.archives.clear()
    assert group.told() == ("moving", "a runs it; b and c restart with it.")


def test_failover_long_after_a_deployment_does_not_show_it_as_under_way() -> None:
    group = Group()
    group.runs = NEW
    group.core.rollout.archives |= {"b": NEW, "c": NEW}
    for away in (1.0, LATE):
        group.away = away
        tree = group.tree(c=NEW)
        assert tree["rollout"]["state"] == "done"
        assert tree["rollout"]["restarting"] == []
    report = replace(ACTIVE, role="passive", epoch=0)
    tree = cluster_of(group.core, "g", report, Links({"a": hello("a", archive=NEW)}))
    assert tree["active"] is None
    assert tree["rollout"]["state"] == "done"


def test_active_without_a_follower_in_sync_waits_for_no_node() -> None:
    group = Group()
    group.core.rollout = Rollout(group.core.deployment, group.core.journal)
    group.core.rollout.archives["b"] = None
    words = "b and c restart with it; a restarts with it, since no other node can take over."
    assert group.told(b=OLD, c=OLD) == ("moving", words)


def test_table_shows_what_each_node_runs_and_the_progress() -> None:
    group = Group()
    text = table(group.tree(b=NEW, c=OLD))
    assert "deployment 1 of flights (b1946ac9, by alice, " in text
    assert "b runs it; c restarts with it; a takes events with the former" in text
    assert "a, c: former file of the config (aaaaaaaa), ha_engine 0.1.0, sync protocol " in text
    assert "b: deployment 1 (b1946ac9), ha_engine 0.1.0, sync protocol " in text


def test_table_of_a_node_of_an_older_version_lacks_only_what_that_does_not_say() -> None:
    tree = Group().tree(b=NEW, c=OLD)
    del tree["rollout"]
    for node in tree["nodes"].values():
        for name in ("version", "protocol_min", "protocol_max", "application"):
            del node[name]
    text = table(tree)
    assert "protected" in text
    assert "sync protocol" not in text


def table(tree: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=400)
    console.print(cluster_table(tree))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
