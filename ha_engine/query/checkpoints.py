"""Open the checkpoint of a query if it is known to be complete, and set it aside otherwise.

The stamp of a checkpoint names its lineage: the journal and the version of the query for which
Spark wrote it (RULES.md#r8). The stamp also names the boot of the host in which Spark wrote the
checkpoint. The node process supplies the lineage, and this module only compares it.

Spark does not fsync its files, so a power loss may leave empty files. A checkpoint from an earlier
boot counts as complete only if it was marked clean.

On a cluster, executors of an earlier driver may outlive it, and may still write into a checkpoint
that the next driver opens. Two steps of ``open_fenced`` prevent that. The next driver gets new
directories, with links to the files of the old ones, so an executor that has an old directory open
changes nothing that is in use. And Spark gets a path that no earlier driver had, so an executor
that looks the path up again finds nothing.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from ha_engine.errors import CheckpointIncomplete, StateLost
from ha_engine.query.checkpoint_files import LOGS, copy_as_of, finished_batches, last_finished
from ha_engine.query.object_path import CheckpointPath
from ha_engine.query.offsets import SourcesDisagree, mark_of_batch, partitions_of_batch
from ha_engine.system.disk import disk
from ha_engine.system.files import OS_FILES, Files, make_directory, replace_file
from ha_engine.system.fsync import boot_id

log = structlog.get_logger(__name__)

STAMP_FILE = "ha_engine.stamp"
CLEAN_FILE = "ha_engine.clean"
EPOCH_FILE = "ha_engine.epoch"
"""The epoch of the active for which Spark writes the checkpoint, if only the active runs the
query."""
_ASIDE = ".set-aside-"
_RENEWED = ".renewed"
_PATHS = ".paths"
"""The directory with the paths that drivers get. A query's name never starts with a dot."""
_WRITTEN_BY_SPARK = (*LOGS, "state")
_UNFINISHED = "*.tmp*"
LOST = (
    "the query's checkpoint is lost, and the journal cannot rebuild the state, which is older than "
    "the journal or than the query's definition; the query waits for a snapshot with the state; if "
    "there will be none, run 'ha-engine reinit' on this node while another node is in sync, or set "
    "on_change to reset and change the query (a comment is enough) to begin with empty state"
)


def delete_in_thread(checkpoints: Sequence[Path]) -> None:
    """Delete old checkpoints in a thread, so that the start of a query does not wait."""

    def delete() -> None:
        for checkpoint in checkpoints:
            shutil.rmtree(checkpoint, ignore_errors=True)

    if checkpoints:
        threading.Thread(target=delete, name="delete old checkpoints", daemon=True).start()


def open_checkpoint(
    root: Path,
    query: str,
    lineage: str,
    *,
    must_resume: bool = False,
    boot: str | None = None,
    files: Files = OS_FILES,
    delete: Callable[[Sequence[Path]], None] = delete_in_thread,
) -> Path:
    """Return the stamped checkpoint directory of a query.

    A checkpoint that does not fit is set aside, and given to ``delete``. So are the checkpoints
    that earlier starts of the query have set aside, because a crash may have left some of them.

    Raises StateLost if ``must_resume`` is set and no checkpoint has the state. Raises DiskFailed.
    """
    directory, wanted = root / query, _Stamp(lineage, boot or boot_id())
    with disk(root):
        _finish_renewal(directory, files)
        usable = is_whole(root, query, lineage, boot=boot)
        if must_resume and not usable:
            usable = _may_be_complete(directory, wanted)
            if not usable:
                raise StateLost(LOST)
        if not usable:
            _set_aside(directory, files)
        _delete_unfinished(directory, files)
        make_directory(directory, files=files, durable=False)
        _stamp(directory, wanted, files)
        delete(sorted(root.glob(f"{query}{_ASIDE}*")))
    return directory


