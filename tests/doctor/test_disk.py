"""The doctor's checks of the data directory and its disk."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from ha_engine.doctor import disk
from ha_engine.doctor.finding import State
from tests.doctor.configs import config_in


def test_a_directory_that_this_user_may_create_passes(tmp_path: Path) -> None:
    finding = disk.data_dir(tmp_path / "absent" / "data")
    assert finding.state is State.OK
    assert finding.text.endswith(f"does not exist yet; the node creates it in {tmp_path}")
    assert disk.mode(tmp_path / "absent" / "data").state is State.OK
    assert not (tmp_path / "absent").exists()


def test_a_file_in_place_of_the_directory_fails(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    finding = disk.data_dir(tmp_path / "data")
    assert (finding.state, finding.text) == (State.FAILED, f"{tmp_path}/data is not a directory")


@pytest.mark.parametrize(
    ("mode", "state"),
    [
        (0o700, State.OK),
        (0o710, State.WARNING),
        (0o750, State.WARNING),
        (0o770, State.FAILED),
        (0o777, State.FAILED),
    ],
)
def test_other_users_may_neither_change_nor_read_the_directory(
    tmp_path: Path, mode: int, state: State
) -> None:
    home = tmp_path / "data"
    home.mkdir()
    home.chmod(mode)
    assert disk.mode(home).state is state
    assert disk.data_dir(home).state is State.OK


def test_less_free_space_than_the_config_needs_fails(tmp_path: Path) -> None:
    free = psutil.disk_usage(str(tmp_path)).free
    enough = config_in(tmp_path, journal={"min_free": "1KiB"}, outbox={"max_bytes": "1MiB"})
    assert disk.space(enough).state is State.OK
    lacking = config_in(tmp_path, journal={"min_free": f"{2 * free}B"})
    finding = disk.space(lacking)
    assert finding.state is State.FAILED
    assert "less than journal.min_free" in finding.text


def test_a_journal_that_may_fill_the_disk_is_a_warning(tmp_path: Path) -> None:
    free = psutil.disk_usage(str(tmp_path)).free
    limits = {"min_free": "1KiB", "max_size": f"{2 * free}B"}
    finding = disk.space(config_in(tmp_path, journal=limits))
    assert finding.state is State.WARNING
    assert "journal and outbox may grow by" in finding.text


def test_the_file_system_is_named(tmp_path: Path) -> None:
    assert disk.file_system(tmp_path / "absent").text.startswith(f"{tmp_path} is on ")


def test_a_file_system_in_memory_is_a_warning() -> None:
    finding = disk.file_system(Path("/dev/shm"))
    assert (finding.state, "is on tmpfs" in finding.text) == (State.WARNING, True)


def test_fsync_is_measured_and_leaves_no_file(tmp_path: Path) -> None:
    finding = disk.fsync(tmp_path, sync_timeout=60)
    assert finding.state in (State.OK, State.WARNING)
    assert "an fsync of 4 KiB" in finding.text
    assert os.listdir(tmp_path) == []


def test_an_fsync_slower_than_the_sync_timeout_fails(tmp_path: Path) -> None:
    finding = disk.fsync(tmp_path, sync_timeout=0)
    assert (finding.state, "so the active drops this node" in finding.text) == (State.FAILED, True)
