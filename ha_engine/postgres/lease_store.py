"""The group's lease row: read it, create it, change it by compare-and-set (RULES.md#r1).

The core decides which node may acquire, and when. Every call here is one statement in autocommit on
one connection. Each call blocks for at most ``db_timeout`` seconds on this machine's clock, so call
it in a thread. No call leaves a transaction open.
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
from ha_engine.postgres.session import Session
from ha_engine.types import DatabaseIdentity, Holder, HolderChange, LeaseRow, Member

T = TypeVar("T")

PAUSE_ATTEMPTS = 20
"""The holder writes once each renew_interval, so it rarely overtakes even two attempts."""

_SYSTEM = literal_column("(SELECT system_identifier::text FROM pg_control_system())", Text)
_TIMELINE = func.substr(func.pg_walfile_name(func.pg_current_wal_lsn()), 1, 8)
_ROW = [
    column for column in lease.c if column.name not in {"group_name", "expires_at", "written_at"}
]
_WANTED = [column.name for column in _ROW if column is not lease.c.version]
_IDENTIFYING = ["holder_node", "holder_process", "epoch", "version"]
"""Compare-and-set compares these: whoever changes the row changes one of them."""


def lease_channel(schema: str, group: str) -> str:
    """The channel where PostgreSQL notifies of changes of the group's row; a plain identifier."""
    # A channel's name has at most 63 bytes, and schema and group may each have as many.
    name = hashlib.blake2b(f"{schema}/{group}".encode(), digest_size=16)
    return f"ha_engine_lease_{name.hexdigest()}"


class _Overtaken(Exception):
    """Another writer changed the row between our read and our write."""


class _Warnings:
    """Receives the server's warnings from the driver. Not a list: SQLAlchemy would empty it."""

    latest: str | None = None

    def append(self, notice: str) -> None:
        self.latest = notice


class PostgresLeaseStore:
    """The row of ``group``.

    Every method raises DatabaseUnreachable when the outcome is unknown, DatabaseNotReady when the
    schema is missing, and InvariantBroken when the database's own constraints refuse a write.
    """

    def __init__(
        self,
        engine: Engine,
        group: str,
        ttl_seconds: float,
        *,
        db_timeout: float = 1.0,
        schema: str = SCHEMA,
    ) -> None:
        translated_schema = engine.execution_options(schema_translate_map={SCHEMA: schema})
        self._session = Session(translated_schema, name="lease", autocommit=True)
        self._group, self._ttl_seconds, self._db_timeout = group, ttl_seconds, db_timeout
        self._channel, self._place = lease_channel(schema, group), place(engine)
        self._select = select(*_ROW).where(lease.c.group_name == group)
        # To build such a statement takes four times the CPU of a renewal itself.
        self._update = functools.cache(self._build_update)

    def read(self) -> LeaseRow | None:
        """Read the row; None: the group has none."""
        return self._one_row(self._select, {})

    def create(self, row: LeaseRow, *, reason: str | None = None) -> LeaseRow | None:
        """Write the row of a group that has none, as given (RULES.md#r6).

        None: another node was faster, or this is another database than ``row`` names (RULES.md#r5).
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
        """Replace ``expected`` by ``wanted`` with version + 1.

        None: the row was no longer ``expected``, or this is another database than ``wanted`` names.
        The check of the database prevents this history (RULES.md#r5):

        1. A node reads the row and sleeps.
        2. Another node acquires, and the database fails over without that write.
        3. The first node wakes up and finds the row as it has read it.

        The same statement writes a change of holder or epoch to the history. A write notifies
        listeners of every change that is more than a renewal.
        """
        statement = self._update(
            notify=_news(wanted) != _news(expected),
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
        """Begin or end a pause, in which no node acquires (RULES.md#r7); return the row after it.

        Also raises GroupUnknown without a row. Raises LeaseNotChanged when another writer overtook
        every attempt, or when the row may be older than the nodes have read.
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
        # 1. The holder removes P from in_sync with version 7 and acks alone.
        # 2. The database fails over to a replica that has version 6, with P in it.
        # 3. A pause makes it version 7. No node can see that the row regressed (RULES.md#r5), and P
        #    may acquire without the acked events.
        # The identity is read after the row, to notice a failover between the two reads as well.
        if row.identity not in (None, self.identity()):
            raise LeaseNotChanged(
                f"the database {self._place} is not the one that the holder wrote its lease to, so "
                "the row may be out of date; try again once a node holds the lease here"
            )

    def identity(self) -> DatabaseIdentity:
        """Identify the PostgreSQL that answers; works for an unprivileged role (RULES.md#r5)."""
        statement = select(_SYSTEM, _TIMELINE)
        row = self._call(lambda connection: connection.execute(statement).one())
        return DatabaseIdentity(row[0], row[1])

    def history(self, limit: int = 20) -> list[HolderChange]:
        """The latest changes of holder, newest first."""
        statement = (
            select(lease_history)
            .where(lease_history.c.group_name == self._group)
            .order_by(lease_history.c.id.desc())
            .limit(limit)
        )
        rows = self._call(lambda connection: connection.execute(statement).all())
        return [_holder_change(row) for row in rows]

    def note_outage(self, epoch: int, seconds: float) -> None:
        """Write into the history how long no node took events before the holder of ``epoch`` did.

        That holder measures the time and calls this. Without a history line of the epoch the call
        has no effect.
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
        """End the connection and its thread."""
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
        # 1. The commit waits for a synchronous standby that is gone.
        # 2. An administrator cancels the wait.
        # 3. The server reports success with a warning of SQLSTATE class 01, though a failover to
        #    that standby would lose the write.
        # So a write with a warning has an unknown outcome (RULES.md#r1).
        return DatabaseUnreachable(
            f"the database {self._place} warned about a write to the lease, "
            f"so its outcome is unknown: {' '.join(notice.split())}"
        )

    def _times(self) -> dict[str, Any]:
        # Not now(), which is the start of the transaction. The trigger adds a wait for the row
        # lock.
        ttl = timedelta(seconds=self._ttl_seconds)
        return {"written_at": func.clock_timestamp(), "expires_at": func.clock_timestamp() + ttl}

    def _notified(self) -> Label[Any]:
        # In the writing statement: the server notifies when that statement commits, or never.
        return func.pg_notify(self._channel, "").label("notified")

    def _history_of(self, written: CTE, **previous: BindParameter[Any]) -> CTE:
        """The line of the history for a row ``written`` with a parameter ``reason``."""
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


def _news(row: LeaseRow) -> tuple[object, ...]:
    """The fields whose change listeners wait for. A renewal changes none of them."""
    return row.holder, row.epoch, row.in_sync, row.successor, row.paused


def _parameter(prefix: str, column: Column[Any]) -> BindParameter[Any]:
    return bindparam(f"{prefix}_{column.name}", type_=column.type)


def _here(system_identifier: Any, timeline: Any) -> list[Any]:
    """The condition that this is the database with that identity."""
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
