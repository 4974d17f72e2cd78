"""Access to a sink's ledger row, with a deadline for each call.

Each transaction uses the same connection, which stays open between batches. The argument
``remaining`` of a call returns the seconds until the deadline. The call returns or raises by the
deadline (RULES.md#r17).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine

from ha_engine.errors import DatabaseUnreachable, SinkRefused, SinkUnavailable
from ha_engine.postgres.engine import first_line, place, sqlstate
from ha_engine.postgres.ledger import Ledger, LedgerKey, require_same_buckets
from ha_engine.postgres.session import Session
from ha_engine.postgres.sink_table import prepare_ledger

T = TypeVar("T")

Remaining = Callable[[], float]

_FOR_EVER = ("0A", "21", "22", "23", "28", "3D", "3F", "42", "44", "54", "P0")
"""The SQLSTATE classes of errors that a retry of the same rows would repeat.

Examples are two rows with one key, a bad value, a constraint, a missing right, a wrong schema, and
a limit of the server.
"""


class LedgerStore:
    """The ledger row of one sink, in the database schema ``schema``.

    If ``schema`` is None, the connection's search path decides. Every method raises SinkUnavailable
    when a retry may help or the outcome is unknown. Every method raises SinkRefused when an
    operator must act. A method raises Fenced when the ledger row has a higher epoch.
    """

    def __init__(
        self,
        engine: Engine,
        key: LedgerKey,
        schema: str | None,
        *,
        create_schema: bool = False,
        group_id: str = "",
    ) -> None:
        self._session = Session(
            engine, name=f"sink {key.query}/{key.sink}", translation=_sink_error
        )
        self.key, self._create_schema = key, create_schema
        self.ledger = Ledger(key, schema, group_id)

    def prepare(self, connection: Connection) -> None:
        """Create the ledger's table in the caller's transaction, unless the table exists."""
        prepare_ledger(connection, self.ledger.table, create_schema=self._create_schema)

    def claim(self, epoch: int, start_after: int, group_id: str, remaining: Remaining) -> int:
        """Raise the epoch of the ledger row, commit, and return the last published batch."""

        def work(connection: Connection) -> int:
            require_same_buckets(connection, self.ledger.table, self.key, [self.key.sink])
            return self.ledger.claim(connection, epoch, start_after, group_id)

        self.transact(self.prepare, remaining)
        return self.transact(work, remaining)

    def advance(self, batch: int, epoch: int, remaining: Remaining) -> None:
        """Write ``batch`` as the ledger row's last batch, unless the row has ``batch`` already."""
        self.transact(lambda connection: self.ledger.advance(connection, epoch, batch), remaining)

    def transact(self, work: Callable[[Connection], T], remaining: Remaining) -> T:
        """Run the function ``work`` in a new transaction."""

        def transaction(connection: Connection) -> T:
            with connection.begin():
                return work(connection)

        try:
            return self._session.call(transaction, remaining)
        except DatabaseUnreachable as error:
            raise SinkUnavailable(str(error)) from error

    def close(self) -> None:
        """Close the connection to the sink's database; a later call opens another connection."""
        self._session.close()


def _sink_error(engine: Engine, error: BaseException) -> Exception:
    where, state = place(engine), sqlstate(error)
    message = first_line(error) + _row_of(error)
    if state.startswith(_FOR_EVER):
        return SinkRefused(
            f"the sink database {where} refuses the request: {message}; "
            "correct the cause, and the node continues"
        )
    return SinkUnavailable(
        f"the sink database {where} is not available: {message}; the node retries"
    )


def _row_of(error: BaseException) -> str:
    """The words that name the failed row of a batch, from the server's error about COPY."""
    context = getattr(getattr(error, "diag", None), "context", None) or ""
    found = context.split(", line ", 1)
    return f" (row {found[1].split(':')[0].split(',')[0]} of the batch)" if len(found) == 2 else ""
