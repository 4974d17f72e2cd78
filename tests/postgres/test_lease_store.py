"""Properties of the real lease store alone: time, rights, and an end to every wait."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import psutil
import pytest
from sqlalchemy import Engine, text

from ha_engine.errors import DatabaseNotReady, DatabaseUnreachable, InvariantBroken
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.postgres.upgrade import upgrade
from ha_engine.types import Holder, LeaseRow, Member
from tests.waiting import SLOW_HOST, wait_until

A = Member("node-a", "journal-a")
B = Member("node-b", "journal-b")
FIRST = LeaseRow("group-1", None, 0, 1, (A,))
HELD = replace(FIRST, holder=Holder("node-a", "process-1"), epoch=1)
DB_TIMEOUT = 1.0

Opening = Callable[..., PostgresLeaseStore]


@pytest.fixture
def opened() -> Iterator[Opening]:
    stores: list[PostgresLeaseStore] = []

    def open_store(engine: Engine, **options: float) -> PostgresLeaseStore:
        stores.append(
            PostgresLeaseStore(engine, "default", 5.0, **{"db_timeout": DB_TIMEOUT, **options})
        )  # type: ignore[arg-type]
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def store(engine: Engine, opened: Opening) -> PostgresLeaseStore:
    return opened(engine)


def test_confirmed_write_is_durable_whatever_the_settings_of_the_role(
    engine: Engine, database_url: str
) -> None:
    """RULES.md#r5: a crash of the server would otherwise lose the write without a new timeline."""
    with engine.begin() as connection:
        connection.execute(text("ALTER ROLE CURRENT_USER SET synchronous_commit = off"))
    try:
        with open_engine(database_url).connect() as connection:
            assert connection.scalar(text("SHOW synchronous_commit")) == "on"
    finally:
        with engine.begin() as connection:
            connection.execute(text("ALTER ROLE CURRENT_USER RESET synchronous_commit"))


def test_expiry_counts_from_the_write_and_not_from_the_wait_before_it(
    engine: Engine, opened: Opening
) -> None:
    store = opened(engine, db_timeout=10)
    row = store.create(FIRST)
    assert row is not None
    with engine.connect() as other, other.begin() as transaction:
        other.execute(text("SELECT * FROM ha_engine.lease FOR UPDATE"))
        renewal = threading.Thread(target=store.compare_and_set, args=(row, row))
        renewal.start()
        wait_until(lambda: _waiting_for_a_lock(engine) == 1)
        freed_at = other.execute(text("SELECT clock_timestamp()")).scalar_one()
        transaction.commit()
    renewal.join()
    with engine.connect() as connection:
        line = connection.execute(text("SELECT written_at, expires_at FROM ha_engine.lease")).one()
    assert line.written_at >= freed_at
    assert 4.9 < (line.expires_at - line.written_at).total_seconds() < 5.1


def _waiting_for_a_lock(engine: Engine) -> int:
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with engine.connect() as connection:
        return int(connection.execute(text(query)).scalar_one())


def test_the_database_names_the_rule_that_a_refused_write_would_break(
    store: PostgresLeaseStore,
) -> None:
    row = store.create(replace(HELD, in_sync=(A, B), epoch=5))
    assert row is not None
    for broken, words in (
        (replace(row, epoch=4), "would fall"),
        (replace(row, holder=Holder("node-b", "p")), "second holder"),
        (replace(row, holder=Holder("node-c", "p"), epoch=6), "lease_holder_is_in_sync"),
    ):
        with pytest.raises(InvariantBroken, match=words):
            store.compare_and_set(row, broken)


def test_the_outage_of_one_group_is_not_written_into_the_history_of_another(
    engine: Engine, store: PostgresLeaseStore
) -> None:
    other = PostgresLeaseStore(engine, "another", 5.0, db_timeout=DB_TIMEOUT)
    store.create(HELD)
    other.create(HELD)
    store.note_outage(1, 2.5)
    assert [line.outage_seconds for line in store.history()] == [2.5]
    assert [line.outage_seconds for line in other.history()] == [None]
    other.close()


def test_error_for_a_missing_schema_names_the_command_that_creates_it(
    database_url: str, opened: Opening
) -> None:
    with pytest.raises(DatabaseNotReady, match="ha-engine db init"):
        opened(open_engine(database_url)).read()


