"""Each connector against HTTP and PostgreSQL in one run: rows a second, and the way of one row.

A broker fills its input while the link to the node is cut, so that the broker's own speed does not
count. Rows a second of a source are those between the first and the last commit of its rows in
PostgreSQL, and the same holds for the producer over HTTP. Rows a second of a sink count from the
first request until the node knows that the sink has all rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from benchmarks.database import Database
from benchmarks.engine_side import ROUND_SECONDS, merged
from benchmarks.feeder import Feeder
from benchmarks.report import Result
from benchmarks.waiting import wait_until
from tests.e2e.node_under_test import NodeUnderTest, running
from tests.faults.exchanges import Exchange, message, running_exchange

REQUEST_ROWS = 10_000
PUT_ROWS = 1_000
SINGLES = 20
SIDES = ("http", "broker")
ROOM: dict[str, dict[str, Any]] = {
    "receive": {"max_backlog_events": 50_000_000},
    "query": {"idle_batch_interval": "1h", "max_events_per_batch": 20_000},
}


def measure(
    kind: str,
    rows: int,
    rounds: int,
    directory: Path,
    database: Database,
    result: Result,
    console: Console,
) -> None:
    with running_exchange(kind) as exchange, _node(directory, exchange, database) as node:
        database.wait_for_tables([f"from_{side}" for side in SIDES])
        connector = _Connector(exchange, node, database)
        connector.warm_up(rows)
        rates: dict[str, list[float]] = {name: [] for name in ("http", "broker")}
        sinks: dict[str, list[float]] = {name: [] for name in ("to_postgres", "to_broker")}
        ways: dict[str, list[float]] = {name: [] for name in ("http", "broker")}
        for number in range(rounds):
            turn = -1 if number % 2 else 1
            for side in SIDES[::turn]:
                ways[side].append(connector.way_of_one_row(side))
                rates[side].append(connector.rows_a_second(side, rows))
            for query in tuple(sinks)[::turn]:
                sinks[query].append(connector.rows_a_second_of_sink(query, rows))
            console.print(
                f"{kind} {number + 1}/{rounds}: source {rates['broker'][-1]:,.0f} of "
                f"{rates['http'][-1]:,.0f} rows/s, ack to row {ways['broker'][-1]:.0f} of "
                f"{ways['http'][-1]:.0f} ms, sink {sinks['to_broker'][-1]:,.0f} of "
                f"{sinks['to_postgres'][-1]:,.0f} rows/s",
                highlight=False,
            )
    result.add(f"{kind}: source, of HTTP", "ratio", _ratios(rates["broker"], rates["http"]))
    result.add(f"{kind}: source", "rows/s", rates["broker"])
    result.add(f"{kind}: HTTP", "rows/s", rates["http"])
    ratios = _ratios(sinks["to_broker"], sinks["to_postgres"])
    result.add(f"{kind}: sink, of PostgreSQL", "ratio", ratios)
    result.add(f"{kind}: sink", "rows/s", sinks["to_broker"])
    result.add(f"{kind}: sink PostgreSQL", "rows/s", sinks["to_postgres"])
    result.add(f"{kind}: ack to row, of HTTP", "ratio", _ratios(ways["broker"], ways["http"]))
    result.add(f"{kind}: ack to row", "ms", ways["broker"])
    result.add(f"{kind}: ack to row over HTTP", "ms", ways["http"])


def _ratios(these: list[float], those: list[float]) -> list[float]:
    return [one / other for one, other in zip(these, those, strict=True)]


@contextmanager
def _node(directory: Path, exchange: Exchange, database: Database) -> Iterator[NodeUnderTest]:
    directory.mkdir()
    application = yaml.safe_dump(_application(exchange, database))
    node = NodeUnderTest(directory, application, database.url, "node-a", **merged(ROOM))
    with running(node):
        node.wait_running()
        yield node


def _application(exchange: Exchange, database: Database) -> dict[str, Any]:
    schema = {"n": "long not null"}
    streams: dict[str, Any] = {name: {"schema": schema} for name in ("http", "out_a", "out_b")}
    source = {"name": "input", **exchange.source}
    streams["broker"] = {"schema": schema, "sources": [source]}

    def table(name: str) -> dict[str, Any]:
        return {"name": "table", "type": "postgres", "table": name, "auto_create": True}

    queries = {
        "http": {"sql": "SELECT n AS id FROM http", "sinks": [table("from_http")]},
        "broker": {"sql": "SELECT n AS id FROM broker", "sinks": [table("from_broker")]},
        "to_postgres": {"sql": "SELECT n AS id FROM out_a", "sinks": [table("to_postgres")]},
        "to_broker": {
            "sql": "SELECT n FROM out_b",
            "sinks": [{"name": "output", **exchange.sink}],
        },
    }
    return {"name": "connectors", "streams": streams, "queries": queries}


class _Connector:
    """The source and the sink of one kind, beside HTTP and PostgreSQL in the same node."""

    def __init__(self, exchange: Exchange, node: NodeUnderTest, database: Database) -> None:
        self._exchange, self._node, self._database = exchange, node, database
        self._next = 0

    def warm_up(self, rows: int) -> None:
        for side in SIDES:
            self.way_of_one_row(side)
            self.rows_a_second(side, rows)
        for query in ("to_postgres", "to_broker"):
            self.rows_a_second_of_sink(query, rows)

    def way_of_one_row(self, side: str) -> float:
        """Return the median time from the ack of a row to its commit, in milliseconds."""
        found = []
        feeder = self._feeder(side)
        connection = feeder.connect() if side == "http" else None
        for number in self._numbers(SINGLES):
            if connection is not None:
                feeder.post(connection, message(number))
            else:
                self._exchange.put([number])
            acked = time.time()
            found.append(1e3 * (self._committed(side, number) - acked))
        return statistics.median(found)

    def _committed(self, side: str, number: int) -> float:
        table = f"from_{side}"
        committed = dict[int, float]()

        def is_there() -> bool:
            committed.update(self._database.committed_at(table, [number]))
            return bool(committed)

        wait_until(is_there, within=ROUND_SECONDS, every=0.05)
        return committed[number]

    def rows_a_second(self, side: str, rows: int) -> float:
        numbers = self._numbers(rows)
        if side == "http":
            self._feeder("http").feed(_bodies(numbers))
        else:
            self._exchange.link.freeze()
            for first in range(0, rows, PUT_ROWS):
                self._exchange.put(numbers[first : first + PUT_ROWS])
            self._exchange.link.thaw()
        table = f"from_{side}"
        within = f"{table} WHERE id >= {numbers[0]}"
        wait_until(lambda: self._database.count(within) == rows, within=ROUND_SECONDS, every=0.2)
        commits = self._database.commits(within)
        (began, at_first), ended = commits[0], commits[-1][0]
        if ended == began:
            raise RuntimeError(f"{rows} rows came in one batch; take more of them")
        return (rows - at_first) / (ended - began)

    def rows_a_second_of_sink(self, query: str, rows: int) -> float:
        bodies = _bodies(self._numbers(rows))
        began = time.time()
        self._feeder({"to_postgres": "out_a", "to_broker": "out_b"}[query]).feed(bodies)
        wait_until(lambda: self._is_published(query), within=ROUND_SECONDS, every=0.02)
        return rows / (time.time() - began)

    def _is_published(self, name: str) -> bool:
        status = self._node.status()
        query = status["queries"][name] if status else None
        return query is not None and bool(
            query["backlog_events"] == 0
            and all(batch == query["mark"] for batch in query["published"].values())
        )

    def _numbers(self, count: int) -> range:
        numbers = range(self._next, self._next + count)
        self._next += count
        return numbers

    def _feeder(self, stream: str) -> Feeder:
        return Feeder(self._node.url.removeprefix("http://"), stream)


def _bodies(numbers: range) -> list[bytes]:
    pieces = (numbers[at : at + REQUEST_ROWS] for at in range(0, len(numbers), REQUEST_ROWS))
    return [b"\n".join(map(message, piece)) for piece in pieces]