def open_fenced(
    root: Path,
    query: str,
    lineage: str,
    driver: str,
    *,
    must_resume: bool = False,
    delete: Callable[[Sequence[Path]], None] = delete_in_thread,
) -> Path:
    """Like ``open_checkpoint``, but no executor of an earlier driver can change the checkpoint.

    Return a path to the checkpoint that only the driver with the unique name ``driver`` gets.
    Raises what ``open_checkpoint`` raises.
    """
    # First, since the path of an earlier driver would lead to the new directory too.
    close_paths(root, query)
    directory = open_checkpoint(root, query, lineage, must_resume=must_resume, delete=delete)
    with disk(root):
        try:
            _renew(directory)
        except CheckpointIncomplete as error:
            disown(directory)
            if must_resume:
                raise StateLost(LOST) from error
            open_checkpoint(root, query, lineage, delete=delete)
        path = root / _PATHS / query / driver
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(directory.resolve())
        delete(sorted(root.glob(f"{query}{_ASIDE}*")))
    return path


def rescale(
    root: Path,
    query: str,
    number: int,
    repartition: Callable[[Path, int], None],
    *,
    delete: Callable[[Sequence[Path]], None] = delete_in_thread,
) -> None:
    """Give the state of an open checkpoint ``number`` partitions, if it has another number.

    ``repartition`` changes a copy of the checkpoint, so a crash leaves either the former number or
    the new one. Raises CheckpointIncomplete if a file of the state is missing. The query's next
    start then sets the checkpoint aside. Raises DiskFailed, and what ``repartition`` raises.
    """
    directory = root / query

    def change(copy: Path) -> None:
        repartition(copy, number)
        _forget_former_partitions(copy, number)

    with disk(root):
        finished = last_finished(directory)
        if finished is None or not (directory / "state").exists():
            return
        if partitions_of_batch(directory, finished) == number:
            return
        try:
            _renew(directory, change)
        except CheckpointIncomplete:
            disown(directory)
            raise
        delete(sorted(root.glob(f"{query}{_ASIDE}*")))


def _forget_former_partitions(checkpoint: Path, number: int) -> None:
    """Delete the partitions that the state no longer has, and the commits of the batches before.

    The files of these batches do not give the state after them any more, so nobody may continue
    after one of them.
    """
    for partition in (checkpoint / "state").glob("*/*"):
        if partition.name.isdecimal() and int(partition.name) >= number:
            shutil.rmtree(partition)
    *former, _ = sorted(finished_batches(checkpoint))
    for batch in former:
        (checkpoint / "commits" / str(batch)).unlink()


def close_paths(root: Path, query: str) -> None:
    """Delete the paths of drivers to the checkpoint of ``query``. Raises DiskFailed."""
    paths = root / _PATHS / query
    with disk(root):
        for path in paths.iterdir() if paths.exists() else ():
            if path.is_symlink():
                path.unlink()
            else:
                # An executor made the path again after it was deleted, and may still use it.
                shutil.rmtree(path, ignore_errors=True)


def is_whole(root: Path, query: str, lineage: str, *, boot: str | None = None) -> bool:
    """Whether the checkpoint belongs to ``lineage`` and is known to be complete.

    A checkpoint is complete if Spark wrote it in this boot, or if it was marked clean in its own
    boot.
    """
    checkpoint = _present(root, query)
    found = _Stamp.read(checkpoint)
    if found is None or found.lineage != lineage:
        return False
    return found.boot in (boot or boot_id(), _text(checkpoint / CLEAN_FILE).strip())


def carry_on(
    root: Path, query: str, earlier: Sequence[str], lineage: str, files: Files = OS_FILES
) -> None:
    """Change the lineage of a checkpoint from one of ``earlier`` to ``lineage``.

    The boot in the stamp remains, so the checkpoint is as complete as before. Raises DiskFailed.
    """
    checkpoint = _present(root, query)
    found = _Stamp.read(checkpoint)
    if found is not None and found.lineage in earlier:
        with disk(root):
            stamp = str(_Stamp(lineage, found.boot))
            replace_file(checkpoint / STAMP_FILE, [stamp.encode()], files)


