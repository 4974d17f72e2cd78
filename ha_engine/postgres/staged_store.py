"""Write a batch by several tasks, and show its rows in one step (RULES.md#r34).

The tasks copy their rows into a staging table. The driver of the tasks then moves them, together
with the ledger row of the sink, in one transaction.

Each attempt to write a batch has a staging table of its own, and each row there names the task that
wrote it. The driver moves the rows of the tasks whose outcome it has. So rows of an earlier
attempt, of another driver, or of a task that Spark ran twice never get into the sink's table.

A staging table is unlogged, which halves what the server writes to its log. A crash of the server
empties it, as a failover to a standby does. That loses nothing, since a batch is admitted only
after its commit: the next attempt computes the rows again. The commit counts the rows of each task
first, so it never moves a part of them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sqlalchemy import Connection, Engine, func, select, text

from ha_engine.errors import SinkUnavailable
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.ledger_store import Remaining
from ha_engine.postgres.sink_store import SinkTable
from ha_engine.postgres.sink_table import Target, quoted
from ha_engine.postgres.table_rows import CsvRows, execute, insert_from, listed, write_rows

TASK = "ha_engine_task"
"""The column of a staging table with the number of the task that wrote the row."""
PREFIX = "ha_engine_stage_"


class StagedSinkStore(SinkTable):
    """The staging tables and the one ledger row of a sink whose batches are atomic.

    The staging tables are in the schema of the sink's table, as the ledger is.
    """

    def __init__(self, engine: Engine, key: LedgerKey, target: Target, *, group_id: str) -> None:
        super().__init__(engine, key.of_batch(), target, group_id=group_id)
        identity = json.dumps([key.group, key.query, key.sink]).encode()
        self._prefix = f"{PREFIX}{hashlib.sha256(identity).hexdigest()[:16]}_"

    def begin(
        self, batch: int, epoch: int, columns: Sequence[str], remaining: Remaining
    ) -> str | None:
        """Create a staging table with ``columns`` of the sink's table, and return its name.

        Returns None if the ledger row has ``batch`` already. Drops the staging tables of earlier
        attempts, whose rows nobody moves any more.
        """
        name = f"{self._prefix}{secrets.token_hex(8)}"
        stage = name if self._target.schema is None else f"{self._target.schema}.{name}"

        def work(connection: Connection) -> str | None:
            if self._ledgers.ledger.has(connection, epoch, batch):
                return None
            for left in self._stages(connection):
                _drop(connection, left)
            # listed() and quoted have quoted all names.
            execute(
                connection,
                f"CREATE UNLOGGED TABLE {Target(stage).quoted} WITH (autovacuum_enabled = off) AS"  # noqa: S608
                f" SELECT {listed(columns)}, CAST(NULL AS bigint) AS {TASK}"
                f" FROM {self._target.quoted} WITH NO DATA",
            )
            return stage

        return self._ledgers.transact(work, remaining)

    def stage(self, stage: str, parts: Iterable[CsvRows], remaining: Remaining) -> int:
        """Write the rows of one task into the staging table, and return their number.

        The rows have the column TASK. They need no epoch, since only the commit of their attempt
        moves them.
        """
        rows = 0

        def counted() -> Iterator[CsvRows]:
            nonlocal rows
            for part in parts:
                rows += part.rows
                yield part

        def work(connection: Connection) -> int:
            _require_stage(connection, stage)
            write_rows(connection, Target(stage), counted())
            return rows

        return self._ledgers.transact(work, remaining)

    def commit(
        self,
        batch: int,
        epoch: int,
        columns: Sequence[str],
        stage: str | None,
        staged: Mapping[int, int],
        remaining: Remaining,
    ) -> None:
        """Move all rows of ``batch`` into the sink's table, and its ledger row, in one transaction.

        ``staged`` has the number of rows of each task. ``stage`` is None for a batch without rows.
        Changes nothing if the ledger row has ``batch`` already.
        """

        def work(connection: Connection) -> None:
            # Update the ledger row first, so that a fenced driver fails before it moves a row.
            if not self._ledgers.ledger.advance(connection, epoch, batch) or stage is None:
                return
            # The rows of a batch take longer than one call, which the engine's timeout is for.
            limit = max(1, round(remaining() * 1000))
            connection.execute(text(f"SET LOCAL statement_timeout = {limit}"))
            _require_whole(connection, stage, staged)
            insert_from(connection, self._target, columns, _rows_of(stage, staged))
            _drop(connection, Target(stage))

        self._ledgers.transact(work, remaining)

    def _stages(self, connection: Connection) -> list[Target]:
        schema = self._target.schema
        found = {"schema": None if schema is None else quoted(schema), "prefix": self._prefix}
        names = connection.execute(_STAGES, found).scalars()
        return [Target(name if schema is None else f"{schema}.{name}") for name in names]


_STAGES = text("""
    SELECT relname FROM pg_class
    WHERE relnamespace = to_regnamespace(coalesce(:schema, quote_ident(current_schema())))
      AND relkind = 'r' AND starts_with(relname::text, :prefix)
      AND pg_has_role(relowner, 'USAGE')
""")


def _drop(connection: Connection, stage: Target) -> None:
    """Drop a staging table, unless a late task still writes to it. Then a later attempt does."""
    execute(
        connection,
        f"DO $$ BEGIN LOCK TABLE {stage.quoted} IN ACCESS EXCLUSIVE MODE NOWAIT;"
        f" DROP TABLE {stage.quoted};"
        " EXCEPTION WHEN lock_not_available OR undefined_table THEN NULL; END $$",
    )


def _require_stage(connection: Connection, stage: str) -> None:
    found = select(func.to_regclass(Target(stage).quoted).is_not(None))
    if not connection.execute(found).scalar_one():
        raise SinkUnavailable(
            f"the staging table {stage} is gone, since another attempt writes the batch or the "
            "server was restored; the node writes the batch again"
        )


def _require_whole(connection: Connection, stage: str, staged: Mapping[int, int]) -> None:
    """Raise SinkUnavailable unless the staging table has ``staged`` rows of each task."""
    _require_stage(connection, stage)
    counts = text(f"SELECT {TASK}, count(*) FROM {_rows_of(stage, staged)} GROUP BY {TASK}")  # noqa: S608
    found = {int(task): int(rows) for task, rows in connection.execute(counts)}
    wanted = {task: rows for task, rows in staged.items() if rows}
    if found != wanted:
        raise SinkUnavailable(
            f"the staging table {stage} has {sum(found.values())} of {sum(wanted.values())} rows, "
            "since a crash of the server empties it; the node writes the batch again"
        )


def _rows_of(stage: str, tasks: Iterable[int]) -> str:
    """SQL of a FROM clause with the rows of ``tasks``."""
    numbers = ", ".join(map(str, tasks))
    return f"{Target(stage).quoted} WHERE {TASK} IN ({numbers})"
