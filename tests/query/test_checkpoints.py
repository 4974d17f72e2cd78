"""The checkpoint that a query may use, and the cases in which it must not start without one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ha_engine.errors import CheckpointIncomplete, DiskFailed, StateLost
from ha_engine.query.checkpoint_files import last_finished
from ha_engine.query.checkpoints import (
    adopt,
    batch_of_mark,
    carry_on,
    is_whole,
    mark_clean,
    open_checkpoint,
    open_fenced,
    rescale,
)
from ha_engine.snapshot.checkpoint_storage import CheckpointDirectories
from ha_engine.snapshot.restore import Places, finish
from ha_engine.system.fsync import boot_id


def written(root: Path, boot: str, size: int = 2) -> Path:
    """Write a checkpoint in which Spark wrote during this boot."""
    checkpoint = open_checkpoint(root, "q", "journal:1", boot=boot)
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir()
        (checkpoint / log / "0").write_text("v1")
    (checkpoint / "state" / "0" / "0").mkdir(parents=True)
    (checkpoint / "state" / "0" / "0" / "1.delta").write_bytes(b"x" * size)
    return checkpoint


def is_used_again(root: Path, boot: str, *, must_resume: bool = False) -> bool:
    found = open_checkpoint(root, "q", "journal:1", boot=boot, must_resume=must_resume)
    return (found / "offsets").exists()


def test_a_checkpoint_with_the_same_stamp_is_used_again(tmp_path: Path) -> None:
    (open_checkpoint(tmp_path, "q", "journal:1") / "offsets").touch()
    assert (open_checkpoint(tmp_path, "q", "journal:1") / "offsets").exists()


def test_a_checkpoint_with_another_stamp_is_not_used(tmp_path: Path) -> None:
    (open_checkpoint(tmp_path, "q", "journal:1") / "offsets").touch()
    assert not (open_checkpoint(tmp_path, "q", "journal:2") / "offsets").exists()


def test_state_that_must_resume_is_not_replaced_by_an_empty_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(StateLost, match="the query's checkpoint is lost"):
        open_checkpoint(tmp_path, "q", "journal:1", must_resume=True)
    assert not (tmp_path / "q").exists()


def test_state_that_must_resume_continues_from_its_checkpoint(tmp_path: Path) -> None:
    (open_checkpoint(tmp_path, "q", "journal:1") / "offsets").touch()
    resumed = open_checkpoint(tmp_path, "q", "journal:1", must_resume=True)
    assert (resumed / "offsets").exists()


def test_checkpoint_without_a_finished_batch_has_no_state(tmp_path: Path) -> None:
    """A loss of power before the first writeback leaves the stamp and empty directories."""
    (open_checkpoint(tmp_path, "q", "journal:1", boot="first") / "commits").mkdir()
    with pytest.raises(StateLost, match="the query's checkpoint is lost"):
        open_checkpoint(tmp_path, "q", "journal:1", must_resume=True, boot="second")


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_files_that_a_killed_spark_left_unfinished_are_deleted(tmp_path: Path, log: str) -> None:
    checkpoint = written(tmp_path, "boot")
    for name in (".1.519c6bbd.tmp", "..1.519c6bbd.tmp.crc", ".0.crc"):
        (checkpoint / log / name).touch()
    assert open_checkpoint(tmp_path, "q", "journal:1", boot="boot") == checkpoint
    assert {path.name for path in (checkpoint / log).iterdir()} == {"0", ".0.crc"}


def test_host_identifies_its_boot() -> None:
    assert len(boot_id()) == 36


def test_restart_within_one_boot_keeps_the_checkpoint_after_any_end(
    tmp_path: Path,
) -> None:
    written(tmp_path, "first", size=0)
    assert is_used_again(tmp_path, "first")


def test_a_checkpoint_of_an_earlier_boot_is_not_used_unless_it_was_marked_clean(
    tmp_path: Path,
) -> None:
    written(tmp_path, "first")
    assert not is_used_again(tmp_path, "second")
    written_again = open_checkpoint(tmp_path, "q", "journal:1", boot="second")
    (written_again / "offsets").mkdir()
    mark_clean(tmp_path, boot="second")
    assert is_used_again(tmp_path, "third")


def test_clean_marker_is_valid_for_one_start_only(tmp_path: Path) -> None:
    written(tmp_path, "first")
    mark_clean(tmp_path, boot="first")
    assert is_used_again(tmp_path, "second")
    assert not is_used_again(tmp_path, "third")


def test_a_clean_marker_does_not_outlive_a_restart_within_its_boot(tmp_path: Path) -> None:
    written(tmp_path, "first")
    mark_clean(tmp_path, boot="first")
    assert is_used_again(tmp_path, "first")
    assert not is_used_again(tmp_path, "second")


def test_checkpoint_of_an_earlier_boot_is_never_marked_clean(tmp_path: Path) -> None:
    written(tmp_path, "first")
    mark_clean(tmp_path, boot="second")
    assert not is_used_again(tmp_path, "second")


def test_state_that_must_resume_survives_a_loss_of_power_with_intact_files(
    tmp_path: Path,
) -> None:
    written(tmp_path, "first")
    assert is_used_again(tmp_path, "second", must_resume=True)


@pytest.mark.parametrize(
    "unfinished", ["offsets/.2.9a17.tmp", "offsets/2.tmp", "state/0/0/.2.delta.9a17.TID7.tmp"]
)
def test_state_that_must_resume_survives_with_an_unfinished_file(
    tmp_path: Path, unfinished: str
) -> None:
    place = written(tmp_path, "first") / unfinished
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()
    assert is_used_again(tmp_path, "second", must_resume=True)
    assert not place.exists() or place.match("state/*/*/*")


def test_state_that_must_resume_is_lost_with_any_emptied_file(
    tmp_path: Path,
) -> None:
    checkpoint = written(tmp_path, "first", size=0)
    with pytest.raises(StateLost, match="the query's checkpoint is lost"):
        is_used_again(tmp_path, "second", must_resume=True)
    assert (checkpoint / "offsets").exists()


def test_stamp_emptied_by_a_loss_of_power_matches_no_run(tmp_path: Path) -> None:
    (written(tmp_path, "first") / "ha_engine.stamp").write_bytes(b"")
    assert not is_used_again(tmp_path, "first")


@pytest.mark.parametrize("clean", [False, True])
def test_checkpoint_continued_under_changed_code_keeps_its_clean_marker(
    tmp_path: Path, clean: bool
) -> None:
    written(tmp_path, "first")
    if clean:
        mark_clean(tmp_path, boot="first")
    carry_on(tmp_path, "q", ["journal:9"], "journal:3")
    assert is_whole(tmp_path, "q", "journal:1", boot="first")
    carry_on(tmp_path, "q", ["journal:1"], "journal:3")
    assert is_whole(tmp_path, "q", "journal:3", boot="first")
    assert is_whole(tmp_path, "q", "journal:3", boot="second") is clean


# -- on a cluster ----------------------------------------------------------------------------------

STATE = "state/0/0"


def delete_now(checkpoints: Sequence[Path]) -> None:
    for checkpoint in checkpoints:
        shutil.rmtree(checkpoint, ignore_errors=True)


def fenced(root: Path, driver: str, *, must_resume: bool = False) -> Path:
    return open_fenced(root, "q", "journal:1", driver, must_resume=must_resume, delete=delete_now)


def worked(root: Path, driver: str) -> Path:
    """Open the checkpoint as ``driver``, finish its first batch, and begin the second."""
    path = fenced(root, driver)
    for name in ("metadata", "offsets/0", "commits/0", "offsets/1", f"{STATE}/1.delta"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(driver)
    return path


def test_next_driver_continues_after_the_last_finished_batch(tmp_path: Path) -> None:
    worked(tmp_path, "one")
    path = fenced(tmp_path, "two")
    assert last_finished(path) == 0
    assert (path / STATE / "1.delta").read_text() == "one"
    assert not (path / "offsets" / "1").exists()
    assert last_finished(tmp_path / "q") == 0  # what snapshots copy
    assert is_whole(tmp_path, "q", "journal:1")


def test_executor_with_an_open_directory_cannot_change_the_next_drivers_state(
    tmp_path: Path,
) -> None:
    directory = os.open(worked(tmp_path, "one") / STATE, os.O_RDONLY)
    path = open_fenced(tmp_path, "q", "journal:1", "two", delete=lambda _: None)
    late = os.open("2.delta", os.O_CREAT | os.O_WRONLY, dir_fd=directory)
    os.unlink("1.delta", dir_fd=directory)
    os.close(late)
    os.close(directory)
    assert [one.name for one in (path / STATE).iterdir()] == ["1.delta"]


def test_executor_finds_nothing_at_the_path_of_its_ended_driver(tmp_path: Path) -> None:
    earlier = worked(tmp_path, "one")
    later = fenced(tmp_path, "two")
    assert not earlier.exists()
    (earlier / STATE).mkdir(parents=True)  # as Hadoop does for the parent of a new file
    (earlier / STATE / "2.delta").touch()
    assert [one.name for one in (later / STATE).iterdir()] == ["1.delta"]
    last = fenced(tmp_path, "three")
    assert not earlier.exists()
    assert [one.name for one in (last / STATE).iterdir()] == ["1.delta"]


def test_paths_of_ended_drivers_leave_nothing_behind(tmp_path: Path) -> None:
    for driver in ("one", "two", "three"):
        path = fenced(tmp_path, driver)
    links = [one for one in (tmp_path / ".paths").rglob("*") if one.is_symlink()]
    assert links == [path]
    assert len(list((tmp_path / ".paths").rglob("*"))) == 2


def test_executor_cannot_reach_the_next_drivers_directory_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, rename = worked(tmp_path, "one"), os.rename

    def renamed(old: Path, new: Path) -> None:
        rename(old, new)
        assert not (earlier / STATE).exists()

    monkeypatch.setattr(os, "rename", renamed)
    fenced(tmp_path, "two")


def test_executor_cannot_reach_a_restored_checkpoint(tmp_path: Path) -> None:
    checkpoints, home = tmp_path / "checkpoints", tmp_path / "home"
    earlier = worked(checkpoints, "one")
    (checkpoints / ".restored" / "checkpoints" / "q").mkdir(parents=True)
    (home / ".restored" / "journal").mkdir(parents=True)
    assert finish(Places(home, checkpoints), CheckpointDirectories(checkpoints))
    assert (checkpoints / "q").exists()
    assert not earlier.exists()


def test_query_continues_the_checkpoint_of_its_shadow(tmp_path: Path) -> None:
    lineages = {"q": "journal:1", "q~4": "journal:4~"}
    for name, lineage in lineages.items():
        (open_checkpoint(tmp_path, name, lineage) / "offsets").write_text(name)
    adopt(tmp_path, "q", "q~4", "journal:3~", "journal:9")
    assert (tmp_path / "q" / "offsets").read_text() == "q"  # that shadow is another one
    for _ in range(2):  # a process that starts again repeats it
        adopt(tmp_path, "q", "q~4", "journal:4~", "journal:9")
        found = open_checkpoint(tmp_path, "q", "journal:9", must_resume=True)
        assert (found / "offsets").read_text() == "q~4"
        assert not (tmp_path / "q~4").exists()


@pytest.mark.parametrize("before", ["rename", "carry on"])
def test_crash_while_a_query_adopts_leaves_the_checkpoint_of_the_shadow(
    tmp_path: Path, before: str
) -> None:
    for name, lineage in (("q", "journal:1"), ("q~4", "journal:4~")):
        (open_checkpoint(tmp_path, name, lineage) / "offsets").write_text(name)
    (tmp_path / "q").rename(tmp_path / "aside")
    if before == "carry on":
        (tmp_path / "q~4").rename(tmp_path / "q")
    adopt(tmp_path, "q", "q~4", "journal:4~", "journal:9")
    found = open_checkpoint(tmp_path, "q", "journal:9", must_resume=True)
    assert (found / "offsets").read_text() == "q~4"


def test_checkpoint_that_a_crash_left_between_two_names_is_whole(tmp_path: Path) -> None:
    """The node asks before the query process finishes the renewal, and would restore a snapshot."""
    worked(tmp_path, "one")
    (tmp_path / "q").rename(tmp_path / "q.renewed")
    carry_on(tmp_path, "q", ["journal:1"], "journal:2")
    assert is_whole(tmp_path, "q", "journal:2")


@pytest.mark.parametrize("restored", [False, True])
def test_renewal_that_a_crash_interrupted_is_finished(tmp_path: Path, restored: bool) -> None:
    worked(tmp_path, "one")
    fenced(tmp_path, "two")
    # The crash came when the old directory had been renamed, and the new one had not.
    (tmp_path / "q").rename(tmp_path / "q.renewed")
    if restored:
        worked(tmp_path / "elsewhere", "snapshot")
        (tmp_path / "elsewhere" / "q").rename(tmp_path / "q")
    path = fenced(tmp_path, "three", must_resume=True)
    assert (path / STATE / "1.delta").read_text() == ("snapshot" if restored else "one")
    assert not (tmp_path / "q.renewed").exists()


def test_checkpoint_without_its_state_is_not_continued(tmp_path: Path) -> None:
    (worked(tmp_path, "one") / STATE / "1.delta").rename(tmp_path / "q" / STATE / "7.delta")
    with pytest.raises(StateLost):
        fenced(tmp_path, "two", must_resume=True)
    assert not is_whole(tmp_path, "q", "journal:1")  # so the node restores a snapshot
    assert last_finished(fenced(tmp_path, "three")) is None


CHANGES = ("link", "mkdir", "remove", "rename", "replace", "rmdir", "symlink", "unlink")


class Killed(BaseException):
    """The process ended."""


def fail_at(patch: pytest.MonkeyPatch, number: int, error: BaseException) -> Callable[[], bool]:
    """Raise ``error`` before a change of the file system; return whether it was raised."""
    changes, raised = count(1), list[str]()

    def failing(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **settings: Any) -> Any:
            if next(changes) == number:
                raised.append(name)
                raise error
            return change(*arguments, **settings)

        return called

    for name in CHANGES:
        patch.setattr(os, name, failing(name, getattr(os, name)))
    return lambda: bool(raised)


@pytest.mark.parametrize("must_resume", [False, True])
@pytest.mark.parametrize(
    "error",
    [Killed(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))],
    ids=["killed", "full disk"],
)
def test_start_that_ends_at_any_change_of_a_file_loses_no_state(
    tmp_path: Path, error: BaseException, must_resume: bool
) -> None:
    for number in count(1):
        root = tmp_path / str(number)
        worked(root, "one")
        with pytest.MonkeyPatch.context() as patch:
            failed = fail_at(patch, number, error)
            try:
                fenced(root, "two", must_resume=must_resume)
            except (Killed, DiskFailed):
                assert failed()
        assert is_whole(root, "q", "journal:1")
        path = fenced(root, "three", must_resume=must_resume)
        assert [one.name for one in sorted(path.rglob("*")) if one.is_file()] == [
            "0",
            "ha_engine.stamp",
            "metadata",
            "0",
            "1.delta",
        ]
        assert (path / STATE / "1.delta").read_text() == "one"
        assert sorted(one.name for one in root.iterdir()) == [".paths", "q"]
        assert len(list((root / ".paths").rglob("*"))) == 2
        if not failed():
            break
    assert number > 20


HEADING = 'v1\n{"conf":{"spark.sql.shuffle.partitions":"2"}}\n'


def scaled(root: Path) -> Path:
    """Write a checkpoint with two partitions after Spark's batch 0, and an unfinished batch 1."""
    checkpoint = written(root, boot_id())
    (checkpoint / "metadata").touch()
    for batch in ("0", "1"):
        (checkpoint / "offsets" / batch).write_text(HEADING)
    (checkpoint / "state" / "0" / "1").mkdir()
    (checkpoint / "state" / "0" / "1" / "1.delta").write_bytes(b"x")
    return checkpoint