def stamp_restored(checkpoint: Path, lineage: str, files: Files = OS_FILES) -> None:
    """Stamp a restored checkpoint as complete for ``lineage``, before Spark opens it.

    Raises DiskFailed.
    """
    with disk(checkpoint.parent):
        _stamp(checkpoint, _Stamp(lineage, boot_id()), files)


def offer(checkpoint: Path, epoch: int, files: Files = OS_FILES) -> None:
    """Let other nodes continue the checkpoint, which Spark is about to write for the active of
    ``epoch``.

    A renewed checkpoint has no epoch, so that no node takes it for one of another epoch. Raises
    DiskFailed.
    """
    with disk(checkpoint.parent):
        replace_file(checkpoint / EPOCH_FILE, [str(epoch).encode()], files)


def last_mark(root: Path, query: str) -> int | None:
    """The mark of the newest finished batch of the checkpoint, or None if there is no such batch.

    Raises DiskFailed, SourcesDisagree.
    """
    with disk(root):
        return newest_mark(_present(root, query))


def batch_of_mark(checkpoint: CheckpointPath, number: int) -> int:
    """The number that Spark gives to the finished batch that the mark ``number`` ends.

    Raises CheckpointIncomplete, OSError, SourcesDisagree.
    """
    finished = set(finished_batches(checkpoint))
    if finished:
        last = max(finished)
        batch = last - (mark_of_batch(checkpoint, last) - number)
        if batch in finished:
            return batch
    raise CheckpointIncomplete(f"{checkpoint} has no finished batch {number}")


def newest_mark(checkpoint: CheckpointPath) -> int | None:
    """The mark of the newest finished batch, or None. Raises OSError, SourcesDisagree."""
    finished = last_finished(checkpoint)
    return None if finished is None else mark_of_batch(checkpoint, finished)


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state after batch ``number`` in a checkpoint, which is Spark's batch ``batch``."""

    checkpoint: CheckpointPath
    number: int
    batch: int


def newest_shared(
    roots: Iterable[Path], query: str, lineages: Sequence[str], shared: Mapping[int, int]
) -> SharedState | None:
    """The newest state of ``query`` that an earlier active wrote and that this node can continue.

    ``roots`` have the checkpoints of all nodes. ``shared`` has, for each epoch, the newest batch
    that this node can continue after. Another node has another journal, so only the record in one
    of ``lineages`` must be the same. A checkpoint that cannot be read is left out.
    """
    records = {record_in(lineage) for lineage in lineages}
    found = (_readable(root / query, records, shared) for root in roots)
    return max(filter(None, found), key=lambda one: one.number, default=None)


def _readable(
    checkpoint: Path, records: Container[str], shared: Mapping[int, int]
) -> SharedState | None:
    try:
        return _shared(checkpoint, records, shared)
    except (OSError, ValueError, SourcesDisagree) as error:
        # A crash of the storage may leave torn files, and Spark deletes old ones meanwhile.
        log.warning("checkpoint cannot be read", path=str(checkpoint), reason=str(error))
        return None


def _shared(
    checkpoint: Path, records: Container[str], shared: Mapping[int, int]
) -> SharedState | None:
    stamp, epoch = _Stamp.read(checkpoint), _text(checkpoint / EPOCH_FILE)
    if stamp is None or record_in(stamp.lineage) not in records or not epoch.isdecimal():
        return None
    return newest_up_to(checkpoint, shared.get(int(epoch), 0))


def newest_up_to(checkpoint: CheckpointPath, newest: int) -> SharedState | None:
    """The state after the newest finished batch up to batch ``newest``, if there is one.

    Raises OSError, ValueError, SourcesDisagree.
    """
    for batch in sorted(finished_batches(checkpoint), reverse=True):
        if (number := mark_of_batch(checkpoint, batch)) <= newest:
            return SharedState(checkpoint, number, batch)
    return None


def record_in(lineage: str) -> str:
    """The record that began or continued the state, without the journal's id."""
    return lineage.rpartition(":")[2]


