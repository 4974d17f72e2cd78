"""Collect the history of a world at rest from its logs, its database and both journals."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from ha_engine.types import Events, Mark, Record
from tests.e2e.frames import first_of, read_segment, shared_frames
from tests.faults.matrix.history import History, LeaseVersion, LedgerMove, SinkRow
from tests.faults.matrix.hosts import HostedNode
from tests.faults.matrix.load import Log
from tests.faults.matrix.world import World

MOVES = "SELECT extract(epoch FROM at), epoch, batch, host(client) FROM ledger_audit ORDER BY id"
ROWS = """
SELECT id, text, coalesce((SELECT max(batch) FROM ledger_audit WHERE tx = copies.tx), 0)
FROM copies
"""
EVENTS = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("text", pa.string())])


def collect(world: World, active: HostedNode, log: Log) -> History:
    offset = time.time() - time.monotonic()
    names = {address: name for name, address in world.addresses.items()}
    rows = world.sink.rows
    return History(
        requests=tuple(log.requests),
        rows=tuple(SinkRow(*row) for row in rows(ROWS)),
        moves=tuple(
            LedgerMove(float(at) - offset, epoch, batch, names.get(client, str(client)))
            for at, epoch, batch, client in rows(MOVES)
        ),
        leases=tuple(
            LeaseVersion(
                float(at) - offset,
                version,
                epoch,
                (node, process) if node is not None else None,
                tuple((member["node"], member["journal_id"]) for member in in_sync),
            )
            for at, version, epoch, node, process, in_sync in world.leases()
        ),
        roles=tuple(log.roles),
        outages=tuple(world.outages),
        batches=batches_of(records_of(world.kept.glob("*.journal"), active.segments())),
        frames=shared_frames({node.name: node.segments() for node in world.nodes}),
    )


def batches_of(records: Iterator[Record]) -> dict[int, tuple[tuple[int, str], ...]]:
    """Run the query ``SELECT id, text FROM events`` over the records."""
    waiting: list[tuple[int, tuple[int, str]]] = []
    found: dict[int, tuple[tuple[int, str], ...]] = {}
    for record in records:
        match record.body:
            case Events():
                batch = pa.ipc.read_record_batch(record.payload, EVENTS)
                rows = zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)
                waiting += [(record.position.sequence, row) for row in rows]
            case Mark(number=number, through=through):
                found[number] = tuple(row for at, row in waiting if at <= through)
                waiting = [(at, row) for at, row in waiting if at > through]
    return found


def records_of(kept: Iterable[Path], own: Sequence[Path]) -> Iterator[Record]:
    """Read the segments ``own`` of a journal, and from the segments ``kept`` what it has trimmed.

    Of two records with one sequence, the one of the later epoch is in the history; a former active
    may have had the other one alone. Fails if a record is in none of the segments.
    """
    found: dict[int, Record] = {}
    for path in [*kept, *own]:
        for record in read_segment(path):
            known = found.setdefault(record.position.sequence, record)
            if known.position.epoch < record.position.epoch:
                found[record.position.sequence] = record
    newest = (record.position.sequence for record in read_segment(own[-1]))
    last = max(newest, default=first_of(own[-1:]) - 1)
    for sequence in range(1, last + 1):
        assert sequence in found, f"record {sequence} is neither in the journal nor kept"
        yield found[sequence]
