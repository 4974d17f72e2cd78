"""The rows of chunks, and of what refers to them: each call is a part of somebody's transaction.

Revisions and drafts are ``snapshot_store``'s, and so are deadlines and retries.
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
"""Stands for what a damaged chunk held. No chunk is stored as nothing."""


def put(connection: Connection, chunks: Sequence[Chunk]) -> None:
    """Stores those that are not there, and anew those that are distrusted."""
    # In one order everywhere, so that two writers never wait for each other.
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
    """Refers the draft to those of ``digests`` that are there, and answers them."""
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
    """Where it lies there as it was read; somebody may have stored it anew since. What was read is
    not sent back: the line may be slow."""
    digest = hashlib.sha256(damaged.stored).digest()
    same = chunk.c.size == damaged.size, func.sha256(chunk.c.stored) == digest
    found = chunk.c.digest == damaged.digest, *same
    connection.execute(update(chunk).where(*found).values(stored=DISTRUSTED))


def sound_of(draft: int) -> ScalarSelect[int]:
    """How many sound chunks the draft refers to."""
    referred = revision_chunk.join(chunk, chunk.c.digest == revision_chunk.c.digest)
    sound = revision_chunk.c.revision_id == draft, chunk.c.stored != DISTRUSTED
    return select(func.count()).select_from(referred).where(*sound).scalar_subquery()


def collect_some(connection: Connection) -> int:
    """Deletes some that nothing refers to, and says how many."""
    needed = exists().where(revision_chunk.c.digest == chunk.c.digest)
    idle = select(chunk.c.digest).where(~needed).limit(COLLECTED_AT_ONCE)
    gone = delete(chunk).where(chunk.c.digest.in_(idle.with_for_update(skip_locked=True)))
    return int(connection.execute(gone).rowcount)


def read(connection: Connection, digests: Sequence[bytes]) -> dict[bytes, Chunk]:
    """Those of ``digests`` that are there, as they lie there: nothing is verified."""
    rows = connection.execute(select(chunk).where(chunk.c.digest.in_(digests))).all()
    found = (Chunk(bytes(row.digest), row.size, bytes(row.stored)) for row in rows)
    return {one.digest: one for one in found}
