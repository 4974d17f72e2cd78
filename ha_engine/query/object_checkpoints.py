"""Open and copy the checkpoints of queries on object storage, which has no rename and no links.

Each driver writes a folder of its own, a *run* of the query, and no folder is ever renamed. The
stamp of a query names the lineage of the state, as a checkpoint's stamp in a directory does, and
the run that has the state. One request replaces the stamp, so the stamp is what a rename is in a
directory: the state of a query changes from one run to the next when its stamp is replaced.

A driver never continues a run that another driver has written. It copies the files of the state
into its own run, since executors of the other driver may still write and delete there. The storage
copies them itself; no byte of them comes to this host.

    GROUP/NODE/QUERY/ha_engine.stamp   the lineage, the run, and whether a driver writes the run
    GROUP/NODE/QUERY/RUN/              Spark's files, and the epoch of the active that writes them
    GROUP/.kept/NODE/QUERY/RUN/        the files that snapshots name

The storage stores an object whole or not at all, and durably, so a reboot of this host matters to
no checkpoint (RULES.md#r21).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import structlog
from pydantic import ValidationError

from ha_engine.connectors.s3.store import ObjectGone, ObjectMeta, Store, StoreOptions
from ha_engine.errors import (
    CheckpointIncomplete,
    ObjectStorageFailed,
    QueryProcessFailed,
    StateLost,
)
from ha_engine.query.checkpoint_files import files_as_of, last_finished
from ha_engine.query.checkpoints import (
    EPOCH_FILE,
    LOST,
    STAMP_FILE,
    SharedState,
    newest_mark,
    newest_up_to,
    record_in,
)
from ha_engine.query.object_path import ObjectPath
from ha_engine.query.offsets import SourcesDisagree, partitions_of_batch

log = structlog.get_logger(__name__)

_S3A = "spark.hadoop.fs.s3a."
KEPT = ".kept"
"""The folder of the files that snapshots name. A node's id never starts with a dot."""
_RESTORED = "restored-"
"""The begin of the name of a run that no driver has written, until a stamp names it."""
_IN_USE = "in use"
_SMALL_BYTES = 1 << 26
_COPIES_TOGETHER = 16
_DELETED_TOGETHER = 1000
_TIMEOUT = "120s"
"""The storage may need so long to copy an object of five gigabytes, the largest that it copies."""


def options_of(url: str, spark: Mapping[str, str]) -> StoreOptions:
    """The options of a client of the bucket that Spark reaches with the settings ``spark``.

    Credentials come from the environment, from where Spark takes them too. Raises
    ObjectStorageFailed.
    """

    def given(name: str, default: str = "") -> str:
        return spark.get(f"{_S3A}{name}", default)

    endpoint = given("endpoint").rstrip("/")
    if endpoint and "//" not in endpoint:
        plain = given("connection.ssl.enabled") == "false"
        endpoint = f"{'http' if plain else 'https'}://{endpoint}"
    written = {
        "url": url.replace("s3a:", "s3:", 1),
        "region": given("endpoint.region") or None,
        "endpoint": endpoint or None,
        "path_style": given("path.style.access") == "true",
        "timeout": _TIMEOUT,
    }
    try:
        return StoreOptions.model_validate(written)
    except ValidationError as error:
        reason = "; ".join(one["msg"] for one in error.errors())
        raise ObjectStorageFailed(
            f"{url} cannot be opened: {reason}; correct fs.s3a under query.spark"
        ) from error


class Bucket:
    """The objects below the URL ``where``. Each method raises ObjectStorageFailed."""

    def __init__(self, url: str, spark: Mapping[str, str]) -> None:
        self.where = url.rstrip("/")
        options = options_of(self.where, spark)
        self._store = Store(options, ObjectStorageFailed, ObjectStorageFailed)
        self._store.open()

    def read(self, key: str) -> bytes | None:
        try:
            return self._store.content(key, _SMALL_BYTES)
        except ObjectGone:
            return None

    def sizes(self, folder: str) -> dict[str, int]:
        return {one.key: one.size for one in self.below(folder)}

    def below(self, folder: str) -> Iterator[ObjectMeta]:
        # Hadoop marks a directory by an empty object. No directory of a checkpoint has a suffix.
        found = self._store.below(folder)
        return (one for one in found if one.size or PurePosixPath(one.key).suffix)

    def folders(self, folder: str = "") -> list[str]:
        return self._store.folders(folder)

    def put(self, key: str, content: bytes | Path) -> None:
        self._store.put(key, content)

    def copy(self, copies: Mapping[str, str]) -> None:
        """Copy each key to its new key. Raises CheckpointIncomplete if an object is gone."""

        def one(key: str, new: str) -> None:
            try:
                self._store.copy(key, new)
            except ObjectGone as error:
                raise CheckpointIncomplete(f"{key} was deleted before it was copied") from error

        with ThreadPoolExecutor(_COPIES_TOGETHER) as threads:
            list(threads.map(one, copies, copies.values()))

    def delete(self, keys: Iterable[str]) -> None:
        found = list(keys)
        for at in range(0, len(found), _DELETED_TOGETHER):
            self._store.delete(found[at : at + _DELETED_TOGETHER])


