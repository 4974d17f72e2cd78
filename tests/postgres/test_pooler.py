"""A pooler that drops the settings of a connection may drop synchronous commit."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, make_url, text

from ha_engine.errors import DatabaseNotReady, DatabaseUnreachable
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.session import Session
from tests.sync.proxy import Proxy


class Pooler(Proxy):
    """Forwards connections without their ``options``, like PgBouncer with
    ``ignore_startup_parameters = options``."""

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await super()._connect()
        writer.write = _Dropping(writer.write)  # type: ignore[method-assign]
        return reader, writer


class _Dropping:
    """Removes the options from the first message of a client, which names its settings."""

    def __init__(self, write: object) -> None:
        self._write, self._begun = write, False

    def __call__(self, data: bytes) -> None:
        if not self._begun and data[4:8] == struct.pack(">I", 196608):  # the startup message
            self._begun = True
            fields = data[8:].split(b"\0")
            pairs = zip(fields[::2], fields[1::2], strict=False)
            kept = [k + b"\0" + v + b"\0" for k, v in pairs if k and k != b"options"]
            body = b"".join(kept) + b"\0"
            data = struct.pack(">I", len(body) + 8) + data[4:8] + body
        self._write(data)  # type: ignore[operator]


class Freezing(Proxy):
    """Lets nothing back to the client from the check of the setting on."""

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await super()._connect()
        write = writer.write

        def forward(data: bytes) -> None:
            if b"SHOW synchronous_commit" in data:
                self.stop()
            write(data)

        writer.write = forward  # type: ignore[method-assign,assignment]
        return reader, writer


@pytest.fixture
async def pooled(database_url: str) -> AsyncIterator[str]:
    """Return the URL of a database through a pooler that drops options."""
    async with through(Pooler, database_url) as url:
        yield url


@pytest.fixture
async def frozen_after_connect(database_url: str) -> AsyncIterator[str]:
    """Return the URL of a database that freezes as soon as a connection is open."""
    async with through(Freezing, database_url) as url:
        yield url


@asynccontextmanager
async def through(kind: type[Proxy], database_url: str) -> AsyncIterator[str]:
    url = make_url(database_url)
    proxy = kind(Path(str(url.query["host"])) / ".s.PGSQL.5432")
    await proxy.start()
    query = {"sslmode": "disable", "gssencmode": "disable"}
    proxied = url.set(host="127.0.0.1", port=proxy.port, query=query)
    yield proxied.render_as_string(hide_password=False)
    await proxy.close()


def commit_mode(url: str, within: float = 30.0) -> str:
    """Return the mode on a connection as the engine's stores use it."""
    session, end = Session(open_engine(url), name="test"), time.monotonic() + within

    def show(connection: Connection) -> str:
        return str(connection.scalar(text("SHOW synchronous_commit")))

    try:
        return session.call(show, lambda: end - time.monotonic())
    finally:
        session.shut()


async def test_connection_without_synchronous_commit_is_refused(
    database_url: str, pooled: str
) -> None:
    assert await asyncio.to_thread(commit_mode, pooled) == "on"  # the server's default
    direct, name = open_engine(database_url), make_url(database_url).database
    with direct.begin() as connection:
        connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    assert await asyncio.to_thread(commit_mode, database_url) == "on"
    with pytest.raises(DatabaseNotReady, match="synchronous_commit is off"):
        await asyncio.to_thread(commit_mode, pooled)


async def test_server_that_freezes_after_the_connect_ends_the_check_in_time(
    frozen_after_connect: str,
) -> None:
    with pytest.raises(DatabaseUnreachable, match="did not answer in time"):
        await asyncio.to_thread(commit_mode, frozen_after_connect, 1.0)
