"""How a connection is opened, and the one place where driver errors become the project's own.

Not for waiting: a frozen database is found by no socket option, so callers that must not hang go
through ``session``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

import psycopg2
from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from ha_engine.errors import ConfigError, DatabaseNotReady, DatabaseUnreachable, InvariantBroken

BACKSTOP = "HA001"
"""SQLSTATE that the lease table's trigger raises when a write would break an invariant."""


def open_engine(
    url: str,
    *,
    connect_timeout: float = 2.0,
    statement_timeout: float = 10.0,
    application_name: str = "ha-engine",
) -> Engine:
    """An engine without a pool; timeouts are seconds and bound every call on both sides.

    The server ends our statement, our wait for a lock and our forgotten transaction by itself, and
    notices by keepalives that our host is gone: a dead host's session must not hold a row lock.

    Raises ConfigError when the URL is none of PostgreSQL.
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
            "options": f"{parsed.query.get('options', '')} {_settings(_ms(statement_timeout))}",
        },
    )


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() not in {"postgresql", "postgres"}:
            raise ConfigError(
                f"{parsed.drivername} is not PostgreSQL; a database URL starts with postgresql://"
            )
        return parsed.set(drivername="postgresql+psycopg2")
    except (ArgumentError, NoSuchModuleError):
        raise ConfigError(
            "the database URL is not one; write postgresql://user@host:5432/database"
        ) from None


def _settings(statement_timeout_ms: int) -> str:
    settings = {
        # RULES.md#r5: a server that forgets what it has confirmed comes back on the same timeline,
        # so nobody who has not read the lost writes could tell. Whatever its own default is.
        "synchronous_commit": "on",
        "statement_timeout": statement_timeout_ms,
        "lock_timeout": statement_timeout_ms,
        "idle_in_transaction_session_timeout": statement_timeout_ms,
        "tcp_user_timeout": statement_timeout_ms,
        "tcp_keepalives_idle": 5,
        "tcp_keepalives_interval": 1,
        "tcp_keepalives_count": 3,
        "client_min_messages": "warning",
    }
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def place(engine: Engine) -> str:
    """Where an engine points, for sentences: host and database, never the password."""
    url = engine.url
    host = url.host or url.query.get("host") or "the local socket"
    return f"{host if isinstance(host, str) else ','.join(host)}/{url.database or ''}"


Translation = Callable[[Engine, BaseException], Exception]
"""Gives the error to raise in place of one that the driver raised."""


@contextmanager
def translated(engine: Engine, translation: Translation | None = None) -> Iterator[None]:
    """Raise the project's own error in place of the driver's: that of ``database_error``."""
    try:
        yield
    except DBAPIError as error:
        cause = error.orig if error.orig is not None else error
        raise (translation or database_error)(engine, cause) from error
    except psycopg2.Error as error:
        raise (translation or database_error)(engine, error) from error


def database_error(engine: Engine, error: BaseException) -> Exception:
    """DatabaseNotReady, InvariantBroken, or DatabaseUnreachable.

    Everything that is not known to be something else is unreachable: it costs a retry, never a
    wrong conclusion about the outcome (RULES.md#r1).
    """
    where, state, words = place(engine), sqlstate(error), first_line(error)
    match state:
        case "42P01" | "42703" | "3F000" | "42883":
            return DatabaseNotReady(
                f"the database {where} lacks the tables of ha-engine ({words}); "
                "run: ha-engine db init"
            )
        case "3D000":
            return DatabaseNotReady(
                f"the database {where} does not exist; create it, then run: ha-engine db init"
            )
        case "42501" | "28000" | "28P01":
            return DatabaseNotReady(
                f"the database {where} refuses this role ({words}); grant it the rights"
            )
        case _ if state == BACKSTOP or state.startswith("23"):
            return InvariantBroken(
                f"the database {where} refused a write that would break an invariant: {words}"
            )
        case "":
            return DatabaseUnreachable(
                f"the database {where} cannot be reached: {words}; "
                "check that it runs, and that its URL is right"
            )
        case _:
            return DatabaseUnreachable(f"the database {where} did not answer as it should: {words}")


def sqlstate(error: BaseException) -> str:
    """SQLSTATE of a driver error; empty when the server did not give one."""
    code = getattr(error, "pgcode", None)
    if code is None and (diagnostic := getattr(error, "diag", None)) is not None:
        code = diagnostic.sqlstate
    if code is None and isinstance(error, psycopg2.OperationalError):
        # A refused connection carries no SQLSTATE, only the server's words.
        words = str(error)
        if 'database "' in words and "does not exist" in words:
            return "3D000"
        if "password authentication failed" in words or "no pg_hba.conf entry" in words:
            return "28P01"
    return code or ""


def first_line(error: BaseException) -> str:
    """What the server or the driver said, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
