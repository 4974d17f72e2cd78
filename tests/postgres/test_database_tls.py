"""The engine connects over TLS with ``sslmode=verify-full``, and refuses a server that cannot prove
its name."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, make_url, text

from ha_engine.errors import DatabaseUnreachable
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.session import Session
from tests.sync.authority import Authority
from tests.sync.proxy import Proxy

NAME, ADDRESS = "localhost", "127.0.0.1"
ASKS_FOR_TLS = b"\0\0\0\x08\x04\xd2\x16\x2f"
"""The first message of a client that wants TLS; the server's answer is one byte."""


class TlsServer(Proxy):
    """Speaks TLS for the PostgreSQL of the wheel, which was built without it."""

    def show(self, files: dict[str, str]) -> None:
        """Prove its identity with ``files`` to connections from now on."""
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(files["certificate"], files["key"])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            assert await reader.readexactly(len(ASKS_FOR_TLS)) == ASKS_FOR_TLS
            writer.write(b"S")
            await writer.start_tls(self._context)
        except (OSError, asyncio.IncompleteReadError):  # the client refuses the certificate
            writer.transport.abort()
        else:
            await super()._serve(reader, writer)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
async def server(database_url: str, authority: Authority) -> AsyncIterator[TlsServer]:
    server = TlsServer(Path(str(make_url(database_url).query["host"])) / ".s.PGSQL.5432")
    server.show(authority.files("database", san=f"DNS:{NAME}"))
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def session(
    server: TlsServer, database_url: str, authority: Authority
) -> AsyncIterator[Session]:
    query = {"sslmode": "verify-full", "sslrootcert": str(authority.certificate)}
    url = make_url(database_url).set(host=NAME, port=server.port, query=query)
    # The lease uses such a session.
    session = Session(open_engine(url.render_as_string(hide_password=False)), name="test")
    yield session
    await asyncio.to_thread(session.shut)


async def ask(session: Session) -> str:
    def answer(connection: Connection) -> str:
        return str(connection.scalar(text("SELECT current_setting('synchronous_commit')")))

    return await asyncio.to_thread(session.call, answer, lambda: 30.0)


async def test_session_works_over_tls(session: Session) -> None:
    assert await ask(session) == "on"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"days": -1}, "certificate verify failed; check the dates"),
        ({"san": "DNS:other"}, 'server certificate for "other" does not match host name'),
        (None, "certificate verify failed"),
    ],
    ids=["expired", "another name", "another authority"],
)
async def test_server_without_a_valid_certificate_is_refused_until_it_has_one(
    server: TlsServer,
    session: Session,
    authority: Authority,
    tmp_path: Path,
    wrong: dict[str, Any] | None,
    reason: str,
) -> None:
    signer = Authority(tmp_path / "stranger") if wrong is None else authority
    server.show(signer.files("wrong", **{"san": f"DNS:{NAME}", **(wrong or {})}))
    with pytest.raises(DatabaseUnreachable, match=reason):
        await ask(session)
    server.show(authority.files("renewed", san=f"DNS:{NAME}"))
    assert await ask(session) == "on"


async def test_open_session_survives_a_renewed_certificate_and_a_cut(
    server: TlsServer, session: Session, authority: Authority
) -> None:
    await ask(session)
    server.show(authority.files("renewed", san=f"DNS:{NAME}"))
    assert await ask(session) == "on"
    assert server.accepted == 1
    server.cut()
    with contextlib.suppress(DatabaseUnreachable):  # if the session has not noticed yet
        await ask(session)
    assert await ask(session) == "on"
    assert server.accepted == 2
