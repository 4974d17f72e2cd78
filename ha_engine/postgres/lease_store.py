"""Read, create and change the group's lease row by compare-and-set (RULES.md#r1).

The core decides which node may acquire the lease, and when. Each call to the database is one
statement in autocommit mode, so no call leaves a transaction open. Each call blocks for at most
``db_timeout`` seconds on this machine's clock, so callers use a thread.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import (
    CTE,
    BindParameter,
    Column,
    Connection,
    Engine,
    Label,
    Row,
    Select,
    Text,
    bindparam,
    func,
    insert,
    literal,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from ha_engine.errors import DatabaseUnreachable, GroupUnknown, LeaseNotChanged
from ha_engine.postgres.engine import place
from ha_engine.postgres.schema import SCHEMA, lease, lease_history
from ha_engine.postgres.schema_version import admit, in_schema
from ha_engine.postgres.session import Session
from ha_engine.types import DatabaseIdentity, Holder, HolderChange, LeaseRow, Member, Position

T = TypeVar("T")

PAUSE_ATTEMPTS = 20
"""The holder writes once each renew_interval, so even a second attempt rarely conflicts."""

_SYSTEM = literal_column("(SELECT system_identifier::text FROM pg_control_system())", Text)
_TIMELINE = func.substr(func.pg_walfile_name(func.pg_current_wal_lsn()), 1, 8)
_ROW = [
    column for column in lease.c if column.name not in {"group_name", "expires_at", "written_at"}
]
_WANTED = [column.name for column in _ROW if column is not lease.c.version]
_IDENTIFYING = ["holder_node", "holder_process", "epoch", "version"]
"""Compare-and-set compares these columns, because every write changes at least one of them."""


def lease_channel(schema: str, group: str) -> str:
    """The name of the channel on which PostgreSQL notifies of changes of the group's lease row.

    The name is a plain identifier, which needs no quotes.
    """
    # The name of a channel has at most 63 bytes, but schema and group may have 63 bytes each.
    name = hashlib.blake2b(f"{schema}/{group}".encode(), digest_size=16)
    return f"ha_engine_lease_{name.hexdigest()}"


class _Overtaken(Exception):
    """Another writer changed the lease row between this process's read and its write."""


class _Warnings:
    """Receives the server's warnings from the driver.

    This class is not a list, because SQLAlchemy empties a list of warnings.
    """

    latest: str | None = None

    def append(self, notice: str) -> None:
        self.latest = notice


