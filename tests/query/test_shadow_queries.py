"""RULES.md#r38: a shadow runs beside its query in one Spark, and the query continues its state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ha_engine.query.application import QuerySpec, StreamApplication, load_application
from ha_engine.query.runner import QueryRunner
from ha_engine.v1 import local_pb2 as pb
from tests.query.local_node import LocalNode, run_command

pytestmark = [pytest.mark.spark, pytest.mark.rotates("files")]

Applications = Callable[[str], StreamApplication]
Runners = Callable[[StreamApplication], QueryRunner]
AT = datetime(2013, 1, 1, tzinfo=UTC)
LIVE, SHADOW, EVENTS_OF_BATCH = "counts", "counts~1", 5
COUNTS = """
  counts:
    sql: SELECT key, 1 * count(*) AS n FROM events GROUP BY key
    output_mode: update
"""
FUNCTION = """
  counts:
    function: rules:counted
    output_mode: update
"""
RULES = """
from pyspark.sql.functions import count, lit

def counted(streams):
    return streams["events"].groupBy("key").agg((count("*") * lit(1)).alias("n"))
"""


def beside(live: StreamApplication) -> QuerySpec:
    """The changed query, in an application of its own directory."""
    directory = live.path.parent / "shadow"
    directory.mkdir()
    for file in live.path.parent.glob("*.*"):
        if file.suffix in (".yaml", ".py"):
            changed = (
                file.read_text().replace("1 * count", "10 * count").replace("lit(1)", "lit(10)")
            )
            (directory / file.name).write_text(changed)
    return load_application(directory / "application.yaml").queries[LIVE]


def command(spec: QuerySpec, path: Path) -> pb.RunQuery:
    """The command to run the shadow from the batch after the first."""
    run = run_command(spec, lineage="journal:1~", mark=1)
    run.query, run.shadow_of, run.application = SHADOW, LIVE, str(path)
    return run


def run_batch(node: LocalNode, app: StreamApplication) -> None:
    rows = [{"at": AT, "key": "a", "value": 1}] * EVENTS_OF_BATCH
    node.append(app.streams["events"], rows)
    node.mark(LIVE, SHADOW)


def count(node: LocalNode, query: str, number: int) -> int:
    (row,) = node.admitted(query, number).to_pylist()
    return int(row["n"])


def begin(
    node: LocalNode, app: StreamApplication, spec: QuerySpec, running: QueryRunner
) -> pb.RunQuery:
    """Run a batch of the live query alone, and two batches of both."""
    running.run(run_command(app.queries[LIVE], lineage="journal:1"))
    run_batch(node, app)
    assert count(node, LIVE, 1) == EVENTS_OF_BATCH
    run = command(spec, app.path.parent / "shadow" / "application.yaml")
    run.initial_sequence = node.journal.last.sequence
    node.outbox.begin_shadow(SHADOW)
    node.outbox.set_outbox_floor(SHADOW, 1)
    running.run(run)
    for number in (2, 3):
        run_batch(node, app)
        assert count(node, LIVE, number) == number * EVENTS_OF_BATCH
        assert count(node, SHADOW, number) == 10 * (number - 1) * EVENTS_OF_BATCH
    return run


def test_promoted_query_continues_the_state_of_its_shadow(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(COUNTS)
    running, spec = runner(app), beside(app)
    run = begin(node, app, spec, running)
    promoted = run_command(spec, lineage="journal:9", mark=1, sequence=run.initial_sequence)
    promoted.application = run.application
    promoted.adopts, promoted.adopts_lineage = SHADOW, run.lineage
    running.run(promoted)
    run_batch(node, app)
    assert count(node, LIVE, 4) == 10 * 3 * EVENTS_OF_BATCH
    assert not (node.checkpoints / SHADOW).exists()
    assert not node.seen.failed


def test_shadow_of_a_function_has_a_module_of_its_own(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    (node.directory / "rules.py").write_text(RULES)
    app = application(FUNCTION)
    begin(node, app, beside(app), runner(app))
    assert not node.seen.failed
