"""RULES.md#r35: the number of partitions of a running query's state changes between two batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from ha_engine.query.application import StreamApplication
from ha_engine.query.checkpoint_files import last_finished
from ha_engine.query.offsets import partitions_of_batch
from ha_engine.query.runner import QueryRunner
from ha_engine.query.state_partitions import Partitions, RescaleDue, partitions_after
from ha_engine.v1 import local_pb2 as pb
from tests.query.local_node import LocalNode, run_command
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("rocksdb"), pytest.mark.rotates("files")]

Applications = Callable[[str], StreamApplication]
Runners = Callable[[StreamApplication], QueryRunner]
START = datetime(2013, 1, 1, tzinfo=UTC)
KEYS = 40
CHANGES = [(0, 4), (2, 8), (4, 3)]
COUNTS = """
  counts:
    sql: SELECT key, count(*) AS n, sum(value) AS total FROM events GROUP BY key
    output_mode: update
"""
WINDOWS = """
  windows:
    sql: >
      SELECT window.start AS hour, key, count(*) AS n FROM events
      GROUP BY window(at, '1 hour'), key
"""
JOIN = """
  join:
    sql: >
      SELECT e.key, e.value, o.weight FROM events e JOIN others o
      ON e.key = o.key AND e.at = o.at
"""


def partitions_of(node: LocalNode, query: str) -> int:
    checkpoint = node.checkpoints / query
    finished = last_finished(checkpoint)
    return 0 if finished is None else partitions_of_batch(checkpoint, finished)


def test_running_queries_are_rescaled_twice_and_lose_no_state(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(COUNTS + WINDOWS)
    running = runner(app)
    for query in ("counts", "windows"):
        running.run(run_command(app.queries[query], partitions=CHANGES))
    for number in range(1, 7):
        at = START + timedelta(hours=number)
        rows = [{"at": at, "key": f"k{key}", "value": number} for key in range(KEYS)]
        node.append(app.streams["events"], rows)
        node.mark("counts")
        node.mark("windows")
        expected = {f"k{key}": (number, number * (number + 1) // 2) for key in range(KEYS)}
        counts = node.admitted("counts", number).to_pylist()
        assert {row["key"]: (row["n"], row["total"]) for row in counts} == expected
        node.admitted("windows", number)
        scaled = 4 if number <= 2 else 8 if number <= 4 else 3
        for query in ("counts", "windows"):
            wait_until(lambda q=query, n=scaled: partitions_of(node, q) == n)  # type: ignore[misc]
    closed = [row for n in range(1, 7) for row in node.admitted("windows", n).to_pylist()]
    assert Counter((row["hour"], row["n"]) for row in closed) == {
        (START + timedelta(hours=hour), 1): KEYS for hour in range(1, 5)
    }
    assert not node.seen.failed


def test_rescaled_join_keeps_the_state_of_both_sides(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(JOIN)
    events, others = app.streams["events"], app.streams["others"]
    runner(app).run(run_command(app.queries["join"], partitions=[(0, 2), (4, 5)]))
    keys = [f"k{key}" for key in range(KEYS)]
    for number in range(1, 7):
        # The weights of a batch's events arrive one batch later.
        at, before = (START + timedelta(minutes=n) for n in (number, number - 1))
        node.append(events, [{"at": at, "key": key, "value": number} for key in keys])
        node.append(others, [{"at": before, "key": key, "weight": 0.5} for key in keys])
        node.mark("join")
        assert node.admitted("join", number).num_rows == (KEYS if number > 1 else 0)
    assert not node.seen.failed


def test_each_batch_gets_the_number_of_the_newest_change_before_it() -> None:
    """A replay, or a node with an older snapshot, runs each batch with the number that it had."""
    changes = [pb.StatePartitions(after=after, number=n) for after, n in [(2, 8), (4, 3)]]
    found = [partitions_after(mark, changes) for mark in (0, 2, 3, 4, 9)]
    assert found == [
        Partitions(None, 2),
        Partitions(8, 4),
        Partitions(8, 4),
        Partitions(3, None),
        Partitions(3, None),
    ]
    found[0].require(2)
    with pytest.raises(RescaleDue):
        found[0].require(3)
