"""The node's directory: what it keeps is durable when it says so."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ha_engine.core import HighWater
from ha_engine.errors import DataDirectoryLocked
from ha_engine.node.data_dir import DataDirectory
from ha_engine.system.file_lock import earlier_process
from ha_engine.types import DatabaseIdentity


def test_a_kept_high_water_survives_a_loss_of_power_once_keep_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def observed(descriptor: int) -> None:
        fsync(descriptor)
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        synced.append((name, (tmp_path / "high_water.json").exists()))

    monkeypatch.setattr(os, "fsync", observed)
    data = DataDirectory(tmp_path, "p1")
    data.keep(HighWater(3, 7))
    # The content before the rename, the rename before it returns.
    assert synced == [("high_water.tmp", False), (tmp_path.name, True)]
    assert data.high_water() == HighWater(3, 7)
    data.close()


def test_every_field_of_the_high_water_is_kept(tmp_path: Path) -> None:
    whole = HighWater(3, 7, DatabaseIdentity("7000", "00000002"), forced=3, tried=(4, 8))
    data = DataDirectory(tmp_path, "p1")
    data.keep(whole)
    assert data.high_water() == whole
    data.close()


def test_a_high_water_of_before_forced_failovers_is_read(tmp_path: Path) -> None:
    (tmp_path / "high_water.json").write_text('{"epoch": 3, "version": 7, "identity": null}')
    data = DataDirectory(tmp_path, "p1")
    assert data.high_water() == HighWater(3, 7)
    data.close()


def test_one_node_at_a_time(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path, "p1")
    with pytest.raises(DataDirectoryLocked, match="is in use by another node"):
        DataDirectory(tmp_path, "p1")
    first.close()
    DataDirectory(tmp_path, "p1").close()


def test_who_had_the_directory_last_is_known_once_it_is_dead(tmp_path: Path) -> None:
    assert earlier_process(tmp_path) is None
    held = DataDirectory(tmp_path, "the-first-process-of-all")
    with pytest.raises(DataDirectoryLocked):
        earlier_process(tmp_path)
    held.close()
    assert earlier_process(tmp_path) == "the-first-process-of-all"
    DataDirectory(tmp_path, "p2").close()
    assert earlier_process(tmp_path) == "p2"


def test_the_process_that_has_the_original_of_a_copy_is_not_taken_for_dead(tmp_path: Path) -> None:
    living = DataDirectory(tmp_path / "original", "p1")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    assert earlier_process(tmp_path / "copy") is None
    living.close()


def test_a_process_of_before_the_kernel_started_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk may have gone to another host, and the lock with it."""
    DataDirectory(tmp_path, "p1").close()
    monkeypatch.setattr("ha_engine.system.file_lock.boot_id", lambda: "another-boot")
    assert earlier_process(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"p1", b"\xff\xfe " * 400])
def test_a_lock_that_names_nobody_is_nobodys(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "node.lock").write_bytes(content)
    assert earlier_process(tmp_path) is None
