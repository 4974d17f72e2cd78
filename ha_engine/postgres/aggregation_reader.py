"""Read the tables of an aggregation for the HTTP interface, on a connection of their own.

PostgreSQL makes the JSON of a row, so that no number loses a digit on its way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from sqlalchemy import Connection, Engine, text

from ha_engine.aggregation import START, Aggregation, Question
from ha_engine.errors import AggregationNotReady, NotAValue
from ha_engine.postgres.aggregation_tables import target_of
from ha_engine.postgres.engine import database_error, first_line, sqlstate
from ha_engine.postgres.session import Session
from ha_engine.postgres.sink_table import quoted

ANSWER_SECONDS = 5.0
"""The limit for one request, also as the statement timeout of the server."""
_COMBINED = {"sum": "sum", "count": "sum", "min": "min", "max": "max"}
"""The function that makes a value of all rows from the values of parts of them."""


class AggregationReader:
    """Answers questions about an aggregation, one after the other.

    ``engine`` should have the statement timeout ANSWER_SECONDS.
    """

    def __init__(self, engine: Engine, aggregation: Aggregation) -> None:
        self.aggregation = aggregation
        self._session = Session(
            engine, name=f"aggregation {aggregation.name}", translation=self._error
        )

    def rows(self, question: Question) -> list[str]:
        """The rows as texts in JSON, ordered by period and keys, with one more than ``rows_max`` if
        there are more. Blocks for at most ANSWER_SECONDS.

        Raises NotAValue if a key cannot have the value of the question, and AggregationNotReady
        before the tables are created. Raises DatabaseUnreachable and DatabaseNotReady.
        """
        until = time.monotonic() + ANSWER_SECONDS

        def read(connection: Connection) -> list[str]:
            with connection.begin():
                zone = {"zone": self.aggregation.time_zone}
                connection.execute(text("SELECT set_config('TimeZone', :zone, true)"), zone)
                statement, values = _statement(self.aggregation, question)
                return list(connection.scalars(text(statement), values))

        return self._session.call(read, lambda: until - time.monotonic())

    def close(self) -> None:
        """Close the connection, and allow no later question."""
        self._session.shut()

    def _error(self, engine: Engine, error: BaseException) -> Exception:
        match sqlstate(error):
            case "42P01" | "42703" | "3F000":
                return AggregationNotReady(
                    f"the tables of aggregation {self.aggregation.name} are not there, or are of "
                    f"another definition ({first_line(error)}); the active creates them when the "
                    "query first starts"
                )
            case state if state.startswith("22"):
                return NotAValue(f"{first_line(error)}; write a value of that type")
            case "57014":
                return AggregationNotReady(
                    f"the answer took longer than {ANSWER_SECONDS:g} s; ask for a shorter time or "
                    "for longer periods"
                )
            case _:
                return database_error(engine, error)


def _statement(aggregation: Aggregation, question: Question) -> tuple[str, Mapping[str, object]]:
    """The SQL of a question, and the values of its parameters."""
    conditions, values = ["true"], dict[str, object]()
    for operator, moment in ((">=", question.since), ("<", question.until)):
        if moment is not None:
            values[f"v{len(values)}"] = moment
            conditions.append(f"{quoted(START)} {operator} :v{len(values) - 1}")
    for column, value in question.where.items():
        values[f"v{len(values)}"] = value
        conditions.append(f"{quoted(column)} = :v{len(values) - 1}")
    keys = [START, *question.by]
    places = [str(place + 1) for place in range(len(keys))]
    order = ", ".join(f"{place} DESC" if question.descending else place for place in places)
    columns = [*map(quoted, keys), *_values(aggregation)]
    table = target_of(aggregation, question.per).quoted
    return (
        f"SELECT CAST(row_to_json(r) AS text) FROM (SELECT {', '.join(columns)}"  # noqa: S608
        f" FROM {table} WHERE {' AND '.join(conditions)} GROUP BY {', '.join(places)}"
        f" ORDER BY {order} LIMIT {question.rows_max + 1}) r"
    ), values


def _values(aggregation: Aggregation) -> Iterator[str]:
    for value in aggregation.values:
        parts = [f"{_COMBINED[one.function]}({quoted(one.column)})" for one in value.stored]
        whole = f"{parts[0]} / nullif({parts[1]}, 0)" if value.function == "avg" else parts[0]
        yield f"{whole} AS {quoted(value.name)}"
