"""RULES.md#r21: Spark continues from a copy of a checkpoint behind a batch, though later batches
ran during the copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ha_engine.outbox import Admission
from ha_engine.query.application import StreamApplication
from ha_engine.query.checkpoint_files import copy_as_of, last_finished
from ha_engine.query.checkpoints import stamp_restored
from ha_engine.query.offsets import mark_of_batch
from ha_engine.query.runner import QueryRunner
from tests.query.local_node import LocalNode, run_command
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

Applications = Callable[[str], StreamApplication]
Runners = Callable[[StreamApplication], QueryRunner]
START = datetime(2013, 1, 1, tzinfo=UTC)
QUERY, KEYS, BATCHES, COPIED = "counts", 50, 8, 5
COUNTS = """
  counts:
    sql: SELECT key, count(*) AS n FROM events GROUP BY key
    output_mode: update
"""
WHOLE = {"HDFSBacked": "*.snapshot", "RocksDB": "*.zip"}


@pytest.fixture(params=WHOLE)
def provider(spark: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """Set the state store provider of the queries that start meanwhile."""
    key = "spark.sql.streaming.stateStore.providerClass"
    former, wanted = spark.conf.get(key), request.param
    kinds = "|".join(WHOLE)
    assert any(kind in former for kind in WHOLE), kinds
    own = next(kind for kind in WHOLE if kind in former)
    spark.conf.set(key, former.replace(own, wanted))
    yield wanted
    spark.conf.set(key, former)


def feed(node: LocalNode, app: StreamApplication, number: int) -> None:
    """Send one event of each key in each batch, so that the state counts its batches."""
    at = START + timedelta(minutes=number)
    rows = [{"at": at, "key": f"k{key}", "value": number} for key in range(KEYS)]
    node.append(app.streams["events"], rows)
    node.mark(QUERY)


def counts(node: LocalNode, number: int) -> set[int]:
    table = node.admitted(QUERY, number)
    assert table.num_rows == KEYS
    return set(table.column("n").to_pylist())


@pytest.mark.rotates
def test_spark_continues_from_a_checkpoint_copied_while_later_batches_ran(
    node: LocalNode, application: Applications, runner: Runners, provider: str
) -> None:
    app = application(COUNTS)
    running = runner(app)
    running.run(run_command(app.queries[QUERY]))
    for number in range(1, BATCHES + 1):
        feed(node, app, number)
        assert counts(node, number) == {number}
    checkpoint, copy = node.checkpoints / QUERY, node.directory / "copy"
    wait_until(lambda: any((checkpoint / "state").rglob(WHOLE[provider])), within=30)
    wait_until(lambda: last_finished(checkpoint) == BATCHES - 1, within=30)
    copy_as_of(checkpoint, _batch_of(checkpoint, COPIED), copy)
    feed(node, app, BATCHES + 1)
    assert counts(node, BATCHES + 1) == {BATCHES + 1}
    running.halt(QUERY)

    # Spark's maintenance may still write below it and would disturb a removal.
    checkpoint.rename(node.directory / "before")
    copy.rename(checkpoint)
    stamp_restored(checkpoint, "s")
    node.seen.verdicts.clear()
    running.run(run_command(app.queries[QUERY]))
    feed(node, app, BATCHES + 2)
    assert counts(node, BATCHES + 2) == {BATCHES + 2}
    replayed = [number for _, number, verdict in node.seen.verdicts if verdict is Admission.DONE]
    assert replayed == list(range(COPIED + 1, BATCHES + 2))
    assert Admission.MISMATCH not in {verdict for *_, verdict in node.seen.verdicts}


def _batch_of(checkpoint: Path, number: int) -> int:
    last = last_finished(checkpoint)
    assert last is not None
    return next(n for n in range(last, -1, -1) if mark_of_batch(checkpoint, n) == number)
