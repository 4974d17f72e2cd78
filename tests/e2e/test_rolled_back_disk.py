"""A node whose disk went back in time is not trusted with what it once acked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.flights import flying
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly("schedules of the simulator play it"),
]


def test_node_with_an_older_image_of_its_disk_joins_again_without_loss(
    node_database: str, tmp_path: Path
) -> None:
    with flying(tmp_path, node_database, snapshot={"interval": "0s"}) as flights:
        pair = flights.pair
        active = pair.wait_protected()
        passive = pair.other(active)
        flights.send(6_000)
        passive.kill_everything()
        image = tmp_path / "image"
        shutil.copytree(passive.data_dir, image)
        passive.start()
        assert pair.wait_protected() is active
        flights.send(2_000)
        pair.wait_protected()

        passive.kill_everything()
        shutil.rmtree(passive.data_dir)
        image.rename(passive.data_dir)
        passive.start()
        wait_until(lambda: "the disk of a peer went back in time" in active.log_text(), within=60)
        assert pair.wait_protected() is active
        status = active.status()
        assert status is not None
        assert status["counts"]["peer_rollbacks"] == 1

        active.kill_everything()
        wait_until(lambda: pair.active() is passive, within=60, every=0.2)
        flights.send(2_000)
        flights.require_equal()
