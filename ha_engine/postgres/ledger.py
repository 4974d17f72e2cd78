"""The ledger beside a sink's table records the table's last batch and the epoch that may publish
(RULES.md#r24).

The ledger has one row per (group, query, sink), in the schema of the sink's table. The transaction
that writes a batch's rows also updates the ledger row. A sink with buckets has one ledger row for
each bucket, or one in all if its batches are atomic. Each function of this module runs in its
caller's transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    MetaData,
    Table,
    Text,
    func,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from ha_engine.errors import Fenced, SinkRefused, SinkUnavailable

TABLE = "ha_engine_ledger"
_BUCKET = "#"
"""Divides the name of a sink, which cannot contain it, from the number of a bucket."""
_BATCH = "batch"


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """The key of a ledger row."""

    group: str
    query: str
    sink: str

    def of_bucket(self, bucket: int, buckets: int) -> LedgerKey:
        """The key of the ledger row of one of a sink's ``buckets``, from 0."""
        return replace(self, sink=f"{self.sink}{_BUCKET}{bucket}/{buckets}")

    def of_all(self, buckets: int) -> LedgerKey:
        """The key of the one ledger row of a sink with ``buckets`` that have none themselves."""
        return replace(self, sink=f"{self.sink}{_BUCKET}all/{buckets}")

    def of_batch(self) -> LedgerKey:
        """The key of the one ledger row of a sink whose tasks write a batch in one step."""
        return replace(self, sink=f"{self.sink}{_BUCKET}{_BATCH}")


class Ledger:
    """The ledger row of ``key``, in the ledger of the database schema ``schema``.

    If ``schema`` is None, the connection's search path decides. ``group_id`` is the group's UUID,
    for a caller that does not claim the ledger row itself.
    """

    def __init__(self, key: LedgerKey, schema: str | None, group_id: str = "") -> None:
        self._key = key
        self._group_id = group_id
        # RULES.md#i7: one transaction writes both the rows of a batch and the batch's number, so
        # each sink has one ledger row.
        self.table = Table(
            TABLE,
            MetaData(),
            Column("group_name", Text, primary_key=True),
            Column("query", Text, primary_key=True),
            Column("sink", Text, primary_key=True),
            # A wiped node or another installation may reuse a group's name, but not its group id.
            Column("group_id", Text, nullable=False),
            Column("epoch", BigInteger, nullable=False),
            Column("batch", BigInteger, nullable=False),
            Column("published_at", DateTime(timezone=True), nullable=False),
            CheckConstraint("epoch >= 0 AND batch >= 0", name="ha_engine_ledger_counts_up"),
            schema=schema,
        )

    def claim(self, connection: Connection, epoch: int, start_after: int, group_id: str) -> int:
        """Raise the epoch of the ledger row to ``epoch`` and return the last batch of the row.

        A missing ledger row is created with ``start_after`` as its last batch. The caller must
        commit before it acts on the result. Raises Fenced when the ledger row has a higher epoch.
        Raises SinkRefused when the ledger row belongs to another group, because the epochs of two
        groups cannot be compared.
        """
        self._group_id = group_id
        row = dict(zip(("group_name", "query", "sink"), self._identity(), strict=True))
        first = insert(self.table).values(
            **row,
            group_id=group_id,
            epoch=epoch,
            batch=start_after,
            published_at=func.clock_timestamp(),
        )
        connection.execute(first.on_conflict_do_nothing())
        raised = connection.execute(
            update(self.table)
            .where(*self._ours(), self.table.c.epoch <= epoch)
            .values(epoch=epoch)
            .returning(self.table.c.batch)
        ).scalar_one_or_none()
        if raised is None:
            raise Fenced(self._read(connection)[0], self._key.sink)
        return int(raised)

    def advance(self, connection: Connection, epoch: int, batch: int) -> bool:
        """Change the last batch of the ledger row from ``batch`` - 1 to ``batch``.

        Returns False if the ledger row has ``batch`` or a later batch already. Raises Fenced when
        the ledger row has a higher epoch. Raises SinkUnavailable when the ledger row has a lower
        epoch, so that the caller must claim the row again. Raises SinkRefused when the ledger
        row's last batch is before ``batch`` - 1.
        """
        ledger = self.table.c
        updated = connection.execute(
            update(self.table)
            .where(*self._ours(), ledger.epoch == epoch, ledger.batch == batch - 1)
            .values(batch=batch, published_at=func.clock_timestamp())
        ).rowcount
        if updated == 1:
            return True
        require_has(*self._read(connection), epoch, batch, self._key.sink)
        return False

    def has(self, connection: Connection, epoch: int, batch: int) -> bool:
        """Return whether the ledger row has ``batch``, and False if the row ends just before it.

        Raises as ``advance`` does.
        """
        found = self._read(connection)
        if found == (epoch, batch - 1):
            return False
        require_has(*found, epoch, batch, self._key.sink)
        return True

    def _read(self, connection: Connection) -> tuple[int, int]:
        ledger = self.table.c
        columns = (ledger.epoch, ledger.batch, ledger.group_id)
        row = connection.execute(select(*columns).where(*self._named())).first()
        if row is None:
            return 0, 0
        if row.group_id != self._group_id:
            raise SinkRefused(
                f"the row of sink {self._key.sink} of query {self._key.query} in "
                f"{self.table.fullname} belongs to group {row.group_id}, not to this group "
                f"{self._group_id}, but both are named {self._key.group}; give this sink or "
                "this group another name, or delete that row if its group is gone for good"
            )
        return row.epoch, row.batch

    def _ours(self) -> list[Any]:
        return [*self._named(), self.table.c.group_id == self._group_id]

    def _named(self) -> list[Any]:
        ledger = self.table.c
        columns = (ledger.group_name, ledger.query, ledger.sink)
        return [c == value for c, value in zip(columns, self._identity(), strict=True)]

    def _identity(self) -> tuple[str, str, str]:
        return self._key.group, self._key.query, self._key.sink