@dataclass(frozen=True, slots=True)
class Stamp:
    """The stamp of a query. ``in_use`` is true once a driver has opened the run."""

    lineage: str
    run: str
    in_use: bool = False

    @classmethod
    def parse(cls, content: bytes | None) -> Stamp | None:
        match (content or b"").decode(errors="replace").split("\n"):
            case [lineage, run, in_use, ""]:
                return cls(lineage, run, in_use == _IN_USE)
        return None

    def __bytes__(self) -> bytes:
        return f"{self.lineage}\n{self.run}\n{_IN_USE if self.in_use else ''}\n".encode()


def delete_in_thread(delete: Callable[[], None]) -> None:
    """Call ``delete`` in a thread, so that the start of a query does not wait.

    What a failure leaves is deleted at the next start.
    """

    def attempt() -> None:
        try:
            delete()
        except ObjectStorageFailed as error:
            log.warning("old checkpoint not deleted", reason=str(error))

    threading.Thread(target=attempt, name="delete old checkpoints", daemon=True).start()


@dataclass(frozen=True, slots=True)
class ObjectCheckpoints:
    """The checkpoints of ``node``. ``bucket`` has those of all nodes of the group.

    ``in_background`` runs the deletion of what is no longer needed. ``delete_folder`` deletes a
    folder, by its URL, together with the empty objects by which Hadoop marks directories: their
    keys end with a slash, and the bucket's client cannot name them. Each method raises
    ObjectStorageFailed.
    """

    bucket: Bucket
    node: str
    in_background: Callable[[Callable[[], None]], None] = delete_in_thread
    delete_folder: Callable[[str], None] = lambda _: None

    # -- the query process -------------------------------------------------------------------------

    def open(self, query: str, lineage: str, *, must_resume: bool) -> ObjectPath:
        """As ``checkpoints.Checkpoints.open``. Only the caller's driver writes the run."""
        found, earlier = self.stamp_of(query), self.bucket.folders(self._home(query))
        state = found if found is not None and found.lineage == lineage else None
        run = self._continued(query, state) if state is not None else None
        if run is None and must_resume:
            raise StateLost(LOST)
        run = run or self._new_run(query)
        self.put_stamp(query, Stamp(lineage, run, in_use=True))
        # Those that another thread or a restore has begun since must stay.
        former = found.run if found is not None else ""
        old = [
            one
            for one in earlier
            if one != run and (one == former or not one.startswith(self._restored(query)))
        ]
        self.in_background(lambda: self._delete_runs(old))
        return ObjectPath.of(self.bucket, run)

    def _continued(self, query: str, state: Stamp) -> str | None:
        """The run of a new driver with the state after the newest finished batch.

        A restored run is that of no driver yet. Return None if a file of the state is missing.
        """
        if not state.in_use:
            return state.run
        run, old = self._new_run(query), ObjectPath.of(self.bucket, state.run)
        try:
            if (finished := last_finished(old)) is not None:
                self.copy_as_of(old, finished, run)
        except CheckpointIncomplete as error:
            log.error("checkpoint cannot be continued", query=query, reason=str(error))
            return None
        return run

    def rescale(self, query: str, number: int, repartition: Callable[[Path, int], None]) -> None:
        checkpoint = self._opened(query)
        finished = last_finished(checkpoint)
        if finished is not None and partitions_of_batch(checkpoint, finished) != number:
            raise QueryProcessFailed(
                f"the state of query {query} needs {number} partitions, which cannot be changed on "
                "object storage; rescale the query back to its former number"
            )

    def offer(self, query: str, epoch: int) -> None:
        self.bucket.put(f"{self._opened(query).key}/{EPOCH_FILE}", str(epoch).encode())

    def _opened(self, query: str) -> ObjectPath:
        found = self.stamp_of(query)
        assert found is not None, f"the checkpoint of {query} was opened"
        return ObjectPath.of(self.bucket, found.run)

    def mark_clean(self) -> None:
        """The storage has made every object durable already."""

    def adopt(self, query: str, shadow: str, earlier: str, lineage: str) -> None:
        raise QueryProcessFailed("a shadow cannot take a query's place on object storage")

    def disown(self, query: str) -> None:
        self.bucket.delete([self._stamp_key(query)])

    def _delete_runs(self, runs: Iterable[str]) -> None:
        for run in runs:
            self.bucket.delete(self.bucket.sizes(run))
            self.delete_folder(f"{self.bucket.where}/{run}")

    # -- the node process --------------------------------------------------------------------------

    def is_whole(self, query: str, lineage: str) -> bool:
        """Whether the checkpoint belongs to ``lineage``."""
        found = self.stamp_of(query)
        return found is not None and found.lineage == lineage

    def carry_on(self, query: str, earlier: Sequence[str], lineage: str) -> None:
        """Change the lineage of a checkpoint from one of ``earlier`` to ``lineage``."""
        found = self.stamp_of(query)
        if found is not None and found.lineage in earlier:
            self.put_stamp(query, replace(found, lineage=lineage))

    def last_mark(self, query: str) -> int | None:
        """The mark of the newest finished batch, or None. Raises OSError, SourcesDisagree."""
        found = self.stamp_of(query)
        return None if found is None else newest_mark(ObjectPath.of(self.bucket, found.run))

    def newest_shared(
        self, query: str, lineages: Sequence[str], shared: Mapping[int, int]
    ) -> SharedState | None:
        """As ``checkpoints.newest_shared``, of all nodes of the group."""
        records = {record_in(lineage) for lineage in lineages}
        nodes = (node for node in self.bucket.folders() if not node.startswith("."))
        found = (replace(self, node=node)._shared(query, records, shared) for node in nodes)
        return max(filter(None, found), key=lambda one: one.number, default=None)

    def _shared(
        self, query: str, records: Container[str], shared: Mapping[int, int]
    ) -> SharedState | None:
        stamp = self.stamp_of(query)
        if stamp is None or record_in(stamp.lineage) not in records:
            return None
        epoch = (self.bucket.read(f"{stamp.run}/{EPOCH_FILE}") or b"").decode(errors="replace")
        if not epoch.isdecimal():
            return None
        checkpoint = ObjectPath.of(self.bucket, stamp.run)
        try:
            return newest_up_to(checkpoint, shared.get(int(epoch), 0))
        except (OSError, ValueError, SourcesDisagree) as error:
            # Spark deletes old files meanwhile.
            log.warning("checkpoint cannot be read", path=str(checkpoint), reason=str(error))
            return None

    def restored_run(self, query: str) -> str:
        """Return a new run for a restored state, and delete the runs of earlier restores."""
        found, restored = self.stamp_of(query), self._restored(query)
        for run in self.bucket.folders(self._home(query)):
            if run.startswith(restored) and (found is None or run != found.run):
                self._delete_runs([run])
        return f"{restored}{uuid.uuid4().hex}"

    # -- both --------------------------------------------------------------------------------------

    def stamp_of(self, query: str) -> Stamp | None:
        return Stamp.parse(self.bucket.read(self._stamp_key(query)))

    def put_stamp(self, query: str, stamp: Stamp) -> None:
        self.bucket.put(self._stamp_key(query), bytes(stamp))

    def copy_as_of(self, checkpoint: ObjectPath, batch: int, run: str) -> None:
        """Copy the files of the state after Spark's batch ``batch`` into a run.

        Raises CheckpointIncomplete if a needed file is missing.
        """
        try:
            files = list(files_as_of(checkpoint, batch))
        except FileNotFoundError as error:
            raise CheckpointIncomplete(
                f"{error.filename} was deleted before it was read"
            ) from error
        self.bucket.copy({one.key: f"{run}/{one.relative_to(checkpoint)}" for one in files})

    def _new_run(self, query: str) -> str:
        return f"{self._home(query)}/{uuid.uuid4().hex}"

    def _home(self, query: str) -> str:
        return f"{self.node}/{query}"

    def _restored(self, query: str) -> str:
        return f"{self._home(query)}/{_RESTORED}"

    def _stamp_key(self, query: str) -> str:
        return f"{self._home(query)}/{STAMP_FILE}"
