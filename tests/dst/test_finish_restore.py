"""A restore that is interrupted between any two of its changes is completed by the next start."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import pytest

from ha_engine.snapshot.checkpoint_storage import CheckpointDirectories
from ha_engine.snapshot.restore import Places, finish
from ha_engine.system.files import make_directory, replace_file
from tests.dst.disk import Crashed, SimulatedDisk, SimulatedFiles

GIVEN_UP = "journal/given-up.1.3-1.4.frames"
BEFORE = {
    "journal/identity.json": b"old",
    GIVEN_UP: b"kept",
    "outbox/delays/1.arrow": b"old",
    "checkpoints/delays/state": b"old",
    ".restored/journal/identity.json": b"new",
    ".restored/outbox/delays/7.arrow": b"new",
    "checkpoints/.restored/checkpoints/delays/state": b"new",
}
AFTER = {
    "journal/identity.json": b"new",
    GIVEN_UP: b"kept",
    "outbox/delays/7.arrow": b"new",
    "checkpoints/delays/state": b"new",
}


def lose_everything(disk: SimulatedDisk) -> None:
    """Lose power, with the least that may be left."""
    disk.go_back(disk.image())


def lose_in_any_order(disk: SimulatedDisk) -> None:
    disk.reorders = True
    disk.lose_power()


FALLS: dict[str, Callable[[SimulatedDisk], None]] = {
    "the process dies": lambda disk: None,
    "power is lost with all changes": lose_everything,
    "power is lost with some changes": SimulatedDisk.lose_power,
    "power is lost with some changes in any order": lose_in_any_order,
}


@pytest.mark.parametrize("fall", FALLS)
def test_interrupted_restore_is_completed(tmp_path: Path, fall: str) -> None:
    for step in count(1):
        disk = SimulatedDisk(tmp_path / str(step), Random(step))
        places, files = _prepared(disk)
        files.crash_in = step
        try:
            finish_with(places, files)
        except Crashed:
            FALLS[fall](disk)
            finish_with(places, SimulatedFiles(disk))
            assert _found(places.home) == AFTER, f"interrupted before change {step}"
        else:
            assert step > 10
            break


def test_restore_survives_a_loss_of_power_at_once(tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path / "disk", Random(0))
    places, files = _prepared(disk)
    assert finish_with(places, files)
    lose_everything(disk)
    finish_with(places, SimulatedFiles(disk))
    assert _found(places.home) == AFTER


@pytest.mark.parametrize("seed", range(6))
def test_restore_that_was_not_durable_leaves_the_old_data_or_the_new(
    tmp_path: Path, seed: int
) -> None:
    """The process died before the disk had the name that says that the download is complete."""
    old = {name: content for name, content in BEFORE.items() if ".restored/" not in name}
    for step in count(1):
        disk = SimulatedDisk(tmp_path / str(step), Random(f"{seed} {step}"))
        places, files = _prepared(disk)
        files.rename(places.whole, places.coming)
        files.fsync_directory(places.home)
        files.rename(places.coming, places.whole)
        files.crash_in = step
        try:
            finish_with(places, files)
        except Crashed:
            lose_in_any_order(disk)
            finish_with(places, SimulatedFiles(disk))
            assert _found(places.home) in (old, AFTER), f"interrupted before change {step}"
        else:
            assert step > 10
            break


def finish_with(places: Places, files: SimulatedFiles) -> bool:
    return finish(places, CheckpointDirectories(places.checkpoints, files), files)


def _prepared(disk: SimulatedDisk) -> tuple[Places, SimulatedFiles]:
    """A data directory with a complete download, all durable."""
    files, home = SimulatedFiles(disk), disk.root / "data"
    for name, content in BEFORE.items():
        make_directory((home / name).parent, files=files)
        replace_file(home / name, [content], files)
    return Places(home, home / "checkpoints"), files


def _found(home: Path) -> dict[str, bytes]:
    files = [path for path in home.rglob("*") if path.is_file()]
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in files}