def adopt(
    root: Path, query: str, shadow: str, earlier: str, lineage: str, files: Files = OS_FILES
) -> None:
    """Give ``query`` the checkpoint of its ``shadow`` under the lineage ``lineage``, if there is
    one of the lineage ``earlier`` (RULES.md#r38).

    A crash leaves the checkpoint under one of the two names. Raises DiskFailed.
    """
    directory, made = root / query, root / shadow
    with disk(root):
        found = _Stamp.read(made)
        if found is not None and found.lineage == earlier:
            _set_aside(directory, files)
            files.rename(made, directory)
            files.fsync_directory(root)
    carry_on(root, query, [earlier], lineage, files)


def disown(checkpoint: Path, files: Files = OS_FILES) -> None:
    """Make the next ``open_checkpoint`` set the checkpoint aside, because no batch can continue it.

    Raises DiskFailed.
    """
    with disk(checkpoint.parent):
        files.unlink(checkpoint / STAMP_FILE, missing_ok=True)
        files.fsync_directory(checkpoint)


class Checkpoints(Protocol):
    """The checkpoints that the queries of this process write. Each method raises DiskFailed."""

    def open(self, query: str, lineage: str, *, must_resume: bool) -> CheckpointPath:
        """Return the checkpoint of a query.

        Raises StateLost if ``must_resume`` is set and no checkpoint has the state.
        """

    def last_mark(self, query: str) -> int | None:
        """The mark of the newest finished batch in an open checkpoint, or None.

        Raises SourcesDisagree.
        """

    def rescale(self, query: str, number: int, repartition: Callable[[Path, int], None]) -> None:
        """Give the state in an open checkpoint ``number`` partitions, if it has another number.

        Raises what ``repartition`` raises, and QueryProcessFailed if the storage
        does not allow it.
        """

    def offer(self, query: str, epoch: int) -> None:
        """Let other nodes continue an open checkpoint, which Spark is about to write for the active
        of ``epoch``."""

    def adopt(self, query: str, shadow: str, earlier: str, lineage: str) -> None:
        """Let a query continue the checkpoint of its shadow, which no longer runs; see ``adopt``.

        Raises QueryProcessFailed if the storage does not allow it.
        """

    def disown(self, query: str) -> None:
        """Make the next ``open`` begin with empty state, because no batch can continue this one."""

    def mark_clean(self) -> None:
        """Make the checkpoints usable after a reboot. No process writes to them any more."""


@dataclass(frozen=True, slots=True)
class CheckpointsOnDisk:
    """Checkpoints in directories below ``root``.

    ``new_driver`` returns a unique name if executors of an earlier driver may still write.
    """

    root: Path
    new_driver: Callable[[], str] | None = None

    def open(self, query: str, lineage: str, *, must_resume: bool) -> Path:
        if self.new_driver is None:
            return open_checkpoint(self.root, query, lineage, must_resume=must_resume)
        return open_fenced(self.root, query, lineage, self.new_driver(), must_resume=must_resume)

    def last_mark(self, query: str) -> int | None:
        return last_mark(self.root, query)

    def rescale(self, query: str, number: int, repartition: Callable[[Path, int], None]) -> None:
        rescale(self.root, query, number, repartition)

    def offer(self, query: str, epoch: int) -> None:
        if self.new_driver is not None:
            offer(self.root / query, epoch)

    def adopt(self, query: str, shadow: str, earlier: str, lineage: str) -> None:
        adopt(self.root, query, shadow, earlier, lineage)

    def disown(self, query: str) -> None:
        disown(self.root / query)

    def mark_clean(self) -> None:
        mark_clean(self.root)


def mark_clean(root: Path, *, boot: str | None = None) -> None:
    """Mark the checkpoints below ``root`` clean, so that they can be used after a reboot.

    The caller ensures that no process writes to the checkpoints any more.

    Raises DiskFailed.
    """
    this_boot = boot or boot_id()
    with disk(root):
        OS_FILES.sync(root)
        for stamp in root.glob(f"*/{STAMP_FILE}"):
            found = None if _ASIDE in stamp.parent.name else _Stamp.read(stamp.parent)
            if found is not None and found.boot == this_boot:
                replace_file(stamp.with_name(CLEAN_FILE), [this_boot.encode()])


