"""Create engines, which open connections to PostgreSQL, and translate the driver's errors.

No socket option detects a frozen database, so callers that must not hang use the module
``session``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

import psycopg2
from sqlalchemy import URL, Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from ha_engine.errors import ConfigError, DatabaseNotReady, DatabaseUnreachable, InvariantBroken

BACKSTOP = "HA001"
"""SQLSTATE of the lease table's trigger, for a write that would break an invariant."""


def open_engine(
    url: str,
    *,
    connect_timeout: float = 2.0,
    statement_timeout: float = 10.0,
    application_name: str = "ha-engine",
) -> Engine:
    """Make a SQLAlchemy engine without a connection pool.

    The timeouts in seconds limit every call, in this process and on the server. The server itself
    ends a statement, a wait for a lock or an idle transaction that takes too long. TCP keepalives
    let the server detect a dead client, so that a dead client's session holds no row lock.

    Raises ConfigError when ``url`` is not a PostgreSQL URL.
    """
    parsed = _parsed(url)
    return create_engine(
        parsed,
        poolclass=NullPool,
        hide_parameters=True,
        connect_args={
            "connect_timeout": max(1, ceil(connect_timeout)),
            "client_encoding": "utf8",
            "keepalives": 1,
            "keepalives_idle": 5,
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "tcp_user_timeout": _ms(statement_timeout),
            "application_name": application_name,
            "options": f"{parsed.query.get('options', '')} {_options(statement_timeout)}",
        },
    )


def require_synchronous_commit(connection: Connection, where: str) -> None:
    """Check the setting on a new connection, since a pooler may drop the options of a connection.

    ``where`` names the database in the message. Raises DatabaseNotReady.
    """
    mode = connection.scalar(text("SHOW synchronous_commit"))
    connection.rollback()
    if mode not in ("on", "remote_apply"):
        raise DatabaseNotReady(
            f"synchronous_commit is {mode} for the database {where}, because a pooler drops the "
            "options of connections; let the pooler pass them, or run ALTER ROLE ... SET "
            "synchronous_commit = on"
        )


_NOT_ESCAPED = (
    "the database URL is not valid; in the user and the password, write @ as %40, : as %3A and / "
    "as %2F"
)


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
        # An unescaped @ in the password makes its rest a part of the host, which messages name.
        if any("@" in part for part in (parsed.host or "", parsed.database or "")):
            raise ConfigError(_NOT_ESCAPED)
        if parsed.get_backend_name() not in {"postgresql", "postgres"}:
            raise ConfigError(
                f"{parsed.drivername} is not PostgreSQL; a database URL starts with postgresql://"
            )
        return parsed.set(drivername="postgresql+psycopg2")
    except ValueError:  # the port is no number
        raise ConfigError(_NOT_ESCAPED) from None
    except (ArgumentError, NoSuchModuleError):
        raise ConfigError(
            "the database URL is not valid; write postgresql://user@host:5432/database"
        ) from None


def session_settings(statement_timeout: float) -> dict[str, str]:
    """The settings of the server that a session of ``open_engine`` requests, with their values."""
    milliseconds = str(_ms(statement_timeout))
    return {
        # RULES.md#r5: with asynchronous commit, a crashed server can lose confirmed writes and
        # restart on the same timeline. Only a node that has read the lost writes could notice the
        # loss. So the engine turns on synchronous commit.
        "synchronous_commit": "on",
        "statement_timeout": milliseconds,
        "lock_timeout": milliseconds,
        "idle_in_transaction_session_timeout": milliseconds,
        "tcp_user_timeout": milliseconds,
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "3",
        "client_min_messages": "warning",
    }


def _options(statement_timeout: float) -> str:
    settings = session_settings(statement_timeout)
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def place(engine: Engine) -> str:
    """The engine's host and database for messages, without the password."""
    url = engine.url
    host = url.host or url.query.get("host") or "the local socket"
    return f"{host if isinstance(host, str) else ','.join(host)}/{url.database or ''}"


Translation = Callable[[Engine, BaseException], Exception]
"""Returns the error to raise in place of the driver's error."""


@contextmanager
def translated(engine: Engine, translation: Translation | None = None) -> Iterator[None]:
    """Raise the project's own error in place of a driver's error.

    The function ``translation`` chooses the error; the default is ``database_error``.
    """
    try:
        yield
    except DBAPIError as error:
        cause = error.orig if error.orig is not None else error
        raise (translation or database_error)(engine, cause) from error
    except psycopg2.Error as error:
        raise (translation or database_error)(engine, error) from error


def database_error(engine: Engine, error: BaseException) -> Exception:
    """Translate a driver's error into DatabaseNotReady, InvariantBroken or DatabaseUnreachable.

    An unknown error becomes DatabaseUnreachable, because a needless retry is harmless. A wrong
    conclusion about the outcome of a write is not harmless (RULES.md#r1).
    """
    where, state, message = place(engine), sqlstate(error), first_line(error)
    match state:
        case "42P01" | "42703" | "3F000" | "42883":
            return DatabaseNotReady(
                f"the database {where} lacks the tables of ha-engine ({message}); "
                "run: ha-engine db init"
            )
        case "3D000":
            return DatabaseNotReady(
                f"the database {where} does not exist; create it, then run: ha-engine db init"
            )
        case "42501" | "28000" | "28P01":
            return DatabaseNotReady(
                f"the database {where} refuses this role ({message}); grant it the rights"
            )
        case _ if state == BACKSTOP or state.startswith("23"):
            return InvariantBroken(
                f"the database {where} refused a write that would break an invariant: {message}"
            )
        case "" if "certificate" in message:
            return DatabaseUnreachable(
                f"the database {where} cannot be trusted: {message}; check the dates and the names "
                "of its certificate, and sslrootcert in its URL"
            )
        case "":
            return DatabaseUnreachable(
                f"the database {where} cannot be reached: {message}; "
                "check that it runs, and that its URL is right"
            )
        case _:
            return DatabaseUnreachable(f"the database {where} answered with an error: {message}")


def sqlstate(error: BaseException) -> str:
    """The SQLSTATE of a driver's error, or an empty string when the server sent no SQLSTATE."""
    code = getattr(error, "pgcode", None)
    if code is None and (diagnostic := getattr(error, "diag", None)) is not None:
        code = diagnostic.sqlstate
    if code is None and isinstance(error, psycopg2.OperationalError):
        # The driver reports a refused connection without a SQLSTATE, only with a message.
        message = str(error)
        if 'database "' in message and "does not exist" in message:
            return "3D000"
        if "password authentication failed" in message or "no pg_hba.conf entry" in message:
            return "28P01"
    return code or ""


def first_line(error: BaseException) -> str:
    """The first line of the message from the server or the driver."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
