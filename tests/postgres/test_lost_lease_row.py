"""The holder writes a row that the database lost again, past the table's own guards (RULES.md#r5,
RULES.md#r6)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Engine, text

from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.types import Holder, LeaseRow, Member

A = Member("node-a", "journal-a")
HOLDER = Holder("node-a", "process-1")
HELD = LeaseRow("group-1", HOLDER, 1, 1, (A,))


@pytest.fixture
def store(engine: Engine) -> PostgresLeaseStore:
    return PostgresLeaseStore(engine, "default", 5.0, db_timeout=60)


def test_deleted_row_is_recreated_for_its_group_with_the_next_epoch(
    engine: Engine, store: PostgresLeaseStore
) -> None:
    store.create(HELD)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM ha_engine.lease"))
    again = replace(HELD, epoch=2, version=9)
    assert store.create(again) == again
    assert store.read() == again
    newest, first = store.history()
    assert (newest.epoch, newest.reason) == (2, "the database had lost the row")
    assert (first.epoch, first.reason) == (1, "first row of the group")


def test_regressed_row_is_overwritten_with_a_higher_epoch_and_a_history_line(
    store: PostgresLeaseStore,
) -> None:
    older = store.create(HELD)
    assert older is not None
    wanted = replace(HELD, epoch=2, version=2)
    assert store.compare_and_set(older, wanted, reason="the database lost writes") == wanted
    assert store.compare_and_set(older, wanted, reason="the database lost writes") is None
    newest, _ = store.history()
    assert (newest.epoch, newest.holder, newest.previous) == (2, HOLDER, HOLDER)
    assert newest.reason == "the database lost writes"
    store.close()
