"""The PostgreSQL of both sides, and when it committed what.

The server stamps each transaction at its commit (``track_commit_timestamp``), so that nobody has to
poll a table to learn when a row became visible. The stamp is taken just before the commit's fsync,
on both sides alike.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.csv
from sqlalchemy import Engine, bindparam, inspect, text

from benchmarks.waiting import wait_until
from benchmarks.workload import WORKLOADS, Workload
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade

_STAMP = "extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8"


class Database:
    """``url`` is SQLAlchemy's; times are seconds since 1970."""

    def __init__(self, url: str, engine: Engine, pid: int) -> None:
        self.url, self._engine, self._pid = url, engine, pid

    @property
    def libpq_url(self) -> str:
        return self.url.replace("+psycopg2", "")

    def processes(self) -> list[psutil.Process]:
        """The server and its backends."""
        server = psutil.Process(self._pid)
        return [server, *server.children(recursive=True)]

    def make_plain_tables(
        self, workloads: Sequence[Workload] = WORKLOADS, sides: Sequence[str] = ("plain",)
    ) -> None:
        """Tables of the plain sides, like those that the engine makes when its queries start."""
        names = [workload.name for workload in workloads]
        self.wait_for_tables([f"engine_{name}" for name in names])
        with self._engine.begin() as connection:
            for side, name in product(sides, names):
                connection.execute(text(f"CREATE TABLE {side}_{name} (LIKE engine_{name})"))

    def wait_for_tables(self, tables: Sequence[str]) -> None:
        """The engine makes a table when its query starts."""
        wait_until(lambda: set(inspect(self._engine).get_table_names()) >= set(tables), within=120)

    def read(self, select: str) -> pa.Table:
        """The rows of a query as Arrow, by COPY: for many of them."""
        connection = self._engine.raw_connection()
        try:
            csv = io.BytesIO()
            copy = f"COPY ({select}) TO STDOUT (FORMAT csv, HEADER)"
            connection.cursor().copy_expert(copy, csv)
        finally:
            connection.close()
        return pyarrow.csv.read_csv(pa.py_buffer(csv.getvalue()))

    def empty(self, table: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(text(f"TRUNCATE {table}"))

    def count(self, table: str) -> int:
        with self._engine.begin() as connection:
            return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())

    def distinct(self, table: str) -> int:
        with self._engine.begin() as connection:
            query = text(f"SELECT count(DISTINCT id) FROM {table}")
            return int(connection.execute(query).scalar_one())

    def sum_of_events(self, table: str) -> int:
        with self._engine.begin() as connection:
            query = text(f"SELECT coalesce(sum(events), 0) FROM {table}")
            return int(connection.execute(query).scalar_one())

    def published_at(self, query: str) -> float:
        """When the engine committed the newest batch of ``query``."""
        statement = text(f"SELECT {_STAMP} FROM ha_engine_ledger WHERE query = :query")
        with self._engine.begin() as connection:
            return float(connection.execute(statement, {"query": query}).scalar_one())

    def ledger_moves(self, query: str) -> list[tuple[float, int]]:
        """When each batch was published, and its number; needs the trigger of ``kills.audit``."""
        statement = text(
            "SELECT extract(epoch FROM at)::float8, batch FROM ledger_audit "
            "WHERE query = :query ORDER BY at"
        )
        with self._engine.begin() as connection:
            return [(row[0], row[1]) for row in connection.execute(statement, {"query": query})]

    def committed_at(self, table: str, ids: Sequence[int]) -> dict[int, float]:
        """When each of these rows was committed; those that are not there yet are left out."""
        statement = text(f"SELECT id, {_STAMP} FROM {table} WHERE id IN :ids")
        statement = statement.bindparams(bindparam("ids", expanding=True))
        with self._engine.begin() as connection:
            return {row[0]: row[1] for row in connection.execute(statement, {"ids": list(ids)})}

    def commits(self, rows: str) -> list[tuple[float, int]]:
        """The time of each commit of these rows and its number of rows, the first commit first."""
        statement = text(f"SELECT {_STAMP} AS at, count(*) FROM {rows} GROUP BY at ORDER BY at")
        with self._engine.begin() as connection:
            return [(row[0], row[1]) for row in connection.execute(statement)]


@contextmanager
def database(directory: Path) -> Iterator[Database]:
    """A server of its own, its commits stamped, the engine's schema in it."""
    server = EmbeddedPostgres(directory)
    server.start()
    with open_engine(server.url).connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text("ALTER SYSTEM SET track_commit_timestamp = on"))
    server.stop()
    with server:
        engine = open_engine(server.url, statement_timeout=120)
        upgrade(engine)
        try:
            yield Database(server.url, engine, server.pid)
        finally:
            engine.dispose()
