"""A pooler that drops the settings of a connection may drop synchronous commit."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from ha_engine.errors import DatabaseNotReady
from ha_engine.postgres.engine import open_engine, translated
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


@pytest.fixture
async def pooled(database_url: str) -> AsyncIterator[str]:
    """Return the URL of a database through a pooler that drops options."""
    url = make_url(database_url)
    pooler = Pooler(Path(str(url.query["host"])) / ".s.PGSQL.5432")
    await pooler.start()
    query = {"sslmode": "disable", "gssencmode": "disable"}
    through = url.set(host="127.0.0.1", port=pooler.port, query=query)
    yield through.render_as_string(hide_password=False)
    await pooler.close()


def commit_mode(url: str) -> str:
    engine = open_engine(url)
    with translated(engine), engine.connect() as connection:
        return str(connection.scalar(text("SHOW synchronous_commit")))


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
