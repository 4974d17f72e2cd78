"""The rows of chunks, and the rows by which revisions refer to chunks.

Each function of this module runs in its caller's transaction. The module ``snapshot_store``
handles revisions, drafts, deadlines and retries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sqlalchemy import Connection, ScalarSelect, delete, exists, func, literal, select, update
from sqlalchemy.dialects.postgresql import insert

from ha_engine.postgres.schema import chunk, revision_chunk
from ha_engine.types import Chunk

COLLECTED_AT_ONCE = 256
DISTRUSTED = b""
"""Replaces the content of a damaged chunk. No stored chunk is empty."""


def put(connection: Connection, chunks: Sequence[Chunk]) -> None:
    """Store the chunks that the database lacks, and replace chunks that are marked as damaged."""
    # Every writer inserts chunks in the same order, so that two writers never deadlock.
    ordered = sorted(chunks, key=lambda c: c.digest)
    rows = [{"digest": c.digest, "size": c.size, "stored": c.stored} for c in ordered]
    fresh = insert(chunk)
    mended = fresh.on_conflict_do_update(
        index_elements=[chunk.c.digest],
        set_={"stored": fresh.excluded.stored, "size": fresh.excluded.size},
        where=chunk.c.stored == DISTRUSTED,
    )
    connection.execute(mended, rows)


def refer(connection: Connection, draft: int, digests: Sequence[bytes]) -> set[bytes]:
    """Let the draft refer to the chunks of ``digests`` that the database has.

    Returns the digests of these chunks.
    """
    sound = chunk.c.digest.in_(digests), chunk.c.stored != DISTRUSTED
    there = select(literal(draft), chunk.c.digest).where(*sound)
    connection.execute(
        insert(revision_chunk)
        .from_select(["revision_id", "digest"], there)
        .on_conflict_do_nothing()
    )
    held = select(revision_chunk.c.digest).where(
        revision_chunk.c.revision_id == draft, revision_chunk.c.digest.in_(digests)
    )
    return {bytes(one) for one in connection.execute(held).scalars()}


def distrust(connection: Connection, damaged: Chunk) -> None:
    """Mark a chunk as damaged, unless a writer has replaced the chunk since ``damaged`` was read.

    The comparison sends a hash of the content instead of the content, because the network may be
    slow.
    """
    digest = hashlib.sha256(damaged.stored).digest()
    same = chunk.c.size == damaged.size, func.sha256(chunk.c.stored) == digest
    found = chunk.c.digest == damaged.digest, *same
    connection.execute(update(chunk).where(*found).values(stored=DISTRUSTED))


def sound_of(draft: int) -> ScalarSelect[int]:
    """The number of undamaged chunks that the draft refers to."""
    referred = revision_chunk.join(chunk, chunk.c.digest == revision_chunk.c.digest)
    sound = revision_chunk.c.revision_id == draft, chunk.c.stored != DISTRUSTED
    return select(func.count()).select_from(referred).where(*sound).scalar_subquery()


def collect_some(connection: Connection) -> int:
    """Delete up to COLLECTED_AT_ONCE chunks that no revision refers to; return their number."""
    needed = exists().where(revision_chunk.c.digest == chunk.c.digest)
    idle = select(chunk.c.digest).where(~needed).limit(COLLECTED_AT_ONCE)
    gone = delete(chunk).where(chunk.c.digest.in_(idle.with_for_update(skip_locked=True)))
    return int(connection.execute(gone).rowcount)


def read(connection: Connection, digests: Sequence[bytes]) -> dict[bytes, Chunk]:
    """Return the chunks of ``digests`` that the database has, without a check of their content."""
    rows = connection.execute(select(chunk).where(chunk.c.digest.in_(digests))).all()
    found = (Chunk(bytes(row.digest), row.size, bytes(row.stored)) for row in rows)
    return {one.digest: one for one in found}
