"""The checker of the fault matrix finds each kind of broken promise, and no fault in a good one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.matrix.checker import faults
from tests.faults.matrix.history import (
    History,
    LeaseVersion,
    LedgerMove,
    Outage,
    Request,
    RoleSeen,
    SinkRow,
)

A, B = ("node-a", "journal-a"), ("node-b", "journal-b")
GOOD = History(
    requests=(
        Request("one", 1, 1.0, 1.1, 1),
        Request("one", 2, 1.2, 1.3, 1, "node-a"),
        Request("two", 3, 1.9),
        Request("two", 4, 2.0, 4.2, 1),  # stored under epoch 1, and acked at a later attempt
        Request("one", 5, 4.3, 4.4, 2, "node-b"),
    ),
    rows=(
        SinkRow(1, "one", 1),
        SinkRow(2, "one", 1),
        SinkRow(4, "two", 3),
        SinkRow(5, "one", 3),
    ),
    moves=(
        LedgerMove(1.5, 1, 1, "node-a"),
        LedgerMove(1.6, 1, 2, "node-a"),
        LedgerMove(4.1, 2, 2, "node-b"),
        LedgerMove(4.6, 2, 3, "node-b"),
    ),
    leases=(
        LeaseVersion(0.1, 1, 1, ("node-a", "process-1"), (A,)),
        LeaseVersion(0.9, 2, 1, ("node-a", "process-1"), (A, B)),
        LeaseVersion(3.9, 3, 1, None, (A, B)),
        LeaseVersion(4.0, 4, 2, ("node-b", "process-2"), (B,)),
        LeaseVersion(4.5, 5, 2, ("node-b", "process-2"), (B, A)),
    ),
    roles=(
        RoleSeen(1.0, "node-a", 0.0, "active"),
        RoleSeen(1.0, "node-b", 0.0, "passive"),
        RoleSeen(2.4, "node-b", 0.0, "passive"),
        RoleSeen(4.2, "node-b", 0.0, "active"),
        RoleSeen(4.2, "node-a", 3.0, "joining"),
    ),
    outages=(Outage(2.0, 3.0),),
    batches={1: ((1, "one"), (2, "one")), 2: (), 3: ((5, "one"), (4, "two"))},
    frames={"node-a": b"1234", "node-b": b"123456"},
)

Change = Callable[[History], History]


def with_row(history: History, row: SinkRow) -> History:
    return replace(history, rows=(*history.rows, row))


def with_request(history: History, request: Request) -> History:
    return replace(history, requests=(*history.requests, request))


def with_moves(history: History, *moves: LedgerMove) -> History:
    return replace(history, moves=moves)


FAULTY: dict[str, tuple[str, Change]] = {
    "an acked event is lost": (
        "C1: event 2 of one was acked and is not in the sink",
        lambda good: replace(good, rows=tuple(row for row in good.rows if row.event != 2)),
    ),
    "an event is there twice": (
        "C1: event 1 of one is in the sink 2 times",
        lambda good: with_row(good, SinkRow(1, "one", 3)),
    ),
    "an event of unknown outcome is there twice": (
        "C1: event 3 of two is in the sink 2 times",
        lambda good: with_row(with_row(good, SinkRow(3, "two", 3)), SinkRow(3, "two", 3)),
    ),
    "a batch is missing": (
        "C2: batch 1 was followed by batch 3",
        lambda good: with_moves(good, good.moves[0], good.moves[3]),
    ),
    "a batch is repeated": (
        "C2: batch 2 was followed by batch 1",
        lambda good: with_moves(good, *good.moves[:2], replace(good.moves[2], batch=1)),
    ),
    "a batch has other rows than the journal gives": (
        "C2: batch 3 has 2 rows in the sink that are not the 1 of the journal",
        lambda good: replace(good, batches={**good.batches, 3: ((5, "one"),)}),
    ),
    "a row is outside of every batch": (
        "C2: batch 0 has 1 rows in the sink that are not the 0 of the journal",
        lambda good: with_row(good, SinkRow(3, "two", 0)),
    ),
    "a batch is never published": (
        "C2: the journal ends with batch 4, which was not published",
        lambda good: replace(good, batches={**good.batches, 4: ()}),
    ),
    "two nodes publish under one epoch": (
        "C3: node-a and node-b published under epoch 1, whose holder is node-a",
        lambda good: with_moves(good, replace(good.moves[0], node="node-b"), *good.moves[1:]),
    ),
    "a node publishes that does not hold the epoch": (
        "C3: node-a published under epoch 2, whose holder is node-b",
        lambda good: with_moves(
            good, *good.moves[:2], *(replace(move, node="node-a") for move in good.moves[2:])
        ),
    ),
    "the lease changes its holder under one epoch": (
        "C3: epoch 2 followed epoch 2 with another holder",
        lambda good: replace(
            good,
            leases=(*good.leases, LeaseVersion(5.0, 6, 2, ("node-a", "process-3"), (A,))),
        ),
    ),
    "a node accepts below the highest epoch": (
        "C3: event 6 of two was sent after epoch 2 acked, and accepted under epoch 1",
        lambda good: with_row(
            replace(
                with_request(good, Request("two", 6, 4.5, 4.6, 1)),
                batches={**good.batches, 3: (*good.batches[3], (6, "two"))},
            ),
            SinkRow(6, "two", 3),
        ),
    ),
    "a node acks after another one has acquired the lease": (
        "C3: node-a acked event 2 after node-b had acquired epoch 2",
        lambda good: replace(
            good,
            requests=tuple(
                replace(one, acked_at=4.6, node="node-a") if one.event == 2 else one
                for one in good.requests
            ),
        ),
    ),
    "a row was never sent": (
        "C4: row 9 of one was never sent",
        lambda good: with_row(
            replace(good, batches={**good.batches, 3: (*good.batches[3], (9, "one"))}),
            SinkRow(9, "one", 3),
        ),
    ),
    "a fenced node publishes": (
        "C5: epoch 1 published batch 3 after epoch 2",
        lambda good: with_moves(good, *good.moves[:3], LedgerMove(4.6, 1, 3, "node-a")),
    ),
    "a node acquires the lease that the row does not list": (
        "C6: node-b acquired epoch 2, and version 3 lists it not",
        lambda good: replace(
            good,
            leases=(
                *good.leases[:2],
                replace(good.leases[2], in_sync=(A,)),
                *good.leases[3:],
            ),
        ),
    ),
    "a node acquires the lease with another journal": (
        "C6: node-b acquired epoch 2, and version 3 lists it not",
        lambda good: replace(
            good,
            leases=(
                *good.leases[:3],
                replace(good.leases[3], in_sync=(("node-b", "journal-c"),)),
                good.leases[4],
            ),
        ),
    ),
    "a role changes while the database is away": (
        "C7: node-b became active from passive without the database",
        lambda good: replace(good, outages=(Outage(2.0, 5.0),)),
    ),
    "the journals differ": (
        "C8: the journals of node-a and node-b differ",
        lambda good: replace(good, frames={"node-a": b"1244", "node-b": b"123456"}),
    ),
}


def test_a_good_history_has_no_fault() -> None:
    assert faults(GOOD) == []


@pytest.mark.parametrize("name", FAULTY)
def test_the_checker_finds_that(name: str) -> None:
    sentence, spoil = FAULTY[name]
    assert sentence in faults(spoil(GOOD))


def test_missing_output_of_a_pair_at_work_is_no_fault() -> None:
    at_work = replace(GOOD, rows=GOOD.rows[:2], moves=GOOD.moves[:2])
    assert faults(at_work) != []
    assert faults(at_work, at_rest=False) == []
    assert faults(FAULTY["the journals differ"][1](at_work), at_rest=False) != []


def test_many_faults_of_one_kind_are_counted() -> None:
    lost = tuple(Request("one", number, 4.5, 4.6, 2) for number in range(10, 30))
    found = faults(replace(GOOD, requests=(*GOOD.requests, *lost)))
    assert [one[:2] for one in found] == ["C1"] * 6
    assert found[-1] == "C1: 15 more"
