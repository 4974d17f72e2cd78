"""RULES.md#i6: a query over several streams has the same batches after a restart, even if one of
its streams gets no event any more."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

import ha_engine.jvm
from ha_engine.query.application import StreamApplication
from ha_engine.query.checkpoint_files import copy_as_of, last_finished
from ha_engine.query.checkpoints import STAMP_FILE, newest_mark
from ha_engine.query.runner import QueryRunner
from tests.programs import needs
from tests.query.local_node import LocalNode, run_command
from tests.waiting import wait_until

pytestmark = [needs("javac"), pytest.mark.spark, pytest.mark.rotates("files")]

Applications = Callable[[str], StreamApplication]
Runners = Callable[[StreamApplication], QueryRunner]
START = datetime(2013, 1, 1, tzinfo=UTC)
UNMATCHED = """
  unmatched:
    sql: >
      SELECT e.key FROM events e LEFT JOIN others o
      ON e.key = o.key AND o.at BETWEEN e.at AND e.at + INTERVAL 1 MINUTE
"""
BATCHES = 6
EACH = range(1, BATCHES)
EXPECTED = [[], [], ["k1"], ["k2"], ["k3"], ["k4"]]
"""An event stays open until an event of a later batch has moved the watermark past its join."""


def feed(node: LocalNode, app: StreamApplication, number: int) -> None:
    """Append an event for each batch. The other stream has one event only, which is far ahead."""
    at = START + timedelta(hours=number)
    node.append(app.streams["events"], [{"at": at, "key": f"k{number}", "value": number}])
    if number == 1:
        ahead = START + timedelta(days=300)
        node.append(app.streams["others"], [{"at": ahead, "key": "ahead", "weight": 1.0}])
    node.mark("unmatched")


def keys(node: LocalNode, number: int) -> list[str]:
    return list(node.admitted("unmatched", number).column("key").to_pylist())


def has_finished(checkpoint: Path, number: int) -> bool:
    return newest_mark(checkpoint) == number


def nothing(checkpoint: Path) -> None:
    """The checkpoint of a query that stopped between two batches."""


def crash(checkpoint: Path) -> None:
    """Leave the checkpoint of a query process that was killed before its last batch was over."""
    (checkpoint / "commits" / str(last_finished(checkpoint))).unlink()


def restore(checkpoint: Path) -> None:
    """Leave what a snapshot has of the checkpoint."""
    batch, copy = last_finished(checkpoint), checkpoint.with_name("copy")
    assert batch is not None
    copy_as_of(checkpoint, batch, copy)
    shutil.copy2(checkpoint / STAMP_FILE, copy)
    # Moved away, since Spark's maintenance of the state may still write into the old directory.
    checkpoint.rename(checkpoint.with_name(f"former-{batch}"))
    copy.rename(checkpoint)


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("restarted_after", "change"),
    [([], nothing), ([2], nothing), (EACH, nothing), (EACH, crash), (EACH, restore)],
)
def test_restart_moves_no_row_to_another_batch(
    restarted_after: Collection[int],
    change: Callable[[Path], None],
    node: LocalNode,
    application: Applications,
    runner: Runners,
) -> None:
    app = application(UNMATCHED)
    running, command = runner(app), run_command(app.queries["unmatched"])
    running.run(command)
    checkpoint = node.checkpoints / "unmatched"
    found = []
    for number in range(1, BATCHES + 1):
        feed(node, app, number)
        found.append(keys(node, number))
        if number in restarted_after:
            wait_until(partial(has_finished, checkpoint, number))
            running.halt("unmatched")
            change(checkpoint)
            running.run(command)
    assert found == EXPECTED
    assert not node.seen.failed


def test_rescaled_query_keeps_its_watermarks(
    rocksdb: None, node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(UNMATCHED)
    running = runner(app)
    running.run(run_command(app.queries["unmatched"], partitions=[(0, 2), (3, 4)]))
    found = []
    for number in range(1, BATCHES + 1):
        feed(node, app, number)
        found.append(keys(node, number))
    assert found == EXPECTED
    assert not node.seen.failed


def test_query_over_several_streams_says_that_the_jar_is_missing(
    node: LocalNode,
    application: Applications,
    runner: Runners,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ha_engine.jvm, "JAR", node.directory / "ha-engine.jar")
    app = application(UNMATCHED)
    runner(app).run(run_command(app.queries["unmatched"]))
    assert "python -m ha_engine.jvm.build" in node.failure("unmatched").reason
