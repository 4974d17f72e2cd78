"""Decode the messages of PostgreSQL's output plug-in pgoutput, protocol version 1, text values.

The format is that of "Logical Replication Message Formats" in PostgreSQL's manual. This module
does no I/O, and does not know which table anybody wants.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TypeAlias

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class BadMessage(ValueError):
    """The bytes are no message of protocol version 1."""


class Unchanged(Enum):
    """The mark of a TOAST value that an update did not change, so the log does not have it."""

    TOAST = "unchanged"


Value: TypeAlias = bytes | Unchanged | None
"""A column's value: its text, the mark of an unchanged value, or null."""
Values: TypeAlias = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """The start of a committed transaction. ``commit_lsn`` is where its commit record begins."""

    commit_lsn: int
    committed_at: datetime
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction. ``end_lsn`` is where its commit record ends."""

    commit_lsn: int
    end_lsn: int
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Column:
    """A published column. ``is_key`` says whether it belongs to the replica identity."""

    name: str
    type_oid: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """The form of a table from here on. ``replica_identity`` is pg_class.relreplident."""

    id: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    relation: int
    new: Values


@dataclass(frozen=True, slots=True)
class Update:
    """``old`` has all columns if ``old_is_whole``, else the key's; None if the key is kept."""

    relation: int
    old: Values | None
    old_is_whole: bool
    new: Values


@dataclass(frozen=True, slots=True)
class Delete:
    """``old`` has all columns if ``old_is_whole``, else only those of the key."""

    relation: int
    old: Values
    old_is_whole: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Other:
    """A message without a change of a table: a type, an origin, or an application's message."""

    kind: str


Message: TypeAlias = Begin | Commit | Relation | Insert | Update | Delete | Truncate | Other


def decode(raw: bytes) -> Message:
    """Decode one message. Raises BadMessage."""
    cursor = _Cursor(raw)
    try:
        message = _message(cursor)
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise BadMessage(f"a message {raw[:1]!r} of {len(raw)} bytes is damaged: {error}") from None
    if cursor.at != len(raw):
        raise BadMessage(f"a message {raw[:1]!r} has {len(raw) - cursor.at} bytes too many")
    return message


def _message(cursor: _Cursor) -> Message:
    match cursor.character():
        case "B":
            commit_lsn, time, xid = cursor.numbers(">QqI")
            return Begin(commit_lsn, _time(time), xid)
        case "C":
            _, commit_lsn, end_lsn, time = cursor.numbers(">BQQq")
            return Commit(commit_lsn, end_lsn, _time(time))
        case "R":
            return _relation(cursor)
        case "I":
            (relation,) = cursor.numbers(">I")
            cursor.expect("N")
            return Insert(relation, cursor.values())
        case "U":
            return _update(cursor)
        case "D":
            (relation,) = cursor.numbers(">I")
            is_whole = cursor.expect("KO") == "O"
            return Delete(relation, cursor.values(), is_whole)
        case "T":
            count, _ = cursor.numbers(">IB")
            return Truncate(cursor.numbers(f">{count}I"))
        case "Y" | "O" | "M" as kind:
            cursor.skip()
            return Other(kind)
        case other:
            raise BadMessage(f"a message of the unknown kind {other!r}")


def _relation(cursor: _Cursor) -> Relation:
    (oid,) = cursor.numbers(">I")
    schema, name, identity = cursor.text(), cursor.text(), cursor.character()
    (count,) = cursor.numbers(">H")
    columns = []
    for _ in range(count):
        (flags,) = cursor.numbers(">B")
        column = cursor.text()
        type_oid, _modifier = cursor.numbers(">Ii")
        columns.append(Column(column, type_oid, bool(flags & 1)))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _update(cursor: _Cursor) -> Update:
    (relation,) = cursor.numbers(">I")
    kind, old = cursor.expect("KON"), None
    if kind != "N":
        old = cursor.values()
        cursor.expect("N")
    return Update(relation, old, kind == "O", cursor.values())


def _time(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


class _Cursor:
    """A position in the bytes of one message. A read past the end raises struct.error or
    IndexError."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self.at = raw, 0

    def numbers(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self._raw, self.at)
        self.at += struct.calcsize(form)
        return found

    def skip(self) -> None:
        self.at = len(self._raw)

    def character(self) -> str:
        found = self._raw[self.at]
        self.at += 1
        return chr(found)

    def expect(self, known: str) -> str:
        found = self.character()
        if found not in known:
            raise BadMessage(f"{found!r} in place of one of {', '.join(known)}")
        return found

    def text(self) -> str:
        end = self._raw.find(b"\0", self.at)
        if end < 0:
            raise IndexError("a text has no end")
        found = self._raw[self.at : end].decode()
        self.at = end + 1
        return found

    def counted(self) -> bytes:
        (size,) = self.numbers(">I")
        found = self._raw[self.at : self.at + size]
        if len(found) < size:
            raise IndexError(f"a value of {size} bytes is cut off")
        self.at += size
        return found

    def values(self) -> Values:
        (count,) = self.numbers(">H")
        return tuple(self._value() for _ in range(count))

    def _value(self) -> Value:
        match self.expect("nut"):
            case "n":
                return None
            case "u":
                return Unchanged.TOAST
            case _:
                return self.counted()
