"""The revisions of a group's snapshots, and the chunks that revisions share (RULES.md#i9,
RULES.md#r29).

A writer begins a *draft*, a revision that only its writer reads. The writer lets the draft refer to
the chunks that the database has, adds the missing chunks, and completes the draft. The holder of
the lease then makes the draft visible. A writer that begins a new draft removes abandoned drafts.
The store deletes chunks that no revision refers to. A crash at any point leaves at most an
abandoned draft and such unused chunks.

Each transaction has a deadline on this machine's clock, and blocks, so callers use a thread. This
module does not read the content of manifests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    delete,
    exists,
    func,
    insert,
    select,
    true,
    update,
)
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from ha_engine.errors import DraftLost, SnapshotFailed
from ha_engine.postgres import chunk_rows
from ha_engine.postgres.engine import database_error, sqlstate
from ha_engine.postgres.schema import SCHEMA, lease, revision
from ha_engine.postgres.session import Session
from ha_engine.types import Chunk, Collected, Holder, Position, Revision

T = TypeVar("T")

CALL_SECONDS = 30.0
_ATTEMPTS = 5
_PAUSE_SECONDS_MAX = 0.2
_LISTED = (
    revision.c.id,
    revision.c.taken_by,
    revision.c.epoch,
    revision.c.sequence,
    revision.c.written_epoch,
    revision.c.written_sequence,
    revision.c.begun_at,
    revision.c.visible_at,
    revision.c.bytes_total,
    revision.c.bytes_new,
)
"""All columns but the manifest, which may be large: each node often lists the revisions."""
_BROKEN_REFERENCE = "23503"


class _ReferenceBroken(Exception):
    """Another writer has just deleted a draft or a chunk that this transaction refers to."""


class SnapshotStore:
    """The snapshots of the group ``group``.

    Every method that uses the database may raise DatabaseUnreachable or DatabaseNotReady.
    """

    def __init__(
        self,
        engine: Engine,
        group: str,
        *,
        call_seconds: float = CALL_SECONDS,
        schema: str = SCHEMA,
    ) -> None:
        translated_schema = engine.execution_options(schema_translate_map={SCHEMA: schema})
        self._session = Session(translated_schema, name="snapshot", translation=_translated)
        self._group, self._call_seconds = group, call_seconds

    # -- writing -----------------------------------------------------------------------------------

    def begin(self, taken_by: str) -> int:
        """Begin a new draft, and remove all other drafts of the group, even unfinished ones."""

        def work(connection: Connection) -> int:
            connection.execute(delete(revision).where(*self._drafts))
            values = {
                "group_name": self._group,
                "taken_by": taken_by,
                "begun_at": func.clock_timestamp(),
            }
            fresh = insert(revision).values(values).returning(revision.c.id)
            return int(connection.execute(fresh).scalar_one())

        return self._call(work)

    def refer(self, draft: int, digests: Iterable[bytes]) -> set[bytes]:
        """Let the draft refer to the chunks of ``digests`` that the database has.

        Returns the digests of the missing chunks. Raises DraftLost when another writer has begun a
        newer draft.
        """
        wanted = list(dict.fromkeys(digests))

        def work(connection: Connection) -> set[bytes]:
            return set(wanted) - chunk_rows.refer(connection, draft, wanted)

        return self._referring(draft, work)

    def add(self, draft: int, chunks: Sequence[Chunk]) -> None:
        """Store ``chunks`` and let the draft refer to these chunks. Raises DraftLost."""
        digests = list({c.digest for c in chunks})

        def work(connection: Connection) -> None:
            chunk_rows.put(connection, chunks)
            if len(chunk_rows.refer(connection, draft, digests)) < len(digests):
                raise _ReferenceBroken("a chunk was deleted before the draft referred to it")

        if digests:
            self._referring(draft, work)

    def complete(
        self,
        draft: int,
        position: Position,
        last_mark: Position,
        manifest: bytes,
        manifest_digest: bytes,
        *,
        chunks: int,
        bytes_total: int,
        bytes_new: int,
    ) -> None:
        """Write the draft's position and manifest; the draft stays invisible.

        Raises DraftLost when the draft is gone. Also raises DraftLost when the number of undamaged
        chunks that the draft refers to is not ``chunks`` (RULES.md#i9). A failover of the database
        may have lost the newest chunks. A reader may have marked an older chunk as damaged.
        """
        values = {
            "epoch": position.epoch,
            "sequence": position.sequence,
            "written_epoch": last_mark.epoch,
            "written_sequence": last_mark.sequence,
            "manifest": manifest,
            "manifest_digest": manifest_digest,
            "bytes_total": bytes_total,
            "bytes_new": bytes_new,
        }
        whole = chunk_rows.sound_of(draft) == chunks
        statement = (
            update(revision).where(revision.c.id == draft, whole, *self._drafts).values(values)
        )
        if self._call(lambda connection: connection.execute(statement).rowcount) != 1:
            raise _lost(draft)

    def show(self, draft: int, holder: Holder, epoch: int) -> bool:
        """Make a complete draft visible.

        Returns False unless ``holder`` holds the lease in the epoch ``epoch``. A second call for
        the same draft is harmless. Raises DraftLost.
        """
        holds = exists().where(
            lease.c.group_name == self._group,
            lease.c.holder_node == holder.node,
            lease.c.holder_process == holder.process,
            lease.c.epoch == epoch,
        )
        there = revision.c.id == draft, revision.c.group_name == self._group
        visible_since = func.coalesce(revision.c.visible_at, func.clock_timestamp())

        def work(connection: Connection) -> bool:
            shown = update(revision).where(*there, holds).values(visible_at=visible_since)
            if connection.execute(shown).rowcount == 1:
                return True
            if connection.execute(select(revision.c.id).where(*there)).first() is None:
                raise _lost(draft)
            return False

        return self._call(work)

    # -- removal -----------------------------------------------------------------------------------

    def forget(self, keep: int) -> Collected:
        """Remove all visible revisions except pinned revisions and the newest ``keep`` revisions.

        Also removes the chunks that no revision needs.
        """
        return Collected(self._call(lambda c: self._forget(c, keep)), self.collect())

    def collect(self) -> int:
        """Remove the chunks that no revision refers to, and return their number.

        Each transaction removes only a few chunks. The foreign key prevents the removal of a chunk
        that a draft has just referred to.
        """
        count = 0
        try:
            while gone := self._call(chunk_rows.collect_some):
                count += gone
        except _ReferenceBroken:
            pass  # a draft needs one of them now; the next call removes the others
        return count

    def pin(self, revision_id: int, seconds: float) -> bool:
        """Pin a revision, so that no cleanup removes the revision within ``seconds``.

        Returns False if the revision is gone.
        """
        until = func.clock_timestamp() + timedelta(seconds=seconds)
        pinned = update(revision).where(revision.c.id == revision_id).values(pinned_until=until)
        return self._call(lambda connection: connection.execute(pinned).rowcount) == 1

    def distrust(self, damaged: Chunk) -> None:
        """Mark a chunk as damaged, so that the next writer replaces its content (RULES.md#i10).

        The call has no effect if a writer has replaced the chunk since ``damaged`` was read.
        """
        self._call(lambda connection: chunk_rows.distrust(connection, damaged))

    def _forget(self, connection: Connection, keep: int) -> int:
        kept = (
            select(revision.c.id).where(*self._visible).order_by(revision.c.id.desc()).limit(keep)
        )
        free = func.coalesce(revision.c.pinned_until <= func.clock_timestamp(), true())
        old = delete(revision).where(*self._visible, revision.c.id.not_in(kept), free)
        return int(connection.execute(old).rowcount)

    # -- reading -----------------------------------------------------------------------------------

    def revisions(self) -> list[Revision]:
        """The visible revisions of the group, newest first."""
        age = func.extract("epoch", func.clock_timestamp() - revision.c.visible_at).label("age")
        query = select(*_LISTED, age).where(*self._visible).order_by(revision.c.id.desc())
        rows = self._call(lambda connection: connection.execute(query).all())
        return [
            Revision(
                row.id,
                row.taken_by,
                Position(row.epoch, row.sequence),
                Position(row.written_epoch, row.written_sequence),
                row.begun_at,
                row.visible_at,
                row.bytes_total,
                row.bytes_new,
                float(row.age),
            )
            for row in rows
        ]

    def manifest(self, revision_id: int) -> tuple[bytes, bytes] | None:
        """The manifest of a visible revision, and the digest of the manifest.

        Returns None when the revision is gone.
        """
        query = select(revision.c.manifest, revision.c.manifest_digest).where(
            *self._visible, revision.c.id == revision_id
        )
        row = self._call(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else (bytes(row.manifest), bytes(row.manifest_digest))

    def group_id(self) -> str | None:
        """The group's UUID in the group's lease row, or None if the group has no lease row."""
        query = select(lease.c.group_id).where(lease.c.group_name == self._group)
        return self._call(lambda connection: connection.execute(query).scalar_one_or_none())

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, Chunk]:
        """Return the chunks of ``digests`` that the database has, without a check of content."""
        return self._call(lambda connection: chunk_rows.read(connection, digests))

    def close(self) -> None:
        """Close the store's connection and end its thread."""
        self._session.shut()

    # -- internals ---------------------------------------------------------------------------------

    @property
    def _drafts(self) -> tuple[ColumnElement[bool], ...]:
        return revision.c.group_name == self._group, revision.c.visible_at.is_(None)

    @property
    def _visible(self) -> tuple[ColumnElement[bool], ...]:
        return revision.c.group_name == self._group, revision.c.visible_at.is_not(None)

    def _call(self, work: Callable[[Connection], T]) -> T:
        ends = time.monotonic() + self._call_seconds

        def transaction(connection: Connection) -> T:
            with connection.begin():
                return work(connection)

        return self._session.call(transaction, lambda: ends - time.monotonic())

    def _referring(self, draft: int, work: Callable[[Connection], T]) -> T:
        """Run ``work`` on a draft; retry if a chunk is deleted before the draft refers to it."""
        mine = select(revision.c.id).where(revision.c.id == draft, *self._drafts)

        def of_a_draft(connection: Connection) -> T:
            # This lock prevents other writers from removing the draft before this transaction ends.
            if connection.execute(mine.with_for_update(key_share=True, read=True)).first() is None:
                raise _lost(draft)
            return work(connection)

        retrying = Retrying(
            retry=retry_if_exception_type(_ReferenceBroken),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random(0, _PAUSE_SECONDS_MAX),
            reraise=True,
        )
        try:
            outcome: T = retrying(self._call, of_a_draft)
        except _ReferenceBroken as error:
            raise SnapshotFailed(
                f"the snapshot's chunks were deleted in each of {_ATTEMPTS} attempts: {error}"
            ) from error
        return outcome


def _lost(draft: int) -> DraftLost:
    return DraftLost(
        f"draft {draft} of a snapshot is gone: another node began a newer draft, the database "
        "failed over and lost a part of it, or a part was damaged; the next snapshot comes at its "
        "usual time"
    )


def _translated(engine: Engine, error: BaseException) -> Exception:
    if sqlstate(error) == _BROKEN_REFERENCE:
        return _ReferenceBroken(str(error))
    return database_error(engine, error)