def test_an_unprivileged_role_reads_the_identity_and_works_on_the_row(
    engine: Engine, database_url: str, opened: Opening
) -> None:
    role = f"node_of_{engine.url.database}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        connection.execute(text(f"GRANT USAGE ON SCHEMA ha_engine TO {role}"))
        connection.execute(
            text(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA ha_engine TO {role}")
        )
    try:
        store = opened(open_engine(database_url.replace("//postgres@", f"//{role}@")))
        row = store.create(replace(HELD, identity=store.identity()))
        assert row is not None
        assert store.compare_and_set(row, row) is not None
        assert len(row.identity.timeline if row.identity else "") == 8
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))


def test_held_lock_makes_the_outcome_unknown_within_the_timeout(
    engine: Engine, store: PostgresLeaseStore
) -> None:
    row = store.create(FIRST)
    assert row is not None
    with engine.connect() as other, other.begin():
        other.execute(text("SELECT * FROM ha_engine.lease FOR UPDATE"))
        _unreachable_in_time(lambda: store.compare_and_set(row, row))
    assert store.read() is not None


def test_a_frozen_postmaster_is_unreachable_within_the_timeout(
    own_postgres: EmbeddedPostgres, opened: Opening
) -> None:
    store = opened(_prepared(own_postgres))
    with Frozen(own_postgres.pid):
        _unreachable_in_time(store.read)
        _unreachable_in_time(store.read)
    wait_until(lambda: _reads(store))


def test_a_frozen_backend_is_unreachable_within_the_timeout(
    own_postgres: EmbeddedPostgres, opened: Opening
) -> None:
    engine = _prepared(own_postgres)
    store = opened(engine)
    row = store.create(FIRST)
    assert row is not None
    with engine.connect() as connection:
        pid = connection.execute(
            text(
                "SELECT pid FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        ).scalar_one()
    with Frozen(pid):
        _unreachable_in_time(lambda: store.compare_and_set(row, row))
        assert store.read() is not None, "a new connection gets another backend"


def test_database_restart_between_two_calls_fails_no_call(
    own_postgres: EmbeddedPostgres, opened: Opening
) -> None:
    store = opened(_prepared(own_postgres))
    row = store.create(FIRST)
    assert row is not None
    pid = own_postgres.pid
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=5)
    wait_until(lambda: not _reads(store))
    own_postgres.start()
    assert store.compare_and_set(row, row) == replace(row, version=2)


def test_commit_with_a_warning_has_an_unknown_outcome(
    own_postgres: EmbeddedPostgres, opened: Opening
) -> None:
    engine = _prepared(own_postgres)
    store = opened(engine, db_timeout=10)
    row = store.create(FIRST)
    assert row is not None
    _configure(engine, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    cancel = threading.Thread(target=_cancel_the_wait_for_the_standby, args=(engine,))
    cancel.start()
    with pytest.raises(DatabaseUnreachable, match="outcome is unknown"):
        store.compare_and_set(row, row)
    cancel.join()
    assert store.read() == replace(row, version=2), "it was written here all the same"
    _configure(engine, "ALTER SYSTEM RESET synchronous_standby_names")


def _cancel_the_wait_for_the_standby(engine: Engine) -> None:
    query = text("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    with engine.connect() as connection:
        wait_until(lambda: connection.execute(query).scalar())


def _configure(engine: Engine, statement: str) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(statement))
        connection.execute(text("SELECT pg_reload_conf()"))
        wanted = "nobody" if " SET " in statement else ""
        wait_until(
            lambda: connection.execute(text("SHOW synchronous_standby_names")).scalar() == wanted
        )


def _prepared(server: EmbeddedPostgres) -> Engine:
    engine = open_engine(server.url, statement_timeout=20)
    upgrade(engine)
    return engine


def _reads(store: PostgresLeaseStore) -> bool:
    try:
        store.read()
    except DatabaseUnreachable:
        return False
    return True


def _unreachable_in_time(call: Callable[[], object]) -> None:
    started = time.monotonic()
    with pytest.raises(DatabaseUnreachable):
        call()
    assert time.monotonic() - started < SLOW_HOST * DB_TIMEOUT


class Frozen:
    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGCONT)
