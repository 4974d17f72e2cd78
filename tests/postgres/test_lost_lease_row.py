"""A row that the database lost is put back by its holder, past the table's own guards (RULES.md#r5,
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


def test_a_deleted_row_is_created_again_with_its_group_one_epoch_higher(
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


def test_an_older_row_is_overwritten_with_a_higher_epoch_and_told_in_the_history(
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
