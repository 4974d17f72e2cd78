"""The contract of every lease store: the real one, and the one of the simulated worlds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

import pytest

from ha_engine.errors import InvariantBroken
from ha_engine.node.ports import LeaseStore
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.postgres.upgrade import upgrade
from ha_engine.types import Holder, HolderChange, LeaseRow, Member, Position
from tests.core.surroundings import LeaseTable, TableStore

A = Member("node-a", "journal-a")
B = Member("node-b", "journal-b")
BY_A, BY_B = Holder("node-a", "process-1"), Holder("node-b", "process-1")
FIRST = LeaseRow("group-1", None, 0, 1, (A, B))
HELD = replace(FIRST, holder=BY_A, epoch=1, advertise="http://a:8080", committed=Position(1, 98))
WRITERS = 6


class Store(LeaseStore, Protocol):
    def history(self, limit: int = 20) -> list[HolderChange]: ...
    def note_outage(self, epoch: int, seconds: float) -> None: ...


Opening = Callable[[], Store]


@pytest.fixture(params=["postgres", "memory"])
def opening(request: pytest.FixtureRequest) -> Iterator[Opening]:
    """Return a function that opens one more client of the same, empty row."""
    if request.param == "memory":
        table, turn = LeaseTable(), threading.Lock()
        yield lambda: TableStore(table, turn)
        return
    engine = open_engine(request.getfixturevalue("database_url"), statement_timeout=20)
    upgrade(engine)
    with ExitStack() as opened:

        def open_store() -> PostgresLeaseStore:
            store = PostgresLeaseStore(engine, "default", 5.0, db_timeout=20)
            opened.callback(store.close)
            return store

        yield open_store


@pytest.fixture
def store(opening: Opening) -> Store:
    return opening()


# -- reading and creating --------------------------------------------------------------------------


def test_a_group_without_a_row_reads_as_none(store: Store) -> None:
    assert store.read() is None


def test_a_created_row_reads_back_whole(store: Store) -> None:
    row = replace(HELD, successor="node-b", paused=True, identity=store.identity())
    assert store.create(row) == row
    assert store.read() == row


def test_a_row_is_created_once(store: Store) -> None:
    store.create(HELD)
    assert store.create(replace(FIRST, group_id="group-2")) is None
    assert store.read() == HELD
    assert len(store.history()) == 1


def test_a_row_for_another_database_is_not_created(store: Store) -> None:
    """RULES.md#r5. 1. A node reads that the row is missing, and sleeps. 2. Another node creates it,
    and the database fails over without that write. 3. The first node wakes up: no row exists."""
    here = store.identity()
    for strange in (replace(here, timeline="0000000F"), replace(here, system_identifier="7")):
        assert store.create(replace(HELD, identity=strange)) is None
        assert store.read() is None
    assert not store.history()
    assert store.create(replace(HELD, identity=here)) is not None


def test_one_of_many_concurrent_creations_of_the_row_succeeds(opening: Opening) -> None:
    stores = [opening() for _ in range(WRITERS)]
    rows = [replace(FIRST, group_id=f"group-{n}") for n in range(WRITERS)]
    calls = [lambda s=s, row=row: s.create(row) for s, row in zip(stores, rows, strict=True)]
    winner = _only_winner(calls)
    assert stores[0].read() == winner


def test_database_identity_stays_the_same(opening: Opening) -> None:
    assert opening().identity() == opening().identity()


# -- compare-and-set (RULES.md#r1)
# --------------------------------------------------------------------------


def test_one_of_many_concurrent_acquisitions_wins_each_version(opening: Opening) -> None:
    stores = [opening() for _ in range(WRITERS)]
    row = stores[0].create(
        replace(FIRST, in_sync=tuple(Member(f"node-{n}", "j") for n in range(WRITERS)))
    )
    for _ in range(20):
        assert row is not None
        wanted = [
            replace(row, holder=Holder(f"node-{n}", "p"), epoch=row.epoch + 1)
            for n in range(WRITERS)
        ]
        row = _race(stores, row, wanted)
    assert [change.epoch for change in stores[0].history()] == list(range(20, 0, -1))


def test_one_of_many_concurrent_writes_of_a_holder_wins_each_version(opening: Opening) -> None:
    stores = [opening() for _ in range(WRITERS)]
    row = stores[0].create(HELD)
    for _ in range(20):
        assert row is not None
        memberships = [(A,), (A, B)]
        wanted = [replace(row, in_sync=memberships[n % 2]) for n in range(WRITERS)]
        row = _race(stores, row, wanted)


def _race(stores: Sequence[Store], row: LeaseRow, wanted: Sequence[LeaseRow]) -> LeaseRow:
    calls = [
        lambda s=s, w=w: s.compare_and_set(row, w) for s, w in zip(stores, wanted, strict=True)
    ]
    winner = _only_winner(calls)
    assert winner.version == row.version + 1
    assert stores[0].read() == winner
    return winner


def _only_winner(calls: Sequence[Callable[[], LeaseRow | None]]) -> LeaseRow:
    answers: list[LeaseRow | None] = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(index: int) -> None:
        barrier.wait()
        answers[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [answer for answer in answers if answer is not None]
    return winner


@pytest.mark.parametrize(
    "stale",
    [
        replace(HELD, version=2),
        replace(HELD, version=0),
        replace(HELD, epoch=2),
        replace(HELD, epoch=0),
        replace(HELD, holder=Holder("node-a", "process-2")),
        replace(HELD, holder=Holder("node-b", "process-1")),
        replace(HELD, holder=None),
    ],
    ids=[
        "newer version",
        "older version",
        "newer epoch",
        "older epoch",
        "process",
        "node",
        "released",
    ],
)
def test_a_write_that_expects_another_row_changes_nothing(store: Store, stale: LeaseRow) -> None:
    store.create(HELD)
    assert store.compare_and_set(stale, replace(stale, holder=BY_B, epoch=9)) is None
    assert store.read() == HELD
    assert len(store.history()) == 1


def test_a_write_of_a_group_without_a_row_changes_nothing(store: Store) -> None:
    assert store.compare_and_set(HELD, HELD) is None
    assert store.read() is None


def test_compare_and_set_compares_only_holder_epoch_and_version(store: Store) -> None:
    store.create(HELD)
    expected = replace(HELD, in_sync=(A,), advertise=None, paused=True, group_id="group-2")
    assert store.compare_and_set(expected, HELD) == replace(HELD, version=2)


def test_every_write_adds_one_to_the_version_whatever_the_writer_requests(store: Store) -> None:
    store.create(HELD)
    second = store.compare_and_set(HELD, replace(HELD, version=70))
    assert second == replace(HELD, version=2)
    third = store.compare_and_set(second, replace(second, version=1, paused=True))
    assert third == replace(HELD, version=3, paused=True)


def test_a_release_keeps_in_sync_and_names_a_successor(store: Store) -> None:
    store.create(HELD)
    released = store.compare_and_set(HELD, replace(HELD, holder=None, successor="node-b"))
    assert released == replace(HELD, version=2, holder=None, successor="node-b")
    assert store.read() == released


def test_a_release_is_void_once_the_version_moved(store: Store) -> None:
    store.create(HELD)
    store.compare_and_set(HELD, HELD)
    assert store.compare_and_set(HELD, replace(HELD, holder=None, successor="node-b")) is None


def test_in_sync_list_keeps_its_journal_ids_and_their_order(store: Store) -> None:
    store.create(HELD)
    members = (B, A, Member("node-c", 'ids "quoted" \\ and ünusual'), Member("node-b", "another"))
    written = store.compare_and_set(HELD, replace(HELD, in_sync=members))
    assert written is not None
    assert written.in_sync == members
    assert store.read() == written


def test_a_falling_epoch_and_a_second_holder_of_one_epoch_are_refused(store: Store) -> None:
    row = replace(HELD, epoch=5)
    store.create(row)
    for broken in (
        replace(row, epoch=4),
        replace(row, holder=BY_B),
        replace(row, holder=Holder("node-a", "process-2")),
        replace(row, holder=Holder("node-c", "process-1"), epoch=6),
    ):
        with pytest.raises(InvariantBroken):
            store.compare_and_set(row, broken)
    assert store.read() == row


# -- history ---------------------------------------------------------------------------------------


def test_history_has_a_line_for_each_change_of_holder_or_epoch_only(store: Store) -> None:
    row = FIRST
    store.create(row)
    for change, reason in (
        ({"holder": BY_A, "epoch": 1}, "never held"),
        ({}, "renewal"),
        ({"in_sync": (A,)}, "b left"),
        ({"paused": True, "advertise": "http://other:1"}, "an operator"),
        ({"holder": None, "successor": "node-b"}, "switchover"),
        ({"holder": BY_B, "epoch": 2, "in_sync": (B,), "successor": None}, "released to b"),
        ({"epoch": 3}, "the database lost writes"),
    ):
        written = store.compare_and_set(row, replace(row, **change), reason=reason)
        assert written is not None
        row = written
    lines = [
        (line.epoch, line.version, line.holder, line.previous, line.reason)
        for line in store.history()
    ]
    assert lines == [
        (3, 8, BY_B, BY_B, "the database lost writes"),
        (2, 7, BY_B, None, "released to b"),
        (1, 6, None, BY_A, "switchover"),
        (1, 2, BY_A, None, "never held"),
    ]


def test_first_row_with_a_holder_is_the_first_line_of_the_history(store: Store) -> None:
    store.create(HELD)
    (line,) = store.history()
    assert (line.holder, line.previous, line.reason) == (BY_A, None, "first row of the group")


def test_history_lists_the_newest_lines_first(store: Store) -> None:
    row: LeaseRow | None = store.create(HELD)
    for epoch in range(2, 6):
        assert row is not None
        row = store.compare_and_set(row, replace(row, epoch=epoch))
    assert [line.epoch for line in store.history(limit=2)] == [5, 4]
    assert len(store.history()) == 5


def test_outage_measured_by_a_holder_is_in_the_line_of_its_epoch(store: Store) -> None:
    row: LeaseRow | None = store.create(HELD)
    for holder, epoch in ((None, 1), (BY_B, 2), (None, 2), (BY_A, 3)):
        assert row is not None
        row = store.compare_and_set(row, replace(row, holder=holder, epoch=epoch))
    store.note_outage(2, 1.25)
    outages = [(line.epoch, line.holder, line.outage_seconds) for line in store.history()]
    assert outages == [
        (3, BY_A, None),
        (2, None, None),
        (2, BY_B, 1.25),
        (1, None, None),
        (1, BY_A, None),
    ]
    store.note_outage(2, 0.5)
    assert [line.outage_seconds for line in store.history()] == [None, None, 0.5, None, None]
    assert store.read() == row


def test_outage_of_an_epoch_that_no_node_held_changes_nothing(store: Store) -> None:
    store.create(FIRST)
    store.compare_and_set(FIRST, replace(FIRST, epoch=4))
    before = store.history()
    store.note_outage(4, 1.0)
    store.note_outage(9, 1.0)
    assert store.history() == before


def test_write_for_another_database_changes_nothing(store: Store) -> None:
    """RULES.md#r5. 1. A node reads the row, and sleeps. 2. The database fails over meanwhile."""
    here = store.identity()
    store.create(replace(HELD, identity=here))
    row = store.read()
    assert row is not None
    for strange in (replace(here, timeline="0000000F"), replace(here, system_identifier="7")):
        taken = replace(row, holder=BY_B, epoch=2, version=2, in_sync=(B,), identity=strange)
        assert store.compare_and_set(row, taken) is None
        assert store.read() == row
    assert store.compare_and_set(row, replace(taken, identity=here)) is not None
