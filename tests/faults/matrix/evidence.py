"""Collect the history of a world at rest from its logs, its database and both journals."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa

from ha_engine.journal.reading import FILE_HEADER_BYTES, read_records
from ha_engine.journal.segment import segment_paths
from ha_engine.types import Events, Mark
from tests.e2e.pair import frames
from tests.faults.matrix.history import History, LeaseVersion, LedgerMove, SinkRow
from tests.faults.matrix.hosts import HostedNode, World
from tests.faults.matrix.load import Log

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
        batches=_batches(active.data_dir / "journal"),
        frames={node.name: frames(node) for node in world.nodes},
    )


def _batches(journal: Path) -> dict[int, tuple[tuple[int, str], ...]]:
    """Run the query ``SELECT id, text FROM events`` over the records of a journal."""
    waiting: list[tuple[int, tuple[int, str]]] = []
    found: dict[int, tuple[tuple[int, str], ...]] = {}
    for path in segment_paths(journal):
        length = path.stat().st_size - FILE_HEADER_BYTES
        for record in read_records(path, FILE_HEADER_BYTES, length):
            match record.body:
                case Events():
                    batch = pa.ipc.read_record_batch(record.payload, EVENTS)
                    rows = zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)
                    waiting += [(record.position.sequence, row) for row in rows]
                case Mark(number=number, through=through):
                    found[number] = tuple(row for at, row in waiting if at <= through)
                    waiting = [(at, row) for at, row in waiting if at > through]
    return found
