"""A listener gets the changes of the lease at once, and a failure to listen does no harm."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from structlog.testing import capture_logs

from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.lease_listener import LeaseListener
from ha_engine.postgres.lease_store import PostgresLeaseStore, lease_channel
from ha_engine.postgres.upgrade import upgrade
from ha_engine.types import Holder, LeaseRow, Member
from tests.waiting import wait_until

A, B = Member("node-a", "journal-a"), Member("node-b", "journal-b")
HELD = LeaseRow("group-1", Holder("node-a", "process-1"), 1, 1, (A, B))
RELEASED = replace(HELD, holder=None, successor="node-b")
TAKEN = replace(HELD, holder=Holder("node-b", "process-1"), epoch=2, in_sync=(B,))
LONGER_THAN_ANY_TEST = 3600


class Changes:
    """Counts the reports of a listener, and can wait for a number."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1

    def wait_for(self, count: int) -> None:
        wait_until(lambda: self.count >= count, within=30)
        assert self.count == count


Listening = Callable[..., LeaseListener]


@pytest.fixture
def store(engine: Engine) -> Iterator[PostgresLeaseStore]:
    store = PostgresLeaseStore(engine, "default", 5.0, db_timeout=10)
    yield store
    store.close()


@pytest.fixture
def listening() -> Iterator[Listening]:
    with ExitStack() as started:

        def listen(engine: Engine, on_change: Callable[[], None], **more: Any) -> LeaseListener:
            listener = LeaseListener(engine, more.pop("group", "default"), on_change, **more)
            started.callback(listener.stop)
            listener.start()
            return listener

        yield listen


def _changed(store: PostgresLeaseStore, wanted: LeaseRow) -> LeaseRow:
    row = store.read()
    written = store.create(wanted) if row is None else store.compare_and_set(row, wanted)
    assert written is not None
    return written


def test_listener_reports_the_first_row_a_release_and_a_takeover(
    engine: Engine, store: PostgresLeaseStore, listening: Listening
) -> None:
    changes = Changes()
    listening(engine, changes)
    changes.wait_for(1)
    for told, wanted in enumerate((HELD, RELEASED, TAKEN), start=2):
        _changed(store, wanted)
        changes.wait_for(told)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (HELD, 0),
        (replace(HELD, advertise="http://a:8080"), 0),
        (RELEASED, 1),
        (TAKEN, 1),
        (replace(HELD, epoch=2), 1),
        (replace(HELD, in_sync=(A,)), 1),
        (replace(HELD, successor="node-b"), 1),
        (replace(HELD, paused=True), 1),
    ],
    ids=["renewal", "url", "release", "takeover", "epoch", "in-sync", "successor", "pause"],
)
def test_write_that_is_more_than_a_renewal_notifies_once(
    engine: Engine, store: PostgresLeaseStore, wanted: LeaseRow, told: int
) -> None:
    _changed(store, HELD)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"LISTEN {lease_channel('ha_engine', 'default')}"))
        _changed(store, wanted)
        connection.execute(text("SELECT 1"))
        driver: Any = connection.connection.driver_connection
        assert len(driver.notifies) == told


def test_refused_write_notifies_no_listener(
    engine: Engine, store: PostgresLeaseStore, listening: Listening
) -> None:
    _changed(store, HELD)
    changes = Changes()
    listening(engine, changes)
    changes.wait_for(1)
    assert store.compare_and_set(replace(HELD, version=9), RELEASED) is None
    assert store.create(HELD) is None
    _changed(store, RELEASED)
    changes.wait_for(2)


def test_listener_ignores_other_groups_and_schemas(
    engine: Engine, store: PostgresLeaseStore, listening: Listening
) -> None:
    others = Changes(), Changes()
    listening(engine, others[0], group="another")
    listening(engine, others[1], schema="another")
    mine = Changes()
    listening(engine, mine)
    for changes in (*others, mine):
        changes.wait_for(1)
    _changed(store, HELD)
    mine.wait_for(2)
    assert [changes.count for changes in others] == [1, 1]


