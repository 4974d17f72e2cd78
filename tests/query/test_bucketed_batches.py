"""Real Spark whose tasks write the buckets of a sink into a real PostgreSQL."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from ha_engine.buckets.place import Table
from ha_engine.buckets.task import OUTCOME_DDL, write_partition
from ha_engine.errors import SinkRefused
from ha_engine.outbox import Admission
from ha_engine.outbox.batch_file import WRITTEN_BY_TASKS
from ha_engine.postgres.bucket_store import PostgresBucketStore
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.sink_table import Target
from ha_engine.publish.sinks.buckets import BucketedSink
from ha_engine.query.application import PostgresSinkSpec, QuerySpec
from ha_engine.query.bucket_writer import _hashed
from ha_engine.query.runner import QueryRunner
from ha_engine.v1 import local_pb2 as pb
from tests.publish.batches import GROUP, execute, rows_of, soon
from tests.publish.bucketed import stages
from tests.query.local_node import LocalNode, run_command
from tests.query.test_batches import Applications, Runners
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.rotates("file")]

START = datetime(2013, 1, 1, tzinfo=UTC)
COUNTS = """
  counts:
    sql: SELECT key, count(*) AS n, sum(value) AS total FROM events GROUP BY key
    output_mode: update
    standby: warm
    sinks:
      - {name: table, type: postgres, table: counts, mode: upsert, key: [key], auto_create: true,
         buckets: 3}
"""
ALL_TYPES = """
  copies:
    sql: >
      SELECT key, value, ratio, text, at, cast(value AS decimal(10, 2)) AS price,
        map('x', value) AS m, array(value) AS l, struct(key, value) AS s, _event_id
      FROM events
    standby: warm
    sinks: [{name: table, type: postgres, table: copies, auto_create: true, buckets: 2}]
