"""RULES.md#r35: the number of partitions of a running query's state changes between two batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ha_engine.query.application import StreamApplication
from ha_engine.query.checkpoint_files import copy_as_of, last_finished
from ha_engine.query.checkpoints import stamp_restored
from ha_engine.query.offsets import mark_of_batch, partitions_of_batch
from ha_engine.query.runner import QueryRunner
from tests.query.local_node import LocalNode, run_command
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

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


@pytest.fixture(autouse=True)
def rocksdb(spark: Any) -> Iterator[None]:
    key = "spark.sql.streaming.stateStore.providerClass"
    former = spark.conf.get(key)
    spark.conf.set(key, former.replace("HDFSBacked", "RocksDB"))
    yield
    spark.conf.set(key, former)


def feed(node: LocalNode, app: StreamApplication, number: int, query: str) -> None:
    """Send one event of each key, an hour after those before."""
    at = START + timedelta(hours=number)
    rows = [{"at": at, "key": f"k{key}", "value": number} for key in range(KEYS)]
    node.append(app.streams["events"], rows)
    node.mark(query)


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


def test_copy_from_before_a_rescale_gives_the_same_rows(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    """A node that restores an older snapshot runs each batch with the number that it had."""
    app = application(JOIN)
    events, others = app.streams["events"], app.streams["others"]
    query, changes = "join", [(0, 2), (4, 5)]

    def pair(number: int) -> None:
        """The weights of a batch's events arrive one batch later."""
        at, before = (START + timedelta(minutes=n) for n in (number, number - 1))
        keys = [f"k{key}" for key in range(KEYS)]
        node.append(events, [{"at": at, "key": key, "value": number} for key in keys])
        node.append(others, [{"at": before, "key": key, "weight": 0.5} for key in keys])
        node.mark(query)

    running = runner(app)
    running.run(run_command(app.queries[query], partitions=changes))
    for number in range(1, 4):
        pair(number)
        node.admitted(query, number)
    checkpoint, copy = node.checkpoints / query, node.directory / "copy"
    wait_until(lambda: done(checkpoint) == 3)
    copy_as_of(checkpoint, last_finished(checkpoint) or 0, copy)
    for number in range(4, 7):
        pair(number)
        assert node.admitted(query, number).num_rows == KEYS
    running.halt(query)
    before = node.outputs(query)
    checkpoint.rename(node.directory / "former")
    stamp_restored(copy, "s")
    copy.rename(checkpoint)
    running.run(run_command(app.queries[query], partitions=changes))
    wait_until(lambda: done(checkpoint) == 6)
    assert partitions_of(node, query) == 5
    assert node.outputs(query) == before
    assert not node.seen.failed


def done(checkpoint: Path) -> int:
    """The mark of the last finished batch."""
    finished = last_finished(checkpoint)
    return 0 if finished is None else mark_of_batch(checkpoint, finished)