def test_longest_names_form_a_valid_channel(engine: Engine, listening: Listening) -> None:
    store = PostgresLeaseStore(engine, "g" * 63, 5.0, db_timeout=10)
    changes = Changes()
    listening(engine, changes, group="g" * 63)
    changes.wait_for(1)
    _changed(store, HELD)
    changes.wait_for(2)
    store.close()


# -- failures --------------------------------------------------------------------------------------


def test_listener_reconnects_after_a_server_restart_and_logs_it_once(
    own_postgres: EmbeddedPostgres, listening: Listening
) -> None:
    engine = open_engine(own_postgres.url)
    upgrade(engine)
    store = PostgresLeaseStore(engine, "default", 5.0, db_timeout=10)
    changes, attempts = Changes(), Changes()
    event.listen(engine, "do_connect", lambda *_: attempts())
    with capture_logs() as lines:
        listening(engine, changes)
        changes.wait_for(1)
        own_postgres.stop()
        wait_until(lambda: attempts.count > 3, within=30)
        own_postgres.start()
        changes.wait_for(2)
        _changed(store, HELD)
        changes.wait_for(3)
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("warning", "lease notifications unavailable, polling the lease row"),
        ("info", "lease notifications available again"),
    ]
    store.close()


def test_a_session_that_the_server_ended_is_replaced(
    engine: Engine, store: PostgresLeaseStore, listening: Listening
) -> None:
    changes = Changes()
    listening(engine, changes)
    changes.wait_for(1)
    with engine.connect() as connection:
        ended = connection.execute(
            text(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
        ).scalar_one()
    assert ended == 1
    changes.wait_for(2)
    _changed(store, HELD)
    changes.wait_for(3)


def test_callback_that_raised_is_called_again(engine: Engine, listening: Listening) -> None:
    changes = Changes()

    def raises_first() -> None:
        changes()
        if changes.count == 1:
            raise RuntimeError("not ready")

    with capture_logs() as lines:
        listening(engine, raises_first)
        changes.wait_for(2)
    assert [line.get("reason") for line in lines] == ["not ready", None]


def test_missing_database_delays_neither_start_nor_stop() -> None:
    listener = LeaseListener(
        open_engine("postgresql://someone@127.0.0.1:1/nowhere"), "default", Changes()
    )
    with capture_logs() as lines:
        listener.start()
        wait_until(lambda: lines)
        listener.stop()
    assert "127.0.0.1/nowhere" in lines[0]["reason"]
    assert _threads() == []


def test_stop_ends_thread_and_connection_at_once(engine: Engine) -> None:
    changes = Changes()
    listener = LeaseListener(engine, "default", changes)
    listener.start()
    changes.wait_for(1)
    listener.stop()
    assert _threads() == []
    wait_until(lambda: _listening_sessions(engine) == 0)


def test_stop_does_not_wait_for_a_frozen_server(own_postgres: EmbeddedPostgres) -> None:
    listener = LeaseListener(
        open_engine(own_postgres.url, connect_timeout=LONGER_THAN_ANY_TEST), "default", Changes()
    )
    os.kill(own_postgres.pid, signal.SIGSTOP)
    try:
        listener.start()
        wait_until(_threads)
        # The server answers again only below.
        listener.stop()
    finally:
        os.kill(own_postgres.pid, signal.SIGCONT)
    wait_until(lambda: not _threads())


def test_stop_does_not_wait_for_a_frozen_session(own_postgres: EmbeddedPostgres) -> None:
    engine = open_engine(own_postgres.url)
    upgrade(engine)
    frozen: list[int] = []

    def freeze(connection: Any, _: object) -> None:
        os.kill(connection.info.backend_pid, signal.SIGSTOP)
        frozen.append(connection.info.backend_pid)

    event.listen(engine, "connect", freeze)
    listener = LeaseListener(engine, "default", Changes())
    try:
        listener.start()
        wait_until(lambda: frozen)
        # The server answers again only below.
        listener.stop()
        assert _threads() == []
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


def test_a_listener_that_never_started_can_be_stopped(engine: Engine) -> None:
    LeaseListener(engine, "default", Changes()).stop()


def _listening_sessions(engine: Engine) -> int:
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    )
    with engine.connect() as connection:
        return int(connection.execute(text(query)).scalar_one())


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lease listener"]
