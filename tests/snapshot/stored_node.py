"""A node's journal, outbox and checkpoint on a real disk, as far as a snapshot needs them.

The checkpoint is artificial, not Spark's: one query, whose batch n left n as its state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from sqlalchemy import Engine

from ha_engine.core import Deployment, QueryPlan, RestartPolicy
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from ha_engine.outbox import Outbox
from ha_engine.outbox.batch_file import write_batch_file
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.postgres.snapshot_store import SnapshotStore
from ha_engine.postgres.upgrade import upgrade
from ha_engine.query.object_checkpoints import Bucket, ObjectCheckpoints
from ha_engine.receive.producers import ProducerTable
from ha_engine.snapshot.base_builder import BaseBuilder
from ha_engine.snapshot.capture import Capture
from ha_engine.snapshot.checkpoint_storage import CheckpointDirectories, CheckpointStorage
from ha_engine.snapshot.manifest import CapturedQuery
from ha_engine.snapshot.object_storage import ObjectStates
from ha_engine.snapshot.restore import Places, Restoring
from ha_engine.snapshot.service import Facts, SnapshotService
from ha_engine.types import (
    Application,
    Body,
    EpochStart,
    Events,
    Holder,
    LeaseRow,
    Mark,
    Member,
    Position,
    Pulled,
    QueryVersion,
    Record,
    SnapshotPlace,
    Submission,
)
from tests.core.world import LIMITS

QUERY, SINK = "delays", "board"
ME = Holder("node-a", "process-1")
BATCHES = 5


def version() -> QueryVersion:
    return QueryVersion(QUERY, "v1", Mark(QUERY, 0, 0))


def bodies() -> Iterator[Body]:
    """Yield an epoch, an application, then events and the mark of a batch, repeatedly."""
    yield EpochStart("node-a", "process-1")
    yield Application("app", (version(),))
    for number in range(1, BATCHES + 1):
        yield from batch_of(number)


def batch_of(number: int) -> Iterator[Body]:
    pulled = Pulled("drop", f"file {number}", 1, 1)
    yield Events("flights", 2, 0, (Submission("p", number, "ab" * 16, 1),), (pulled,))
    yield Mark(QUERY, number, 1 + 2 * number)


def cut_behind(number: int, request: int = 1) -> SnapshotPlace:
    place = Position(1, 1 + 2 * number)
    return SnapshotPlace(request, place, ((QUERY, number),), Position(1, 2 + 2 * number))


@dataclass
class Node:
    """The parts of a node that a snapshot reads."""

    home: Path
    journal: Journal
    outbox: Outbox
    archive: SnapshotService
    store: SnapshotStore
    refuses: list[str]
    checkpoints: CheckpointStorage

    @property
    def places(self) -> Places:
        return Places(self.home, self.home / "checkpoints")

    def grow(self, number: int, state: bytes) -> None:
        """Add a batch that every sink has; ``state`` is the whole state of Spark behind it."""
        for sequence, body in enumerate(batch_of(number), 1 + 2 * number):
            self.journal.append([Record(Position(1, sequence), sequence - 1, body)])
        self.journal.sync()
        write_batch(self.places.checkpoints / QUERY, number - 1, "snapshot", state)
        admit(self.home, self.outbox, number)
        self.outbox.trim(QUERY, number)


def write_checkpoint(root: Path) -> None:
    checkpoint = root / QUERY
    for directory in ("offsets", "commits", "state/0/0"):
        (checkpoint / directory).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"one"}')
    for batch in range(BATCHES):
        write_batch(checkpoint, batch, "delta", bytes([batch]) * 2000)


def write_batch(checkpoint: Path, batch: int, kind: str, state: bytes) -> None:
    """Write the files that Spark writes for its ``batch``, which the mark after it ends."""
    offset = json.dumps({"mark": batch + 1, "sequence": 3 + 2 * batch})
    (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offset}")
    (checkpoint / "state/0/0" / f"{batch + 1}.{kind}").write_bytes(state)
    (checkpoint / "commits" / str(batch)).write_text("v1\n{}")


def write_outbox(home: Path, admitted: int) -> Outbox:
    outbox = Outbox.open(home / "outbox")
    for number in range(1, admitted + 1):
        admit(home, outbox, number)
    return outbox


def admit(home: Path, outbox: Outbox, number: int) -> None:
    file = home / "outbox" / QUERY / "pending" / f"{number}.i.arrow"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_batch_file(file, pa.table({"n": [number]}), query=QUERY, number=number)
    outbox.admit(QUERY, number, f"{QUERY}/pending/{file.name}", 1, file.stat().st_size)


def deployment() -> Deployment:
    plan = QueryPlan(QUERY, "v1", frozenset({"flights"}), (SINK,))
    return Deployment("app", (plan,), LIMITS, RestartPolicy())


def prepare(engine: Engine) -> None:
    """Create the schema, and a lease that ME holds under epoch 1."""
    upgrade(engine)
    leases = PostgresLeaseStore(engine, "test", 5.0, db_timeout=60)
    leases.create(LeaseRow("group-1", ME, 1, 1, (Member("node-a", "journal-a"),)))
    leases.close()


def node_at(
    home: Path,
    engine: Engine,
    *,
    empty: bool = False,
    application: str = "app",
    admitted: int = BATCHES,
    shared: Sequence[Path] = (),
    bucket: Bucket | None = None,
) -> Node:
    """Return a node with all records, whose outbox has the first ``admitted`` batches.

    ``shared`` are the directories with the checkpoints of all nodes. If there is a ``bucket``, the
    checkpoints are there, those of this node below the name of its home.
    """
    home.mkdir()
    journal = Journal.open(home / "journal", group="test", segment_size=1 << 10)
    outbox = Outbox.open(home / "outbox")
    if not empty:
        for sequence, body in enumerate(bodies(), 1):
            journal.append([Record(Position(1, sequence), sequence - 1, body, b"x" * 300)])
        journal.sync()
        write_checkpoint(home / "checkpoints")
        outbox = write_outbox(home, admitted)
    store = SnapshotStore(engine, "test")
    folding = BaseBuilder(
        home / "journal" / "base.arrow", journal, deployment, lambda: ProducerTable(10, 8)
    )
    refuses: list[str] = []
    places = Places(home, home / "checkpoints")
    checkpoints: CheckpointStorage
    objects = None
    if bucket is None:
        checkpoints = CheckpointDirectories(places.checkpoints, shared=lambda: shared)
    else:
        checkpoints = objects = ObjectStates(ObjectCheckpoints(bucket, home.name), home)
    restoring = Restoring(
        store,
        places,
        checkpoints,
        "test",
        application,
        lambda _: refuses[0] if refuses else None,
    )
    capture = Capture(home / "checkpoints", home, outbox, objects=objects)
    writer = JournalWriter(journal, lambda sequence: None, lambda error: None)
    archive = SnapshotService(store, capture, folding, writer, ME, facts, restoring, keep=2)
    return Node(home, journal, outbox, archive, store, refuses, checkpoints)


def facts(place: SnapshotPlace) -> Facts:
    queries = tuple(CapturedQuery(query, number, 2, "digest") for query, number in place.batches)
    return Facts("group-1", "app", {"spark": "4.3.0"}, queries)


async def taken(node: Node, number: int) -> tuple[tuple[Position, Position], ...]:
    draft = await node.archive.take(cut_behind(number))
    return await node.archive.show(draft, 1)
