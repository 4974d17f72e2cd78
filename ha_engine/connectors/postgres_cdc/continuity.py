"""Decide whether the server still has every change after an offset.

A change after the offset may be gone: the log is another one, the slot was advanced or created
again, or the publication did not have the table for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ha_engine.connectors.postgres_cdc.initial import Initial
from ha_engine.connectors.postgres_cdc.offset import Offset, lsn_text
from ha_engine.connectors.postgres_cdc.server import LOST, Names, Present, Server, Slot, quoted
from ha_engine.errors import SourceRefused


@dataclass(frozen=True, slots=True)
class Gap:
    """A loss of changes after an offset, and its ``reason``. The log before ``common`` is the one
    that the offset describes."""

    reason: str
    common: int

    def refusal(self, slot: Slot | None) -> SourceRefused:
        shown = f": {lsn_text(slot.confirmed)}" if slot else ""
        return SourceRefused(f"{self.reason}, so {LOST}{shown}")


def removed_log(slot: str, where: str) -> str:
    return (
        f"the server {where} has removed log that the replication slot {slot!r} needs "
        "(max_slot_wal_keep_size)"
    )


def gap_of(server: Server, names: Names, present: Present, known: Offset) -> Gap | None:
    """Return what the server ``present`` lacks after the offset ``known``, as far as it can change
    while a session lasts. Raises SourceRefused if the table was only renamed."""
    where, common = server.where, known.taken
    if present.table != known.published.table:
        _require_name(server, names, known.published.table)
        return Gap(f"the table {names.quoted_table} at {where} was dropped", common)
    if present.published != known.published:
        return Gap(
            f"the publication {names.publication!r} at {where} was dropped, or the table "
            f"{names.quoted_table} was removed from it or got other columns in it, perhaps for a "
            f"while only; restore the publication, and advance the slot {names.slot!r} to "
            "pg_current_wal_lsn() with pg_replication_slot_advance, since the log from before "
            "cannot be decoded",
            common,
        )
    if present.slot is None:
        return Gap(f"the replication slot {names.slot!r} at {where} was dropped", common)
    if present.slot.is_lost:
        return Gap(removed_log(names.slot, where), common)
    if present.slot.confirmed > known.lsn:
        return Gap(
            f"the replication slot {names.slot!r} at {where} was advanced to "
            f"{lsn_text(present.slot.confirmed)}, and the source's offset is "
            f"{lsn_text(known.lsn)}: a forced failover or a restore gave up part of the journal, "
            "or the slot was created again or is used by something else",
            common,
        )
    return None


def gap_since(
    server: Server, names: Names, present: Present, known: Offset, system: str, timeline: int
) -> Gap | None:
    """Return what the server lacks after ``known``, which may be of another server with the same
    address. ``system`` and ``timeline`` identify the server's log now."""
    at, where, common = lsn_text(known.reach), server.where, known.taken
    if known.system != system:
        return Gap(
            f"the server {where} has the system identifier {system}, and the source's offset {at} "
            f"is of {known.system}: it is another server, or was initialized again",
            0,
        )
    if known.timeline != timeline:
        fork = _fork_of(server, known.timeline)
        if fork is None or fork < known.reach:
            shown = "an unknown position" if fork is None else lsn_text(fork)
            return Gap(
                f"the server {where} is on timeline {timeline}, which left timeline "
                f"{known.timeline} at {shown}, before the source's offset {at}: a failover or a "
                "restore lost the end of its log",
                min(fork or 0, common),
            )
    if (flushed := server.log().flushed) < known.reach:
        return Gap(
            f"the log of the server {where} ends at {lsn_text(flushed)}, before the source's "
            f"offset {at}: the server was set back",
            0,
        )
    return gap_of(server, names, present, known)


def start_after(gap: Gap, server: Server, known: Offset, start: Offset, order: str) -> Offset:
    """Return the offset to continue at if a person accepts ``gap``: behind what the journal has.
    ``start`` is the beginning of the slot. The initial read continues behind its last page, or
    begins again with another table, whose primary key has the order ``order``."""
    start = replace(start, lsn=max(start.lsn, gap.common))
    if known.initial is None or known.initial.is_whole:
        return start
    is_same_table = known.published.table == start.published.table
    initial = known.initial if is_same_table else Initial(order=order)
    return replace(start, initial=replace(initial, page=None, hidden=server.unfinished()))


def _require_name(server: Server, names: Names, table: int) -> None:
    found = server.table_name(table)
    if found is not None and found != (names.schema, names.table):
        schema, name = found
        raise SourceRefused(
            f"the table {names.quoted_table} at {server.where} was renamed to "
            f"{quoted(schema)}.{quoted(name)}; set table and table_schema to this name, or give "
            "the source another name to read the table that has the old name now"
        )


def _fork_of(server: Server, timeline: int) -> int | None:
    try:
        return server.fork_of(timeline)
    except SourceRefused:  # the server has no such history
        return None
