"""Turn the messages of a slot into the steps of one table, each with its place in the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ha_engine.connectors.postgres_cdc.initial import Key
from ha_engine.connectors.postgres_cdc.offset import Inside, lsn_text
from ha_engine.connectors.postgres_cdc.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Relation,
    Truncate,
    Unchanged,
    Update,
    Values,
    decode,
)
from ha_engine.errors import SourceRefused

SKIP = (
    "restore the publication to what it was, or accept the loss: advance the slot behind this "
    "transaction with pg_replication_slot_advance, and set skip_to to that position"
)


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the stream to be: ``operation`` is insert, update, delete or truncate.

    An update that changes the key is two steps: a delete of the old key and an insert of the new
    one. Change n of the table in a transaction, counted from 0, has the numbers 2n + 1 and 2n + 2,
    whether it has both steps or only the second. So a number has the same meaning in each read.

    ``values`` are in the order of the columns of ``relation``, and empty for a truncation. Values
    that the log does not have are null, or ``Unchanged``. ``old`` is the whole old row, if the log
    has it. ``size`` is the number of bytes of its message.
    """

    operation: str
    transaction: Begin
    number: int
    relation: Relation
    values: Values
    old: Values | None
    size: int

    @property
    def inside(self) -> Inside:
        """The place after this step."""
        return Inside(self.transaction.commit_lsn, self.transaction.xid, self.number)

    def key(self, names: tuple[str, ...]) -> Key | None:
        """The values of the columns ``names``, or None if one of them is not in the log."""
        return _key(self.relation, self.values, names)


@dataclass(frozen=True, slots=True)
class Passed:
    """The end of a transaction: everything before ``lsn`` was returned."""

    lsn: int


Event: TypeAlias = Step | Passed


class Changes:
    """Follows the messages of one peek at a slot, from the place (``lsn``, ``inside``) on.

    Transactions that begin their commit record before ``lsn`` are passed over, and so are the first
    ``inside.done`` steps of the transaction ``inside``. ``table`` is the oid of the table, whose
    name may have been another one at that time. ``key`` names the primary key, for tables whose
    replica identity is the whole row.
    """

    def __init__(self, table: int, key: tuple[str, ...], lsn: int, inside: Inside | None) -> None:
        self._table, self._key = table, key
        self._lsn, self._inside = lsn, inside
        self._relations: dict[int, Relation] = {}
        self._transaction: Begin | None = None
        self._is_known, self._done, self._changes = False, 0, 0

    def events(self, raw: bytes) -> Iterator[Event]:
        """Yield what the next message means. Raises BadMessage, and SourceRefused if the rest of
        the transaction ``inside`` is missing."""
        if self._is_known and raw[:1] in b"IUDT":
            return
        match decode(raw):
            case Begin() as begin:
                self._begin(begin)
            case Commit() as commit:
                yield from self._commit(commit)
            case Relation() as relation:
                self._relations[relation.id] = relation
            case Insert() | Update() | Delete() as change:
                if change.relation == self._table:
                    relation = self._relations[self._table]
                    steps = list(self._steps(change, relation))
                    yield from self._numbered(steps, relation, len(raw))
            case Truncate(relations):
                if self._table in relations:
                    relation = self._relations[self._table]
                    yield from self._numbered([("truncate", (), None)], relation, len(raw))
            case _:
                pass

    def _begin(self, begin: Begin) -> None:
        self._transaction, self._changes, self._done = begin, 0, 0
        self._is_known = begin.commit_lsn < self._lsn
        if self._is_known or (inside := self._inside) is None:
            return
        if (begin.commit_lsn, begin.xid) != (inside.commit_lsn, inside.xid):
            raise SourceRefused(
                f"the rest of transaction {inside.xid}, which was committed at "
                f"{lsn_text(inside.commit_lsn)} and of which {inside.done // 2} changes were read, "
                f"is not in the slot: its next transaction is {begin.xid} at "
                f"{lsn_text(begin.commit_lsn)}; {SKIP}"
            )
        self._done = inside.done

    def _commit(self, commit: Commit) -> Iterator[Event]:
        if not self._is_known:
            if 2 * self._changes < self._done:
                raise SourceRefused(
                    f"the transaction committed at {lsn_text(commit.commit_lsn)} has "
                    f"{self._changes} changes now, and had at least {self._done // 2}; {SKIP}"
                )
            self._inside = None
            yield Passed(commit.end_lsn)
        self._transaction, self._is_known = None, False

    def _numbered(
        self, steps: list[tuple[str, Values, Values | None]], relation: Relation, size: int
    ) -> Iterator[Step]:
        assert self._transaction is not None, "a change is in a transaction"
        self._changes += 1
        number = 2 * self._changes - len(steps)
        for operation, values, old in steps:
            number += 1
            if number > self._done:
                yield Step(operation, self._transaction, number, relation, values, old, size)

    def _steps(
        self, change: Insert | Update | Delete, relation: Relation
    ) -> Iterator[tuple[str, Values, Values | None]]:
        match change:
            case Insert():
                yield "insert", change.new, None
            case Delete():
                yield "delete", change.old, change.old if change.old_is_whole else None
            case Update():
                old = change.old if change.old_is_whole else None
                new = _filled(change)
                if change.old is not None and self._key_differs(change.old, new, relation):
                    yield "delete", change.old, old
                    yield "insert", new, None
                else:
                    yield "update", new, old

    def _key_differs(self, old: Values, new: Values, relation: Relation) -> bool:
        names = self._key
        if relation.replica_identity != "f":
            names = tuple(column.name for column in relation.columns if column.is_key)
        return _key(relation, old, names) != _key(relation, new, names)


def _filled(change: Update) -> Values:
    """The new row, with unchanged values from the old row as far as the log has it.

    Null in the old row says nothing, since null is never a value that PostgreSQL stores apart. The
    old row of a partition may have its key alone, although the root's replica identity is full.
    """
    if change.old is None or Unchanged.TOAST not in change.new:
        return change.new
    return tuple(
        old if new is Unchanged.TOAST and old is not None else new
        for old, new in zip(change.old, change.new, strict=True)
    )


def _key(relation: Relation, values: Values, names: tuple[str, ...]) -> Key | None:
    found = {column.name: value for column, value in zip(relation.columns, values, strict=False)}
    key = [found.get(name) for name in names]
    if not key:
        return ()
    texts = [one.decode(errors="surrogateescape") for one in key if isinstance(one, bytes)]
    return tuple(texts) if len(texts) == len(names) else None