def require_same_buckets(
    connection: Connection, table: Table, key: LedgerKey, rows: Collection[str]
) -> None:
    """Raise SinkRefused if the sink has a ledger row besides those of the sinks named ``rows``.

    Another number of buckets divides a batch's rows in another way. So a batch of which some
    buckets are written could neither be continued nor repeated. A sink whose batches are atomic has
    no such batch, and its one ledger row does not name the number.
    """
    name = key.sink.partition(_BUCKET)[0]
    of_sink = func.split_part(table.c.sink, _BUCKET, 1) == name
    of_query = table.c.group_name == key.group, table.c.query == key.query
    found = connection.execute(
        select(table.c.sink).where(*of_query, of_sink, table.c.sink.not_in(rows)).limit(1)
    ).scalar()
    if found is not None:
        raise SinkRefused(
            f"sink {name} of query {key.query} has {_division(found)} in {table.fullname}, which "
            "cannot change; give the sink a new name"
        )


def _division(sink: str) -> str:
    """How the sink of a ledger row divides its batches, for people."""
    division = sink.partition(_BUCKET)[2]
    if not division:
        return "no buckets"
    if division == _BATCH:
        return "buckets with atomic: batch"
    return f"{division.rpartition('/')[2]} separate buckets"


def require_has(found_epoch: int, found_batch: int, epoch: int, batch: int, sink: str) -> None:
    """Return if a ledger row that could not advance to ``batch`` under ``epoch`` has that batch.

    The row has the epoch ``found_epoch``, and ``found_batch`` as its last batch. Raises Fenced,
    SinkUnavailable or SinkRefused, as ``Ledger.advance`` says.
    """
    if found_epoch > epoch:
        raise Fenced(found_epoch, sink)
    if found_epoch < epoch:
        raise SinkUnavailable(
            f"the ledger of sink {sink} fell back to epoch {found_epoch}; the node claims it again"
        )
    if found_batch < batch - 1:
        raise SinkRefused(
            f"the ledger of sink {sink} ends at batch {found_batch}, "
            f"so batch {batch} would leave a gap; "
            "check whether its database was restored to an older state"
        )