def one_partition(copy: Path, number: int) -> None:
    """Write what Spark writes when it repartitions the state."""
    assert not (copy / "offsets" / "1").exists()
    (copy / "offsets" / "1").write_text(HEADING.replace('"2"', f'"{number}"'))
    (copy / "commits" / "1").write_text("v1")
    (copy / "state" / "0" / "0" / "2.snapshot").write_bytes(b"y")


def test_rescaled_checkpoint_has_no_former_partitions_and_continues_after_no_former_batch(
    tmp_path: Path,
) -> None:
    checkpoint = scaled(tmp_path)
    rescale(tmp_path, "q", 1, one_partition, delete=delete_now)
    assert sorted(path.name for path in (checkpoint / "commits").iterdir()) == ["1"]
    assert not (checkpoint / "state" / "0" / "1").exists()
    assert is_whole(tmp_path, "q", "journal:1")
    assert [path.name for path in tmp_path.iterdir()] == ["q"]


def test_snapshot_finds_no_batch_before_a_rescale(tmp_path: Path) -> None:
    """Spark's batch of a rescale has the mark of the batch before it, whose state is gone."""
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
    for batch, mark in ((5, 6), (6, 7), (7, 7), (8, 8)):
        offset = f'{{"mark":{mark},"sequence":90}}'
        (tmp_path / "offsets" / str(batch)).write_text(f"{HEADING}{offset}")
    for batch in ("7", "8"):
        (tmp_path / "commits" / batch).write_text("v1")
    assert [batch_of_mark(tmp_path, mark) for mark in (7, 8)] == [7, 8]
    with pytest.raises(CheckpointIncomplete, match="no finished batch 6"):
        batch_of_mark(tmp_path, 6)


