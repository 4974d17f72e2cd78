"""The sizing model counts the files that Spark writes for a batch, each a request to a store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sizing import files_per_batch
from ha_engine.query.application import StreamApplication
from ha_engine.query.checkpoint_files import last_finished
from ha_engine.query.runner import QueryRunner
from tests.query.local_node import LocalNode, run_command
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly("tests/test_sizing_model.py compares the bytes of records"),
]

START = datetime(2013, 1, 1, tzinfo=UTC)
JOIN = "SELECT a.key, b.value FROM events a JOIN events b ON a.key = b.key AND a.at = b.at"
COUNT = "SELECT key, count(*) AS n FROM events GROUP BY key"
PARTITIONS = 3


@pytest.mark.parametrize(
    ("sql", "mode", "stores"), [(COUNT, "update", 1), (JOIN, "append", 4)], ids=["count", "join"]
)
def test_batch_writes_the_files_of_the_model(
    node: LocalNode,
    application: Callable[[str], StreamApplication],
    runner: Callable[[StreamApplication], QueryRunner],
    spark: Any,
    sql: str,
    mode: str,
    stores: int,
) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
    app = application(f"\n  found:\n    sql: {sql}\n    output_mode: {mode}\n")
    running = runner(app)
    running.run(run_command(app.queries["found"]))
    files = [set[Path]()]
    for number in range(1, 4):
        at = START + timedelta(minutes=number)
        rows = [{"at": at, "key": f"k{key}", "value": number} for key in range(50)]
        node.append(app.streams["events"], rows)
        node.mark("found")
        node.admitted("found", number)
        wait_until(lambda number=number: last_finished(_checkpoint(node)) == number - 1, within=30)
        files.append(_written(_checkpoint(node)))
    running.halt("found")
    written = sorted(str(one.relative_to(node.checkpoints)) for one in files[3] - files[2])
    assert len(written) == files_per_batch(PARTITIONS, stores), written


def _checkpoint(node: LocalNode) -> Path:
    return node.checkpoints / "found"


def _written(checkpoint: Path) -> set[Path]:
    """The files of a checkpoint, without the checksums that only local files have, and without the
    snapshots of Spark's maintenance, finished or not, which belong to no batch."""
    return {
        one
        for one in checkpoint.rglob("*")
        if one.is_file() and one.suffix != ".crc" and ".snapshot" not in one.suffixes
    }