class PostgresLeaseStore:
    """The lease row of the group ``group``.

    Each new connection checks the floor of the schema, so no engine below the floor reads or writes
    the lease row (RULES.md#r32). It also records the engine of the node ``node``, which is None for
    a command.

    Every method raises DatabaseUnreachable when the outcome of its statement is unknown. Every
    method raises DatabaseNotReady when the schema is missing, or has a higher floor than this
    program. A write raises InvariantBroken when
    the database's constraints refuse the write.
    """

    def __init__(
        self,
        engine: Engine,
        group: str,
        ttl_seconds: float,
        *,
        db_timeout: float = 1.0,
        schema: str = SCHEMA,
        node: str | None = None,
    ) -> None:
        self._session = Session(
            in_schema(engine, schema),
            name="lease",
            autocommit=True,
            on_connect=lambda connection: admit(connection, engine, group, node),
        )
        self._group, self._ttl_seconds, self._db_timeout = group, ttl_seconds, db_timeout
        self._channel, self._place = lease_channel(schema, group), place(engine)
        self._select = select(*_ROW).where(lease.c.group_name == group)
        # Cached, because building an UPDATE takes four times as much CPU time as a renewal.
        self._update = functools.cache(self._build_update)

    def read(self) -> LeaseRow | None:
        """Return the group's lease row, or None if the group has no lease row."""
        return self._one_row(self._select, {})

    def create(self, row: LeaseRow, *, reason: str | None = None) -> LeaseRow | None:
        """Insert ``row`` as the lease row of a group that has no lease row (RULES.md#r6).

        Returns None if another node has inserted a lease row first. Also returns None if ``row``
        names another database than the connected one (RULES.md#r5).
        """
        identity = row.identity
        here = _here(identity.system_identifier, identity.timeline) if identity else []
        plain = {"group_name": self._group, **_columns(row)}
        typed = {name: literal(value, lease.c[name].type) for name, value in plain.items()}
        values = typed | self._times()
        created = (
            postgres_insert(lease)
            .from_select(list(values), select(*values.values()).where(*here))
            .on_conflict_do_nothing()
            .returning(*_ROW)
            .cte("created")
        )
        statement = select(*created.c, self._notified())
        if row.holder is not None:
            statement = statement.add_cte(self._history_of(created))
        lost = "first row of the group" if row.epoch <= 1 else "the database had lost the row"
        return self._one_row(statement, {"reason": reason or lost}, writes=True)

    def compare_and_set(
        self, expected: LeaseRow, wanted: LeaseRow, *, reason: str | None = None
    ) -> LeaseRow | None:
        """Replace the lease row ``expected`` by ``wanted``, and increase the row's version by 1.

        Returns None if the lease row is no longer ``expected``. Also returns None if ``wanted``
        names another database than the connected one. The check of the database prevents this
        history (RULES.md#r5):

        1. Node A reads the lease row and sleeps.
        2. Node B acquires the lease, and the database fails over and loses the write of node B.
        3. Node A wakes up, and its compare-and-set finds the lease row that node A has read.

        The same statement writes a change of holder or epoch to the history of the lease. Every
        write except a renewal notifies the listeners.
        """
        statement = self._update(
            notify=_worth_notifying(wanted) != _worth_notifying(expected),
            changes_holder=(wanted.holder, wanted.epoch) != (expected.holder, expected.epoch),
            names_database=wanted.identity is not None,
        )
        values = {f"wanted_{name}": value for name, value in _columns(wanted).items()}
        values |= {f"expected_{name}": value for name, value in _columns(expected).items()}
        return self._one_row(statement, {**values, "reason": reason}, writes=True)

    def _build_update(
        self, *, notify: bool, changes_holder: bool, names_database: bool
    ) -> Select[Any]:
        expected = {name: _parameter("expected", lease.c[name]) for name in _IDENTIFYING}
        wanted = {name: _parameter("wanted", lease.c[name]) for name in _WANTED}
        unchanged = [lease.c[name].is_not_distinct_from(expected[name]) for name in expected]
        here = _here(wanted["system_identifier"], wanted["timeline"]) if names_database else []
        written = (
            update(lease)
            .where(lease.c.group_name == self._group, *unchanged, *here)
            .values(**wanted, version=lease.c.version + 1, **self._times())
            .returning(*_ROW)
            .cte("written")
        )
        statement = select(*written.c, *([self._notified()] if notify else []))
        if changes_holder:
            statement = statement.add_cte(
                self._history_of(
                    written,
                    previous_node=expected["holder_node"],
                    previous_process=expected["holder_process"],
                )
            )
        return statement

    def set_paused(self, paused: bool) -> LeaseRow:
        """Begin or end a pause, in which no node acquires the lease (RULES.md#r7).

        Returns the new lease row. Raises GroupUnknown when the group has no lease row. Raises
        LeaseNotChanged when other writers changed the lease row during every attempt. Also raises
        LeaseNotChanged when the lease row may be older than the row that the nodes have read.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(_Overtaken),
            stop=stop_after_attempt(PAUSE_ATTEMPTS),
            wait=wait_random(0, 0.1),
        )
        try:
            return retrying(self._try_to_pause, paused)
        except RetryError:
            raise LeaseNotChanged(
                f"the lease row of group {self._group} changed during each of {PAUSE_ATTEMPTS} "
                "attempts to write it; try again"
            ) from None

    def _try_to_pause(self, paused: bool) -> LeaseRow:
        row = self.read()
        if row is None:
            raise GroupUnknown(
                f"the database {self._place} has no lease row of group {self._group}; "
                "start a node of the group first, or correct group or database.url"
            )
        if row.paused is paused:
            return row
        self._require_same_database(row)
        written = self.compare_and_set(row, replace(row, paused=paused))
        if written is None:
            raise _Overtaken
        return written

    def _require_same_database(self, row: LeaseRow) -> None:
        # 1. The holder writes version 7, in which node P is not in sync, and acks without node P.
        # 2. The database fails over to a replica that has version 6, in which node P is in sync.
        # 3. A pause writes another version 7, in which node P is in sync. No node can see that the
        #    lease row regressed (RULES.md#r5). Node P may acquire the lease without the acked
        #    events.
        # Read the identity after the row, to notice also a failover between the two reads.
        if row.identity not in (None, self.identity()):
            raise LeaseNotChanged(
                f"the database {self._place} is not the one that the holder wrote its lease to, so "
                "the row may be out of date; try again once a node holds the lease here"
            )

    def identity(self) -> DatabaseIdentity:
        """The identity of the connected PostgreSQL server (RULES.md#r5).

        An unprivileged role may read this identity.
        """
        statement = select(_SYSTEM, _TIMELINE)
        row = self._call(lambda connection: connection.execute(statement).one())
        return DatabaseIdentity(row[0], row[1])

    def history(self, limit: int = 20) -> list[HolderChange]:
        """The latest changes of the lease's holder, newest first."""
        statement = (
            select(lease_history)
            .where(lease_history.c.group_name == self._group)
            .order_by(lease_history.c.id.desc())
            .limit(limit)
        )
        rows = self._call(lambda connection: connection.execute(statement).all())
        return [_holder_change(row) for row in rows]

    def note_outage(self, epoch: int, seconds: float) -> None:
        """Write into the lease's history how long no node accepted events before ``epoch``.

        The holder of ``epoch`` measures this time and calls this method. The call has no effect if
        the history has no line for ``epoch``.
        """
        newest = (
            select(func.max(lease_history.c.id))
            .where(lease_history.c.group_name == self._group, lease_history.c.epoch == epoch)
            .where(lease_history.c.holder_node.is_not(None))
            .scalar_subquery()
        )
        statement = (
            update(lease_history).where(lease_history.c.id == newest).values(outage_seconds=seconds)
        )
        self._call(lambda connection: connection.execute(statement))

    def close(self) -> None:
        """Close the store's connection and end its thread."""
        self._session.shut()

    # -- one statement -------------------------------------------------------------------------

    def _call(self, work: Callable[[Connection], T]) -> T:
        deadline = time.monotonic() + self._db_timeout
        return self._session.call(work, lambda: deadline - time.monotonic())

    def _one_row(
        self, statement: Select[Any], values: dict[str, Any], *, writes: bool = False
    ) -> LeaseRow | None:
        def work(connection: Connection) -> LeaseRow | None:
            warnings = _Warnings()
            connection.connection.driver_connection.notices = warnings  # type: ignore[union-attr]
            row = connection.execute(statement, values).one_or_none()
            if writes and warnings.latest is not None:
                raise self._doubtful(warnings.latest)
            return None if row is None else _lease_row(row)

        return self._call(work)

    def _doubtful(self, notice: str) -> DatabaseUnreachable:
        # 1. A commit waits for a synchronous standby that is down.
        # 2. An administrator cancels the commit's wait for the standby.
        # 3. The server reports success with a warning of SQLSTATE class 01, though a failover to
        #    the standby would lose the write.
        # So a write with a warning has an unknown outcome (RULES.md#r1).
        return DatabaseUnreachable(
            f"the database {self._place} warned about a write to the lease, "
            f"so its outcome is unknown: {' '.join(notice.split())}"
        )

    def _times(self) -> dict[str, Any]:
        # The function now() would return the start of the transaction. The trigger of the table
        # adds the time that an UPDATE waits for the row's lock.
        ttl = timedelta(seconds=self._ttl_seconds)
        return {"written_at": func.clock_timestamp(), "expires_at": func.clock_timestamp() + ttl}

    def _notified(self) -> Label[Any]:
        # The writing statement itself notifies, so the server notifies only if the write commits.
        return func.pg_notify(self._channel, "").label("notified")

    def _history_of(self, written: CTE, **previous: BindParameter[Any]) -> CTE:
        """An INSERT of the history's line for the row ``written``, with a parameter ``reason``."""
        line = {
            "group_name": literal(self._group),
            "epoch": written.c.epoch,
            "version": written.c.version,
            "at": func.clock_timestamp(),
            "holder_node": written.c.holder_node,
            "holder_process": written.c.holder_process,
            "reason": bindparam("reason", type_=lease_history.c.reason.type),
            **previous,
        }
        lines = select(*line.values()).select_from(written)
        return insert(lease_history).from_select(list(line), lines).cte("history_line")


def _worth_notifying(row: LeaseRow) -> tuple[object, ...]:
    """The fields of the lease row whose changes notify listeners."""
    return row.holder, row.epoch, row.in_sync, row.successor, row.paused


def _parameter(prefix: str, column: Column[Any]) -> BindParameter[Any]:
    return bindparam(f"{prefix}_{column.name}", type_=column.type)


def _here(system_identifier: Any, timeline: Any) -> list[Any]:
    """The SQL condition that the connected database has the given identity."""
    return [system_identifier == _SYSTEM, timeline == _TIMELINE]


def _columns(row: LeaseRow) -> dict[str, Any]:
    return {
        "group_id": row.group_id,
        "holder_node": row.holder.node if row.holder else None,
        "holder_process": row.holder.process if row.holder else None,
        "epoch": row.epoch,
        "version": row.version,
        "in_sync": [
            {"node": member.node, "journal_id": member.journal_id} for member in row.in_sync
        ],
        "advertise": row.advertise,
        "successor": row.successor,
        "paused": row.paused,
        "system_identifier": row.identity.system_identifier if row.identity else None,
        "timeline": row.identity.timeline if row.identity else None,
        "committed_epoch": row.committed.epoch,
        "committed_sequence": row.committed.sequence,
    }


def _lease_row(row: Row[Any]) -> LeaseRow:
    return LeaseRow(
        group_id=row.group_id,
        holder=_holder(row.holder_node, row.holder_process),
        epoch=row.epoch,
        version=row.version,
        in_sync=tuple(Member(member["node"], member["journal_id"]) for member in row.in_sync),
        advertise=row.advertise,
        successor=row.successor,
        paused=row.paused,
        identity=DatabaseIdentity(row.system_identifier, row.timeline)
        if row.system_identifier
        else None,
        committed=Position(row.committed_epoch, row.committed_sequence),
    )


def _holder(node: str | None, process: str | None) -> Holder | None:
    return None if node is None or process is None else Holder(node, process)


def _holder_change(row: Row[Any]) -> HolderChange:
    return HolderChange(
        at=row.at,
        epoch=row.epoch,
        version=row.version,
        holder=_holder(row.holder_node, row.holder_process),
        previous=_holder(row.previous_node, row.previous_process),
        reason=row.reason,
        outage_seconds=row.outage_seconds,
    )
