"""A history in readable form: time, node, event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.types import LeaseRow, Record

if TYPE_CHECKING:
    from tests.sim.group import Group


ROUTINE = (say.Heartbeat, say.Committed)


def told(group: Group, lines: int | None = None) -> str:
    """Return the last ``lines`` of the history, or all of it."""
    sentences = []
    for when, who, what in group.transcript:
        if text := sentence(what):
            sentences.append(f"{when:8.3f}  {who:<9} {text}")
    return "\n".join(sentences[-lines:] if lines else sentences)


def sentence(what: object) -> str:
    match what:
        case str():
            return what
        case LeaseRow():
            return f"the row is now {_row(what)}"
        case on.Tick():
            return ""
        case on.PeerMessage(_, message) | do.Send(_, message) if isinstance(message, ROUTINE):
            return ""
        case on.LeaseRead(row):
            return f"reads {_row(row) if row else 'no row'}"
        case on.LeaseWritten(row):
            return f"has written {_row(row)}"
        case do.WriteLease(_, wanted, reason):
            return f"wants to write {_row(wanted)} ({reason})"
        case do.AppendRecords(records):
            return "appends " + ", ".join(_record(record) for record in records)
        case on.PeerMessage(peer, message):
            return f"hears from {peer}: {_message(message)}"
        case do.Send(peer, message):
            return f"tells {peer}: {_message(message)}"
        case say.Records():
            return f"streams {_message(what)}"
        case do.KeepHighWater() | do.ReadLease():
            return ""
        case _:
            return repr(what)


def _row(row: LeaseRow) -> str:
    holder = f"{row.holder.node}/{row.holder.process}" if row.holder else f"nobody>{row.successor}"
    members = " ".join(member.journal_id for member in row.in_sync)
    paused = " paused" if row.paused else ""
    timeline = row.identity.timeline.lstrip("0") if row.identity else "?"
    return f"[{row.epoch}.{row.version} {holder} in sync: {members}{paused} tl {timeline}]"


def _record(record: Record) -> str:
    return f"{record.position} {type(record.body).__name__}"


def _message(message: say.Message) -> str:
    if isinstance(message, say.Records):
        ends = f"{message.records[0].position}..{message.records[-1].position}"
        return f"Records {ends} after {message.previous}, committed {message.committed}"
    if isinstance(message, say.ProbeReply):
        return f"ProbeReply(epoch {message.epoch}, {message.journal_id}, last {message.last})"
    return str(message)
