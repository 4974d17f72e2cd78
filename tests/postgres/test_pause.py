"""A pause is one flag of the lease row; setting it changes nothing else of the row
(RULES.md#r7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import Engine, text

from ha_engine.errors import GroupUnknown, LeaseNotChanged
from ha_engine.postgres.lease_store import PAUSE_ATTEMPTS, PostgresLeaseStore
from ha_engine.types import DatabaseIdentity, Holder, LeaseRow, Member

A, B = Member("node-a", "journal-a"), Member("node-b", "journal-b")
HELD = LeaseRow(
    "group-1", Holder("node-a", "process-1"), 3, 1, (A, B), "http://a:8080", "node-b", False
)


class Overtaken(PostgresLeaseStore):
    """A store in which the holder renews between read and write, a given number of times."""

    renewals = 0

    def read(self) -> LeaseRow | None:
        row = super().read()
        if row is not None and self.renewals > 0:
            self.renewals -= 1
            assert self.compare_and_set(row, row) is not None
        return row


@pytest.fixture
def store(engine: Engine) -> Iterator[Overtaken]:
    with closing(Overtaken(engine, "default", 5.0, db_timeout=10)) as store:
        yield store


def test_pause_and_resume_change_the_flag_and_nothing_else(store: Overtaken) -> None:
    row = replace(HELD, identity=store.identity())
    store.create(row)
    assert store.set_paused(True) == store.read() == replace(row, version=2, paused=True)
    assert store.set_paused(False) == store.read() == replace(row, version=3)
    assert len(store.history()) == 1


@pytest.mark.parametrize("paused", [True, False])
def test_repeated_pause_or_resume_writes_nothing(store: Overtaken, paused: bool) -> None:
    row = replace(HELD, paused=paused)
    store.create(row)
    assert store.set_paused(paused) == row


def test_a_released_row_can_be_paused(store: Overtaken) -> None:
    store.create(replace(HELD, holder=None))
    assert store.set_paused(True) == replace(HELD, holder=None, version=2, paused=True)


def test_pause_overtaken_by_a_renewal_is_retried(store: Overtaken) -> None:
    store.create(HELD)
    store.renewals = 3
    assert store.set_paused(True) == replace(HELD, version=5, paused=True)


def test_pause_overtaken_each_time_fails_with_a_reason(store: Overtaken) -> None:
    store.create(HELD)
    store.renewals = PAUSE_ATTEMPTS
    with pytest.raises(LeaseNotChanged, match="try again"):
        store.set_paused(True)
    assert store.read() == replace(HELD, version=1 + PAUSE_ATTEMPTS)


def test_a_group_without_a_row_cannot_be_paused(store: Overtaken) -> None:
    with pytest.raises(GroupUnknown, match="no lease row of group default"):
        store.set_paused(True)
    assert store.read() is None


def test_row_of_another_database_is_left_unchanged(store: Overtaken, engine: Engine) -> None:
    identity = store.identity()
    store.create(replace(HELD, identity=identity))
    with engine.begin() as connection:  # as after a failover to a standby
        connection.execute(text("UPDATE ha_engine.lease SET timeline = '0000000F', version = 2"))
    row = replace(
        HELD, version=2, identity=DatabaseIdentity(identity.system_identifier, "0000000F")
    )
    with pytest.raises(LeaseNotChanged, match="may be out of date"):
        store.set_paused(True)
    assert store.read() == row