def test_checkpoint_that_has_the_number_is_left_alone(tmp_path: Path) -> None:
    scaled(tmp_path)

    def refuse(copy: Path, number: int) -> None:
        raise AssertionError("the state has that number already")

    rescale(tmp_path, "q", 2, refuse)


def test_crash_while_the_state_is_rescaled_leaves_the_former_checkpoint(tmp_path: Path) -> None:
    """RULES.md#r35: Spark has written a part of the new state when the process dies."""
    checkpoint = scaled(tmp_path)
    before = sorted(str(path) for path in checkpoint.rglob("*"))

    def crash(copy: Path, number: int) -> None:
        one_partition(copy, number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rescale(tmp_path, "q", 1, crash)
    assert sorted(str(path) for path in checkpoint.rglob("*")) == before
    open_checkpoint(tmp_path, "q", "journal:1", must_resume=True, delete=delete_now)
    assert [path.name for path in tmp_path.iterdir()] == ["q"]
    rescale(tmp_path, "q", 1, one_partition, delete=delete_now)
    assert last_finished(checkpoint) == 1


def test_state_that_lacks_a_file_is_not_rescaled_and_not_used_again(tmp_path: Path) -> None:
    checkpoint = scaled(tmp_path)
    (checkpoint / "state" / "0" / "1" / "1.delta").rename(
        checkpoint / "state" / "0" / "1" / "9.delta"
    )
    with pytest.raises(CheckpointIncomplete):
        rescale(tmp_path, "q", 1, one_partition)
    assert not is_used_again(tmp_path, boot_id())
