"""The reasons for which the gate refuses valid events."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ha_engine.receive.backlog import DISK_RETRY_SECONDS, Disk, NodeBacklog


def refusal(waiting: int, directory: Path, min_free: int) -> str:
    backlog = NodeBacklog(lambda stream: waiting, 100, Disk(directory, min_free), lambda: None)
    found = backlog.refusal("flights")
    return "" if found is None else str(found)


def test_gate_accepts_events_while_queries_keep_up_and_the_disk_has_room(tmp_path: Path) -> None:
    assert refusal(99, tmp_path, 1) == ""


def test_too_many_events_without_a_batch_cause_back_pressure(tmp_path: Path) -> None:
    assert "100 events wait for a batch" in refusal(100, tmp_path, 1)


def test_slow_query_causes_back_pressure_for_the_streams_that_it_reads(tmp_path: Path) -> None:
    waiting = {"flights": 100, "orders": 99}
    backlog = NodeBacklog(waiting.__getitem__, 100, Disk(tmp_path, 1), lambda: None)
    assert "100 events wait for a batch" in str(backlog.refusal("flights"))
    assert backlog.refusal("orders") is None


def test_disk_without_its_reserve_causes_back_pressure_naming_the_directory(
    tmp_path: Path,
) -> None:
    more_than_there_is = shutil.disk_usage(tmp_path).total + 1
    assert str(tmp_path) in refusal(0, tmp_path, more_than_there_is)


@pytest.mark.parametrize(("size", "refused"), [(99, False), (100, True), (101, True)])
def test_journal_at_its_limit_causes_back_pressure_until_a_snapshot(
    tmp_path: Path, size: int, refused: bool
) -> None:
    disk = Disk(tmp_path, 1, lambda: size, 100)
    found = NodeBacklog(lambda stream: 0, 100, disk, lambda: None).refusal("flights")
    assert disk.has_room is not refused
    assert ("max_size of 100B; a snapshot makes room" in str(found)) is refused


def test_full_member_causes_back_pressure_that_names_it(tmp_path: Path) -> None:
    backlog = NodeBacklog(lambda stream: 0, 100, Disk(tmp_path, 1), lambda: "node-b")
    found = backlog.refusal("flights")
    assert found is not None
    assert "the disk of node-b" in str(found)
    assert found.retry_after_seconds == DISK_RETRY_SECONDS
