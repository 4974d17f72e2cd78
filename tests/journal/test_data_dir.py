"""The data directory: its content is durable once a call returns."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from ha_engine.core import HighWater
from ha_engine.errors import DataDirectoryLocked, DiskFailed
from ha_engine.node.data_dir import DataDirectory
from ha_engine.system.file_lock import NODE_LOCK, earlier_process, lock_directory
from ha_engine.types import DatabaseIdentity
from tests.dst.disk import Crashed, SimulatedDisk, SimulatedFiles
from tests.journal.samples import flip


def test_high_water_survives_a_loss_of_power_once_keep_returns(tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path / "disk", Random(0))
    files = SimulatedFiles(disk)
    data = DataDirectory(disk.root / "data", "p1", files)
    data.keep(HighWater(3, 7))
    assert files.trace[-4:] == [
        "write data/high_water.tmp",
        "fsync data/high_water.tmp",
        "rename data/high_water.json",
        "fsync data",
    ]
    data.close()
    disk.lose_power()
    data = DataDirectory(disk.root / "data", "p2", files)
    assert data.high_water() == HighWater(3, 7)
    data.close()


@pytest.mark.parametrize("changes", [1, 2, 3])
def test_the_data_directory_itself_survives_a_loss_of_power(tmp_path: Path, changes: int) -> None:
    """Its first process may have been killed between two of its changes."""
    disk = SimulatedDisk(tmp_path / "disk", Random(0))
    first = SimulatedFiles(disk)
    first.crash_in = changes
    with pytest.raises(Crashed):
        DataDirectory(disk.root / "data", "p1", first).keep(HighWater(1, 1))
    data = DataDirectory(disk.root / "data", "p2", SimulatedFiles(disk))
    data.keep(HighWater(3, 7))
    data.close()
    disk.lose_power()
    data = DataDirectory(disk.root / "data", "p3", SimulatedFiles(disk))
    assert data.high_water() == HighWater(3, 7)
    data.close()


def test_a_high_water_that_was_read_survives_a_loss_of_power(tmp_path: Path) -> None:
    """The process that kept it was killed before its last fsync, so another process reads it."""
    disk = SimulatedDisk(tmp_path / "disk", Random(0))
    killed = SimulatedFiles(disk)
    data = DataDirectory(disk.root / "data", "p1", killed)
    killed.crash_in = 5
    with pytest.raises(Crashed):
        data.keep(HighWater(3, 7))
    data.close()
    data = DataDirectory(disk.root / "data", "p2", SimulatedFiles(disk))
    assert data.high_water() == HighWater(3, 7)
    data.close()
    disk.lose_power()
    data = DataDirectory(disk.root / "data", "p3", SimulatedFiles(disk))
    assert data.high_water() == HighWater(3, 7)
    data.close()


def test_every_field_of_the_high_water_is_kept(tmp_path: Path) -> None:
    whole = HighWater(3, 7, DatabaseIdentity("7000", "00000002"), forced=3, tried=(4, 8))
    data = DataDirectory(tmp_path, "p1")
    data.keep(whole)
    assert data.high_water() == whole
    data.close()


def test_high_water_file_older_than_forced_failovers_is_readable(tmp_path: Path) -> None:
    (tmp_path / "high_water.json").write_text('{"epoch": 3, "version": 7, "identity": null}')
    data = DataDirectory(tmp_path, "p1")
    assert data.high_water() == HighWater(3, 7)
    data.close()


def test_any_flipped_bit_of_the_high_water_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    whole = HighWater(31, 70, DatabaseIdentity("7000", "00000002"), forced=3, tried=(4, 8))
    data = DataDirectory(tmp_path, "p1")
    data.keep(whole)
    path = tmp_path / "high_water.json"
    for offset in range(path.stat().st_size):
        for bit in range(8):
            flip(path, offset, bit)
            with suppress(DiskFailed):
                assert data.high_water() == whole
            flip(path, offset, bit)
    data.close()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"epoch": 3}'])
def test_damaged_high_water_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "high_water.json").write_text(content)
    data = DataDirectory(tmp_path, "p1")
    with pytest.raises(DiskFailed, match=r"high_water\.json is damaged; run ha-engine reinit"):
        data.high_water()
    data.close()


def test_only_one_node_opens_a_data_directory(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path, "p1")
    with pytest.raises(DataDirectoryLocked, match="is in use by another node"):
        DataDirectory(tmp_path, "p1")
    first.close()
    DataDirectory(tmp_path, "p1").close()


def test_last_process_of_a_data_directory_is_known_once_it_is_dead(tmp_path: Path) -> None:
    assert earlier_process(tmp_path) is None
    held = DataDirectory(tmp_path, "the-first-process-of-all")
    with pytest.raises(DataDirectoryLocked):
        earlier_process(tmp_path)
    held.close()
    assert earlier_process(tmp_path) == "the-first-process-of-all"
    DataDirectory(tmp_path, "p2").close()
    assert earlier_process(tmp_path) == "p2"


def test_process_with_the_original_of_a_copied_directory_counts_as_alive(tmp_path: Path) -> None:
    living = DataDirectory(tmp_path / "original", "p1")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    assert earlier_process(tmp_path / "copy") is None
    living.close()


def test_process_of_an_earlier_boot_is_not_presumed_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may have moved to another host, and the lock with it."""
    DataDirectory(tmp_path, "p1").close()
    monkeypatch.setattr("ha_engine.system.file_lock.boot_id", lambda: "another-boot")
    assert earlier_process(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"p1", b"\xff\xfe " * 400])
def test_lock_without_a_process_names_no_earlier_process(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "node.lock").write_bytes(content)
    assert earlier_process(tmp_path) is None


@pytest.mark.parametrize("name", ["read only", "of a file"])
def test_a_directory_that_cannot_be_locked_is_a_failed_disk(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    place = {"read only": Path("/proc/self"), "of a file": tmp_path / "file" / "data"}[name]
    with pytest.raises(DiskFailed, match="free or replace the disk"):
        lock_directory(place, NODE_LOCK)
