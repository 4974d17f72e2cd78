"""A node that lost its disk returns from a snapshot; the active continues meanwhile."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.flights import flying
from tests.e2e.node_under_test import NodeUnderTest, command
from tests.e2e.pair import Pair
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly("test_archive restores a node; the simulator restores in its histories"),
]

ON_DEMAND: dict[str, dict[str, Any]] = {
    "snapshot": {"interval": "0s", "revisions_to_keep": 1},
    "journal": {"segment_size": "64KiB"},
}


def snapshot_now(node: NodeUnderTest) -> dict[str, Any]:
    ended = node.command("snapshot", "now", "-f", "json")
    assert (ended.code, ended.err) == (0, "")
    taken: dict[str, Any] = json.loads(ended.out)
    return taken


def base_of(node: NodeUnderTest) -> int:
    status = node.status()
    return 0 if status is None else int(status["journal"]["base_sequence"])


def test_a_node_whose_disk_was_wiped_restores_and_takes_over(
    node_database: str, tmp_path: Path
) -> None:
    with flying(tmp_path, node_database, **ON_DEMAND) as flights:
        pair = flights.pair
        active = pair.wait_protected()
        passive = pair.other(active)
        refused = passive.send("departures", [{}])
        assert (refused.status_code, refused.json()["active"]) == (503, active.url)
        flights.send(6_000)
        # Under load the passive may be some batches behind. Only a warm passive takes the snapshot.
        pair.wait_protected()
        first = snapshot_now(active)
        assert first["taken_by"] == passive.name
        flights.send(2_000)
        second = snapshot_now(active)
        assert second["sequence"] > first["sequence"]
        config = str(passive.config_path)
        listed = command("snapshot", "list", "-c", config, "-f", "json")
        assert [one["id"] for one in json.loads(listed.out)["revisions"]] == [second["id"]]
        verified = command("snapshot", "verify", "-c", config)
        assert (verified.code, verified.out) == (0, f"revision {second['id']}: undamaged\n")

        # RULES.md#r29: both trim the records that the revision makes needless.
        wait_until(lambda: 0 < base_of(active) <= second["sequence"], within=60, every=0.2)
        wait_until(lambda: 0 < base_of(passive) <= second["sequence"], within=60, every=0.2)
        passive.kill_everything()
        shutil.rmtree(passive.data_dir)
        flights.send(2_000)
        passive.start()
        assert pair.wait_protected() is active
        assert "restored snapshot replaced journal" in passive.log_text()
        assert base_of(passive) == second["sequence"]
        flights.send(2_000)

        switch_over(pair, active, passive)
        flights.send(2_000)
        flights.require_equal()
        lose_checkpoints(active)
        active.start()
        assert pair.wait_protected() is passive
        assert active.log_text().count("lost query state restored from a snapshot") == 2
        switch_over(pair, passive, active)
        flights.send(2_000)
        flights.require_equal()
        assert "a batch differs" not in active.log_text() + passive.log_text()


def switch_over(pair: Pair, from_node: NodeUnderTest, to: NodeUnderTest) -> None:
    ended = from_node.command("switchover", "--to", to.name, "--wait", "60")
    assert (ended.code, ended.err) == (0, "")
    assert pair.wait_protected() is to


def lose_checkpoints(node: NodeUnderTest) -> None:
    """Leave the files of a loss of power: Spark writes without fsync, but the journal is whole."""
    node.kill_everything()
    shutil.rmtree(node.data_dir / "checkpoints")


def test_operator_continues_from_the_snapshot_when_both_disks_are_lost(
    node_database: str, tmp_path: Path
) -> None:
    with flying(tmp_path, node_database, **ON_DEMAND) as flights:
        pair = flights.pair
        active = pair.wait_protected()
        other = pair.other(active)
        flights.send(6_000)
        active.wait_settled()
        pair.wait_protected()  # so that the passive takes the snapshot
        taken = snapshot_now(active)
        place = f"{taken['epoch']}.{taken['sequence']}"
        config = str(active.config_path)
        words = ("snapshot", "restore", active.name, "--yes", "--config", config)
        refused = command(*words)
        assert (refused.code, "still runs" in refused.err) == (1, True)
        for node in (active, other):
            node.kill_everything()
        refused = command(*words)
        assert (refused.code, "holds a journal" in refused.err) == (1, True)
        for node in (active, other):
            shutil.rmtree(node.data_dir)
        done = command(*words)
        assert (done.code, done.err) == (0, "")
        restored = f"{active.name} is restored to position {place}, as stored by {other.name}"
        assert restored in done.out

        active.start()
        off = ("failover", "--force", "--confirm-fenced", other.name, "--yes")
        wait_until(lambda: active.command(*off).code == 0, within=60, every=1.0)
        other.start()
        assert pair.wait_protected() is active
        flights.send(6_000)
        flights.require_equal()
