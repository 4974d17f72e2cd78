"""The node's directory: what it keeps is durable when it says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ha_engine.core import HighWater
from ha_engine.data_dir import DataDirectory
from ha_engine.errors import DataDirectoryLocked
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
    data = DataDirectory(tmp_path)
    data.keep(HighWater(3, 7))
    # The content before the rename, the rename before it returns.
    assert synced == [("high_water.tmp", False), (tmp_path.name, True)]
    assert data.high_water() == HighWater(3, 7)
    data.close()


def test_every_field_of_the_high_water_is_kept(tmp_path: Path) -> None:
    whole = HighWater(3, 7, DatabaseIdentity("7000", "00000002"), forced=3, tried=(4, 8))
    data = DataDirectory(tmp_path)
    data.keep(whole)
    assert data.high_water() == whole
    data.close()


def test_a_high_water_of_before_forced_failovers_is_read(tmp_path: Path) -> None:
    (tmp_path / "high_water.json").write_text('{"epoch": 3, "version": 7, "identity": null}')
    data = DataDirectory(tmp_path)
    assert data.high_water() == HighWater(3, 7)
    data.close()


def test_one_node_at_a_time(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path)
    with pytest.raises(DataDirectoryLocked, match="is in use by another node"):
        DataDirectory(tmp_path)
    first.close()
    DataDirectory(tmp_path).close()
