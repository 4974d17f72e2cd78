"""The release of the lease of a dead node process on a real database."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ha_engine.core import HighWater
from ha_engine.errors import DatabaseUnreachable
from ha_engine.node.data_dir import DataDirectory
from ha_engine.node.lease_release import LeaseStore, release_within
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.types import DatabaseIdentity, Holder, LeaseRow, Member

NODE, DEAD = "node-a", "the-dead-process"
MEMBERS = (Member(NODE, "journal-a"), Member("node-b", "journal-b"))


def held(store: PostgresLeaseStore, process: str = DEAD) -> LeaseRow:
    """Acquire the lease for ``process``; return the row."""
    row = LeaseRow("g", Holder(NODE, process), 5, 1, MEMBERS, identity=store.identity())
    assert store.create(row)
    renewed = replace(row, version=row.version + 1)
    assert store.compare_and_set(row, renewed)
    return renewed


def release(store: LeaseStore, data_dir: Path, within: float = 0.0) -> None:
    asyncio.run(release_within(store, Holder(NODE, DEAD), data_dir, within))


def test_released_row_has_no_holder_and_keeps_its_in_sync_list(
    store: PostgresLeaseStore, tmp_path: Path
) -> None:
    before = held(store)
    release(store, tmp_path)
    after = store.read()
    assert after is not None
    assert (after.holder, after.version) == (None, before.version + 1)
    assert after.in_sync == MEMBERS


def test_lease_of_the_next_process_is_not_released(
    store: PostgresLeaseStore, tmp_path: Path
) -> None:
    before = held(store, process="the-next-one")
    release(store, tmp_path)
    assert store.read() == before


def test_row_older_than_the_high_water_is_not_released(
    store: PostgresLeaseStore, tmp_path: Path
) -> None:
    """The database was restored from its backup. The listed member may have been removed since, and
    a write of this node would make the row look new to it (RULES.md#r5)."""
    before = held(store)
    data = DataDirectory(tmp_path, "the-next-one")
    data.keep(HighWater(before.epoch, before.version + 1, store.identity()))
    release(store, tmp_path)
    assert store.read() == before
    data.keep(HighWater(before.epoch, before.version, store.identity()))
    release(store, tmp_path)
    assert store.read() != before
    data.close()


class Late:
    """A wrapper of ``store`` whose database does not answer the first calls."""

    def __init__(self, store: PostgresLeaseStore, calls: int) -> None:
        self._store, self._calls = store, calls
        self.identity, self.compare_and_set = store.identity, store.compare_and_set

    def read(self) -> LeaseRow | None:
        self._calls -= 1
        if self._calls >= 0:
            raise DatabaseUnreachable("it starts")
        return self._store.read()


def test_release_is_retried_until_the_database_answers(
    store: PostgresLeaseStore, tmp_path: Path
) -> None:
    before = held(store)
    with pytest.raises(DatabaseUnreachable):
        release(Late(store, calls=1), tmp_path)
    assert store.read() == before
    release(Late(store, calls=3), tmp_path, within=60.0)
    after = store.read()
    assert after is not None
    assert after.holder is None


def test_row_is_not_released_after_a_failover_of_the_database(
    store: PostgresLeaseStore, tmp_path: Path
) -> None:
    before = held(store)
    store.identity = lambda: DatabaseIdentity("7000", "00000009")  # type: ignore[method-assign]
    release(store, tmp_path)
    assert store.read() == before