"""


def event(key: str, value: int | None = 1, **more: Any) -> dict[str, Any]:
    return {"at": START + timedelta(minutes=value or 0), "key": key, "value": value, **more}


class Node:
    """The part of a node that prepares and claims the sink of a query."""

    def __init__(self, node: LocalNode, url: str, spec: QuerySpec) -> None:
        (sink,) = spec.sinks
        assert isinstance(sink, PostgresSinkSpec)
        assert sink.buckets is not None
        self.node, self.url, self.query, self.spec = node, url, spec.name, sink
        target = Target(sink.table, sink.mode, sink.key, sink.auto_create)
        key = LedgerKey("default", spec.name, sink.name)
        store = PostgresBucketStore(open_engine(url), key, target, sink.buckets, atomic=sink.atomic)
        self.sink = BucketedSink(sink.name, store, sink.key, lambda: 100)

    def claim(self, epoch: int) -> int:
        wait_until(lambda: self.query in self.node.seen.planned, within=120)
        self.sink.prepare(self.node.seen.planned[self.query])
        through = self.sink.claim(epoch, 0, GROUP, soon())
        self.node.buckets[self.query, epoch] = pb.LocateBucketsReply(
            timeout=10,
            group="default",
            group_id=GROUP,
            sink=self.spec.name,
            key=self.spec.key,
            buckets=self.spec.buckets,
            table=pb.BucketTable(
                url=self.url,
                connect_timeout=5,
                name=self.spec.table,
                mode=self.spec.mode,
                atomic=self.spec.atomic,
            ),
        )
        return through


def begun(node: LocalNode, url: str, spec: QuerySpec, queries: QueryRunner) -> Node:
    """Start a query for epoch 1, and claim its sink."""
    sink = Node(node, url, spec)
    queries.run(command(spec, 1))
    sink.claim(1)
    return sink


def command(spec: QuerySpec, epoch: int) -> pb.RunQuery:
    run = run_command(spec)
    run.epoch, run.buckets = epoch, True
    return run


def ledger(url: str) -> list[tuple[object, ...]]:
    return rows_of(url, "SELECT epoch, batch FROM ha_engine_ledger ORDER BY sink")


def counts(url: str) -> list[tuple[object, ...]]:
    return rows_of(url, "SELECT key, n, total FROM counts ORDER BY key")


@pytest.mark.nightly("test_bucketed_sink has it without Spark")
def test_tasks_write_each_batch_once_and_the_outbox_has_no_rows(
    node: LocalNode, application: Applications, runner: Runners, database_url: str
) -> None:
    app = application(COUNTS)
    spec, keys = app.queries["counts"], [f"k{number}" for number in range(20)]
    queries = runner(app)
    sink = begun(node, database_url, spec, queries)
    for _ in range(2):
        node.append(app.streams["events"], [event(key) for key in keys])
        node.mark("counts")
    node.mark("counts")
    assert node.admitted("counts", 3).schema.equals(WRITTEN_BY_TASKS.schema)
    assert counts(database_url) == [(key, 2, 2) for key in sorted(keys)]
    assert ledger(database_url) == [(1, 3)] * 3
    # The checkpoint is lost, and all batches run again.
    queries.halt("counts")
    before = len(node.seen.verdicts)
    run = command(spec, 2)
    run.lineage = "another"
    sink.claim(2)
    queries.run(run)

    def run_again() -> list[int]:
        verdicts = node.seen.verdicts[before:]
        return [number for _, number, verdict in verdicts if verdict is Admission.DONE]

    wait_until(lambda: len(run_again()) == 3 or node.seen.failed, within=120)
    assert run_again() == [1, 2, 3]
    assert counts(database_url) == [(key, 2, 2) for key in sorted(keys)]
    assert ledger(database_url) == [(2, 3)] * 3
    assert not node.seen.failed


def test_batch_that_failed_in_one_bucket_is_completed(
    node: LocalNode, application: Applications, runner: Runners, database_url: str
) -> None:
    app = application(COUNTS)
    spec, keys = app.queries["counts"], [f"k{number}" for number in range(20)]
    queries = runner(app)
    sink = begun(node, database_url, spec, queries)
    execute(database_url, "ALTER TABLE counts ADD CONSTRAINT odd CHECK (key <> 'k7')")
    node.append(app.streams["events"], [event(key) for key in keys])
    node.mark("counts")
    failed = node.failure("counts")
    assert (failed.number, failed.by_host) == (1, False)
    assert "of sink table" in failed.reason
    assert "odd" in failed.reason
    (missing,) = (n for n in range(3) if ledger(database_url)[n] == (1, 0))
    assert ledger(database_url)[missing - 1] == (1, 1)
    execute(database_url, "ALTER TABLE counts DROP CONSTRAINT odd")
    node.seen.failed.clear()
    assert sink.claim(2) == 0
    queries.run(command(spec, 2))
    node.admitted("counts", 1)
    assert counts(database_url) == [(key, 1, 1) for key in sorted(keys)]
    assert ledger(database_url) == [(2, 1)] * 3


def test_atomic_batch_that_one_row_failed_is_not_visible_and_then_completed(
    node: LocalNode, application: Applications, runner: Runners, database_url: str
) -> None:
    app = application(COUNTS.replace("buckets: 3", "buckets: 3, atomic: batch"))
    spec, keys = app.queries["counts"], [f"k{number}" for number in range(20)]
    queries = runner(app)
    sink = begun(node, database_url, spec, queries)
    execute(database_url, "ALTER TABLE counts ADD CONSTRAINT odd CHECK (key <> 'k7')")
    node.append(app.streams["events"], [event(key) for key in keys])
    node.mark("counts")
    failed = node.failure("counts")
    assert (failed.number, failed.by_host) == (1, False)
    assert "odd" in failed.reason
    assert counts(database_url) == []
    execute(database_url, "ALTER TABLE counts DROP CONSTRAINT odd")
    node.seen.failed.clear()
    assert sink.claim(2) == 0
    queries.run(command(spec, 2))
    node.admitted("counts", 1)
    node.mark("counts")
    node.admitted("counts", 2)
    assert counts(database_url) == [(key, 1, 1) for key in sorted(keys)]
    # The checkpoint is lost. The state of the batches that the sink has is computed again.
    queries.halt("counts")
    run = command(spec, 3)
    run.lineage = "another"
    assert sink.claim(3) == 2
    queries.run(run)
    node.append(app.streams["events"], [event(key) for key in keys])
    node.mark("counts")
    node.admitted("counts", 3)
    assert counts(database_url) == [(key, 2, 2) for key in sorted(keys)]
    assert ledger(database_url) == [(3, 3)]
    assert stages(database_url) == []


@pytest.mark.nightly("test_bucketed_sink has it without Spark")
def test_query_of_a_former_active_is_fenced_and_no_batch_is_blamed(
    node: LocalNode, application: Applications, runner: Runners, database_url: str
) -> None:
    app = application(COUNTS)
    spec = app.queries["counts"]
    queries = runner(app)
    sink = begun(node, database_url, spec, queries)
    sink.claim(2)
    node.append(app.streams["events"], [event("a")])
    node.mark("counts")
    failed = node.failure("counts")
    assert failed.by_host
    assert "owned by epoch 2" in failed.reason
    assert node.outbox.last_admitted("counts") == 0
    assert counts(database_url) == []
    node.seen.failed.clear()
    queries.run(command(spec, 3))
    failed = node.failure("counts")
    assert failed.by_host
    assert "not claimed yet" in failed.reason


def test_insert_streams_all_types_as_the_node_writes_them(
    node: LocalNode, application: Applications, runner: Runners, database_url: str
) -> None:
    app = application(ALL_TYPES)
    begun(node, database_url, app.queries["copies"], runner(app))
    some = [
        event("a", 1, ratio=0.5, text='"x",\n\\.'),
        event("b", None, ratio=float("nan"), text=None),
        event("c", 3, ratio=-0.0, text=""),
    ]
    node.append(app.streams["events"], some)
    node.mark("copies")
    node.admitted("copies", 1)
    found = rows_of(
        database_url,
        "SELECT key, value, ratio::text, text, at, price::text, m, l, s FROM copies ORDER BY key",
    )
    assert found == [
        ("a", 1, "0.5", '"x",\n\\.', START + timedelta(minutes=1), "1.00", {"x": 1}, [1],
         {"key": "a", "value": 1}),
        ("b", None, "NaN", None, START, None, {"x": None}, [None], {"key": "b", "value": None}),
        ("c", 3, "-0", "", START + timedelta(minutes=3), "3.00", {"x": 3}, [3],
         {"key": "c", "value": 3}),
    ]  # fmt: skip


@pytest.mark.nightly("changes seldom")
def test_url_of_the_database_is_in_no_plan_and_no_setting_of_spark(
    node: LocalNode, application: Applications, runner: Runners, database_url: str, spark: Any
) -> None:
    app = application(COUNTS)
    spec = app.queries["counts"]
    queries = runner(app)
    begun(node, database_url, spec, queries)
    node.append(app.streams["events"], [event("a")])
    node.mark("counts")
    node.admitted("counts", 1)
    writer = queries._running["counts"].writer._buckets
    assert writer is not None
    place = writer.place()
    assert isinstance(place.target, Table)
    assert place.target.url == database_url
    secret = database_url.rpartition("?")[2]
    tasks = spark.range(1).mapInArrow(partial(write_partition, place, 1, {}, None), OUTCOME_DDL)
    assert secret not in str(tasks._jdf.queryExecution().toString())
    assert secret not in repr(place)
    assert secret not in str(spark.sparkContext.getConf().getAll())
    assert secret not in " ".join(os.environ.values())


def test_row_without_a_key_is_divided_by_the_columns_that_spark_hashes() -> None:
    from pyspark.sql.types import ArrayType, IntegerType, MapType, StructType

    number = IntegerType()
    kinds = {"a": number, "m": MapType(number, number), "b`c": number}
    kinds["l"] = ArrayType(kinds["m"])
    schema = StructType()
    for name, kind in kinds.items():
        schema.add(name, kind)
    assert _hashed(schema, ()) == ["`a`", "`b``c`"]
    assert _hashed(schema, ("a",)) == ["`a`"]
    with pytest.raises(SinkRefused):
        _hashed(schema, ("m",))


def test_a_batch_is_not_written_if_a_topic_changed_while_its_tasks_read(
    node: LocalNode, application: Applications, runner: Runners, database_url: str
) -> None:
    app = application(COUNTS)
    spec = app.queries["counts"]
    node.buckets_located_max = 1
    begun(node, database_url, spec, runner(app))
    node.append(app.streams["events"], [event("a")])
    node.mark("counts")
    wait_until(lambda: node.seen.failed, within=120)
    assert "another one" in node.seen.failed["counts"].reason
    assert counts(database_url) == []