@dataclass(frozen=True, slots=True)
class _Stamp:
    """The stamp of a checkpoint.

    ``lineage`` comes from the node process. ``boot`` is the boot of the host in which Spark last
    wrote.
    """

    lineage: str
    boot: str

    @classmethod
    def read(cls, directory: Path) -> _Stamp | None:
        match _text(directory / STAMP_FILE).splitlines():
            case [lineage, boot]:
                return cls(lineage, boot)
        return None

    def __str__(self) -> str:
        return f"{self.lineage}\n{self.boot}\n"


def _may_be_complete(directory: Path, wanted: _Stamp) -> bool:
    """Whether the checkpoint has the wanted lineage, a finished batch and no empty file.

    A file that was not finished does not count. Spark itself checks everything else when it opens
    the checkpoint. ``_may_be_complete`` is a weaker check than ``is_whole``, only for state that
    nothing can rebuild.
    """
    found = _Stamp.read(directory)
    if found is None or found.lineage != wanted.lineage or last_finished(directory) is None:
        return False
    files = (path for part in _WRITTEN_BY_SPARK for path in (directory / part).rglob("*"))
    return all(
        path.stat().st_size for path in files if path.is_file() and not path.match(_UNFINISHED)
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _stamp(directory: Path, wanted: _Stamp, files: Files = OS_FILES) -> None:
    """Write the stamp before Spark writes, since a checkpoint in use must not count as clean."""
    if _Stamp.read(directory) != wanted:
        replace_file(directory / STAMP_FILE, [str(wanted).encode()], files)
        files.fsync_directory(directory.parent)
    if (directory / CLEAN_FILE).exists():
        files.unlink(directory / CLEAN_FILE)
        files.fsync_directory(directory)


def _delete_unfinished(directory: Path, files: Files) -> None:
    """Delete the files that Spark or ``offsets`` was writing to the logs when it was killed.

    Both rename such a file once it is complete. Spark begins its first batch only if its logs are
    empty, so a file that was left there would fail the query for ever.
    """
    for log in LOGS:
        for unfinished in (directory / log).glob(_UNFINISHED):
            files.unlink(unfinished)


def _renew(directory: Path, change: Callable[[Path], None] = lambda _: None) -> None:
    """Replace ``directory`` and all directories in it by new ones with links to its files, after
    ``change`` has changed the new ones.

    A batch that is not finished is left out. Spark makes it again.
    """
    renewed = _renewed(directory)
    # A new name, since executors of an earlier driver may still write to one that it has used.
    building = _aside(directory)
    building.mkdir()
    if (finished := last_finished(directory)) is not None:
        copy_as_of(directory, finished, building)
    change(building)
    shutil.copy2(directory / STAMP_FILE, building)
    building.rename(renewed)
    _set_aside(directory, OS_FILES)
    renewed.rename(directory)


def _finish_renewal(directory: Path, files: Files) -> None:
    """Finish a renewal that a crash interrupted.

    If there is a ``directory`` too, it is the one to be renewed, or a restore has made it since.
    """
    renewed = _renewed(directory)
    if renewed.exists():
        if directory.exists():
            files.rmtree(renewed)
        else:
            files.rename(renewed, directory)


def _renewed(directory: Path) -> Path:
    return directory.with_name(directory.name + _RENEWED)


def _present(root: Path, query: str) -> Path:
    """The directory of a query's checkpoint, which has two names while it is renewed."""
    directory = root / query
    has_stamp = (
        place for place in (directory, _renewed(directory)) if (place / STAMP_FILE).exists()
    )
    return next(has_stamp, directory)


def _set_aside(directory: Path, files: Files) -> None:
    if directory.exists():
        files.rename(directory, _aside(directory))


def _aside(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}{_ASIDE}{uuid.uuid4().hex[:8]}")
