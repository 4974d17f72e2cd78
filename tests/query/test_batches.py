"""Real Spark over a real journal and socket: marks divide records into batches."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest

from ha_engine.errors import DiskFailed
from ha_engine.outbox import Admission
from ha_engine.outbox.batch_file import digest_of_table
from ha_engine.query.application import StreamApplication, load_application
from ha_engine.query.application_versions import CHANGED, PythonChanged
from ha_engine.query.failure import disk_failure, is_of_the_host
from ha_engine.query.runner import QueryRunner
from tests.query.conftest import READ_PARALLELISM
from tests.query.local_node import LocalNode, run_command
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

Applications = Callable[[str], StreamApplication]
Runners = Callable[[StreamApplication], QueryRunner]
START = datetime(2013, 1, 1, tzinfo=UTC)


def event(minute: int, key: str = "a", value: int | None = 1, **more: Any) -> dict[str, Any]:
    return {"at": START + timedelta(minutes=minute), "key": key, "value": value, **more}


FILTER = """
  filter:
    sql: SELECT key, value, _received_at, _event_id FROM events WHERE value > 1
"""
WINDOWS = """
  windows:
    sql: >
      SELECT window.start AS hour, key, count(*) AS n, avg(ratio) AS mean FROM events
      GROUP BY window(at, '1 hour'), key
"""
UPDATES = WINDOWS.replace("windows:", "updates:") + "    output_mode: update\n"
TASKS = """
  tasks:
    sql: SELECT spark_partition_id() AS task FROM events
    deterministic: false
"""
JOIN = """
  join:
    sql: >
      SELECT e.key, e.at, e.value, o.weight FROM events e JOIN others o
      ON e.key = o.key AND e.at = o.at
"""


def test_filter_query_gets_exactly_the_records_up_to_each_mark(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(FILTER)
    events = app.streams["events"]
    runner(app).run(run_command(app.queries["filter"]))
    node.append(events, [event(0, value=1), event(1, value=2)], [event(2, value=3)])
    node.mark("filter")
    node.append(events, [event(3, value=4)])
    node.mark("filter")
    first, second = node.admitted("filter", 1), node.admitted("filter", 2)
    assert first.column("value").to_pylist() == [2, 3]
    assert first.column("_event_id").to_pylist() == ["1-1", "2-0"]
    assert second.column("_event_id").to_pylist() == ["4-0"]
    assert second.column("_received_at").to_pylist()[0].year == 2013
    assert node.seen.planned["filter"].equals(first.schema)
    wait_until(lambda: ("filter", 2) in node.seen.digests)
    assert node.seen.digests["filter", 1] == digest_of_table(first)


def test_progress_of_a_batch_names_its_mark(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(UPDATES)
    runner(app).run(run_command(app.queries["updates"]))
    node.append(app.streams["events"], [event(0), event(1, "b")])
    node.mark("updates")
    node.admitted("updates", 1)
    # Spark may still report the last batch of a query of an earlier test.
    wait_until(lambda: "updates" in dict(node.seen.progress))
    progress = next(progress for name, progress in node.seen.progress if name == "updates")
    assert (progress.number, progress.input_rows) == (1, 2)
    assert progress.state_rows == 2
    assert progress.state_partitions == 1
    assert progress.state_bytes > 0


def test_progress_says_that_one_key_has_most_rows(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(JOIN)
    runner(app).run(run_command(app.queries["join"], partitions=[(0, 4)]))
    node.append(app.streams["events"], [event(0)] * 30)
    node.append(app.streams["events"], [event(0, key) for key in "bcdefgh"])
    node.mark("join")
    node.admitted("join", 1)
    wait_until(lambda: "join" in dict(node.seen.progress))
    progress = next(progress for name, progress in node.seen.progress if name == "join")
    assert progress.state_partitions == 4
    busiest = progress.skew * 37 / 4
    assert busiest == pytest.approx(round(busiest))
    assert 30 <= busiest <= 37


def test_an_empty_mark_closes_a_window_while_the_input_pauses(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(WINDOWS)
    runner(app).run(run_command(app.queries["windows"]))
    node.append(app.streams["events"], [event(0), event(1)])
    node.append(app.streams["events"], [event(61)])
    node.mark("windows")
    assert node.admitted("windows", 1).num_rows == 0
    node.mark("windows")
    assert node.admitted("windows", 2).to_pylist() == [
        {"hour": START, "key": "a", "n": 2, "mean": None}
    ]


def test_an_update_query_yields_the_changed_groups_of_each_batch(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(UPDATES)
    runner(app).run(run_command(app.queries["updates"]))
    node.append(app.streams["events"], [event(0, ratio=1.0), event(1, "b", ratio=5.0)])
    node.mark("updates")
    node.append(app.streams["events"], [event(2, ratio=2.0)])
    node.mark("updates")
    assert node.admitted("updates", 1).num_rows == 2
    assert node.admitted("updates", 2).select(["key", "n", "mean"]).to_pylist() == [
        {"key": "a", "n": 2, "mean": 1.5}
    ]


def test_both_sources_of_a_join_have_the_same_mark_in_every_batch(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(JOIN)
    events, others = app.streams["events"], app.streams["others"]
    runner(app).run(run_command(app.queries["join"]))
    for minute in range(6):
        node.append(events, [event(minute, value=minute)])
        node.mark("join")
        row = {"at": START + timedelta(minutes=minute), "key": "a", "weight": minute / 2}
        node.append(others, [row])
        node.mark("join")
    node.admitted("join", 12)
    rows = [row for n in range(1, 13) for row in node.admitted("join", n).to_pylist()]
    assert [(row["value"], row["weight"]) for row in rows] == [(m, m / 2) for m in range(6)]
    logs = [
        path for path in (node.checkpoints / "join" / "offsets").iterdir() if path.name.isdigit()
    ]
    assert len(logs) == 12
    for log in logs:
        left, right = (json.loads(line) for line in log.read_text().splitlines()[2:])
        assert left == right


def test_two_queries_run_side_by_side_in_one_session(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(FILTER + UPDATES)
    running = runner(app)
    running.run(run_command(app.queries["filter"]))
    running.run(run_command(app.queries["updates"]))
    for minute in range(4):
        node.append(app.streams["events"], [event(minute, value=2)])
        node.mark("filter", "updates")
    assert node.admitted("filter", 4).num_rows == 1
    assert node.admitted("updates", 4).column("n").to_pylist() == [4]


def test_large_range_read_by_several_tasks_gives_the_same_rows(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(UPDATES + FILTER)
    events = app.streams["events"]
    rows = [event(0, str(n % 10), value=2, ratio=n / 7, text="x" * 200) for n in range(5_000)]
    node.append(events, *[rows] * 10)
    running = runner(app)
    running.run(run_command(app.queries["updates"]))
    running.run(run_command(app.queries["filter"]))
    node.mark("updates", "filter")
    table = node.admitted("updates", 1)
    assert sum(table.column("n").to_pylist()) == 50_000
    ids = node.admitted("filter", 1).column("_event_id").to_pylist()
    assert ids == [f"{record}-{row}" for record in range(1, 11) for row in range(5_000)]
    running.halt("updates")
    running.run(run_command(app.queries["updates"], lineage="another"))
    wait_until(lambda: ("updates", 1, Admission.DONE) in node.seen.verdicts, within=30)


def test_number_of_tasks_of_a_batch_does_not_depend_on_the_host(
    spark: Any, node: LocalNode, application: Applications, runner: Runners
) -> None:
    assert spark.sparkContext.defaultParallelism != READ_PARALLELISM
    app = application(TASKS)
    rows = [event(0, text="x" * 300) for _ in range(5_000)]
    node.append(app.streams["events"], *[rows] * 12)
    node.mark("tasks")
    runner(app).run(run_command(app.queries["tasks"]))
    tasks = node.admitted("tasks", 1).column("task").unique().to_pylist()
    assert sorted(tasks) == list(range(READ_PARALLELISM))


def test_poisoned_row_is_reported_with_its_batch_and_a_skip_passes_it(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(
        "  cast: {sql: 'SELECT key, CAST(text AS INT) AS number FROM events'}\n" + FILTER
    )
    events = app.streams["events"]
    running = runner(app)
    running.run(run_command(app.queries["cast"]))
    running.run(run_command(app.queries["filter"]))
    node.append(events, [event(0, text="1")])
    node.mark("cast", "filter")
    node.append(events, [event(0, text="2"), event(0, text="broken", value=9)])
    node.mark("cast", "filter")
    failed = node.failure("cast")
    assert failed.number == 2
    assert "CAST_INVALID_INPUT" in failed.reason
    assert "'broken'" in failed.reason
    assert "\n" not in failed.reason
    assert node.admitted("filter", 2).column("value").to_pylist() == [9]
    node.seen.failed.clear()
    node.skipped.add(("cast", 2))
    node.append(events, [event(0, text="3")])
    node.mark("cast")
    running.run(run_command(app.queries["cast"]))
    assert node.admitted("cast", 2).num_rows == 0
    assert node.admitted("cast", 3).column("number").to_pylist() == [3]


def test_a_python_module_that_exits_fails_only_its_query(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    (node.directory / "mine.py").write_text("import sys\nsys.exit('no licence')\n")
    app = application("  python: {function: 'mine:run', streams: [events]}\n")
    runner(app).run(run_command(app.queries["python"]))
    assert "mine:run raised SystemExit: no licence" in node.failure("python").reason


def test_a_python_function_fails_with_its_own_exception(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    (node.directory / "mine.py").write_text(
        "from pyspark.sql.functions import udf\n"
        "def tenth(value):\n    return 10 // value\n"
        "def run(streams):\n"
        "    return streams['events'].select(udf(tenth, 'int')('value').alias('tenth'))\n"
    )
    app = application("  python: {function: 'mine:run', streams: [events]}\n")
    runner(app).run(run_command(app.queries["python"]))
    node.append(app.streams["events"], [event(0, value=5)])
    node.mark("python")
    assert node.admitted("python", 1).column("tenth").to_pylist() == [2]
    node.append(app.streams["events"], [event(0, value=0)])
    node.mark("python")
    failed = node.failure("python")
    assert failed.number == 2
    assert failed.reason.startswith("ZeroDivisionError")


def test_a_query_that_spark_ends_by_itself_is_reported(
    spark: Any, node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(FILTER)
    running = runner(app)
    running.run(run_command(app.queries["filter"]))
    node.mark("filter")
    node.admitted("filter", 1)
    for query in spark.streams.active:
        query.stop()
    assert "without a request" in node.failure("filter", within=30).reason


@pytest.mark.parametrize(
    "log", ["commits", pytest.param("offsets", marks=pytest.mark.nightly("as with commits"))]
)
def test_query_replays_the_journal_after_its_checkpoint_was_damaged(
    node: LocalNode, application: Applications, runner: Runners, log: str
) -> None:
    app = application(WINDOWS)
    command, queries = run_command(app.queries["windows"]), runner(app)
    queries.run(command)
    for minute in range(3):
        node.append(app.streams["events"], [event(minute)])
        node.mark("windows")
    node.admitted("windows", 3)
    wait_until(lambda: (node.checkpoints / "windows/commits/2").exists())
    queries.halt("windows")
    newest = node.checkpoints / "windows" / log / "2"
    newest.write_bytes(newest.read_bytes().replace(b"2", b"3").replace(b"0", b"1"))
    queries.run(command)
    failed = node.failure("windows")
    assert (failed.number, failed.by_host) == (0, True)
    assert "Checksum error" in failed.reason
    node.seen.failed.clear()
    queries.run(command)  # as a node does after a failure that the host caused
    node.mark("windows")
    node.admitted("windows", 4)
    said = [(number, verdict) for _, number, verdict in node.seen.verdicts]
    assert [number for number, verdict in said if verdict is Admission.DONE] == [1, 2, 3]
    assert Admission.MISMATCH not in dict(said).values()


def test_query_begins_though_spark_was_killed_while_it_planned_the_first_batch(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(FILTER)
    command, queries = run_command(app.queries["filter"]), runner(app)
    queries.run(command)
    queries.halt("filter")
    for name in (".0.519c6bbd.tmp", "..0.519c6bbd.tmp.crc"):
        (node.checkpoints / "filter/offsets" / name).touch()
    queries.run(command)
    node.mark("filter")
    node.admitted("filter", 1)
    assert not node.seen.failed


def test_checkpoint_older_than_the_journal_is_set_aside_and_its_state_is_lost(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    """A loss of power left an old checkpoint, and the journal has trimmed the marks after it. The
    query must not wait forever for a mark that no longer exists."""
    app = application(FILTER)
    command, queries = run_command(app.queries["filter"]), runner(app)
    queries.run(command)
    node.mark("filter")
    node.admitted("filter", 1)
    wait_until(lambda: (node.checkpoints / "filter/commits/0").exists())
    queries.halt("filter")
    node.trimmed_through = 5
    queries.run(command)
    failed = node.failure("filter")
    assert (failed.number, failed.by_host) == (0, True)
    assert "CheckpointTooOld: the checkpoint ends at batch 1" in failed.reason
    node.seen.failed.clear()
    command.must_resume = True  # as a node says that has trimmed its journal
    queries.run(command)
    failed = node.failure("filter")
    assert (failed.number, failed.by_host) == (0, True), "a snapshot may come"
    assert "the query's checkpoint is lost" in failed.reason


def test_full_disk_ends_the_process_without_blaming_a_batch(
    node: LocalNode, application: Applications, runner: Runners, ended: list[BaseException]
) -> None:
    app = application(FILTER)
    runner(app).run(run_command(app.queries["filter"]))
    pending = node.outbox_directory / "filter" / "pending"
    (pending / f"1.{node.incarnation}.arrow").symlink_to("/dev/full")
    node.mark("filter")
    wait_until(lambda: ended, within=60)
    assert isinstance(ended[0], DiskFailed)
    assert "No space left" in str(ended[0])
    assert not node.seen.failed


def test_unwritable_directory_at_the_start_ends_the_process(
    node: LocalNode, application: Applications, runner: Runners, ended: list[BaseException]
) -> None:
    node.checkpoints.write_text("a file where a directory must be")
    app = application(FILTER)
    runner(app).run(run_command(app.queries["filter"]))
    assert isinstance(ended[0], DiskFailed)
    assert not node.seen.failed


def test_full_disk_in_spark_is_distinguished_from_an_error_of_a_row(spark: Any) -> None:
    with pytest.raises(Exception, match="No space left") as full:
        spark.sparkContext._jvm.java.io.FileOutputStream("/dev/full").write(1)
    assert isinstance(disk_failure(full.value), DiskFailed)
    with pytest.raises(Exception, match="No space left") as poisoned:
        spark.sql("SELECT CAST('IOException: No space left on device' AS INT)").collect()
    assert disk_failure(poisoned.value) is None


def test_slow_python_worker_is_distinguished_from_an_error_of_a_row(
    spark: Any,
) -> None:
    """Spark waits ten seconds for the worker, however busy the machine is, and then throws this."""
    jvm, said = spark.sparkContext._jvm, "Python worker failed to connect back."
    thrown = jvm.org.apache.spark.SparkException(said, jvm.java.net.SocketTimeoutException("late"))
    with pytest.raises(Exception, match=said) as slow:
        jvm.java.util.concurrent.CompletableFuture.failedFuture(thrown).get()
    assert is_of_the_host(slow.value)
    with pytest.raises(Exception, match=said) as poisoned:
        spark.sql(f"SELECT raise_error('SparkException: {said}')").collect()
    assert not is_of_the_host(poisoned.value)


def test_edited_file_does_not_change_the_running_old_version(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(FILTER)
    running = runner(app)
    application(FILTER.replace("value > 1", "value > 2"))
    running.run(run_command(app.queries["filter"]))
    assert node.failure("filter").reason == f"ApplicationChanged: {CHANGED}"
    assert not node.seen.planned


def test_new_version_replaces_a_running_old_version(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(FILTER)
    running = runner(app)
    running.run(run_command(app.queries["filter"]))
    node.append(app.streams["events"], [event(0, value=2), event(0, value=3)])
    node.mark("filter")
    assert node.admitted("filter", 1).num_rows == 2
    # Otherwise Spark would run batch 1 again, under the new version.
    wait_until(lambda: (node.checkpoints / "filter" / "commits" / "0").exists())
    app = application(FILTER.replace("value > 1", "value > 2"))
    running.run(run_command(app.queries["filter"]))
    node.append(app.streams["events"], [event(1, value=2), event(1, value=3)])
    node.mark("filter")
    assert node.admitted("filter", 2).column("value").to_pylist() == [3]


def test_only_a_fresh_process_runs_a_changed_python_function(
    node: LocalNode, application: Applications, runner: Runners, ended: list[BaseException]
) -> None:
    module = node.directory / "fresh.py"
    module.write_text("def run(streams):\n    return streams['events'].select('key')\n")
    app = application("  python: {function: 'fresh:run', streams: [events]}\n")
    running = runner(app)
    running.run(run_command(app.queries["python"]))
    wait_until(lambda: "python" in node.seen.planned)
    module.write_text("def run(streams):\n    return streams['events'].select('at')\n")
    running.run(run_command(app.queries["python"], lineage="restarted"))
    assert "fresh.py changed" in node.failure("python").reason
    app = load_application(node.directory / "application.yaml")
    running.run(run_command(app.queries["python"]))
    assert isinstance(ended[0], PythonChanged)
    node.seen.failed.clear()
    runner(app).run(run_command(app.queries["python"]))
    assert node.seen.planned["python"].names == ["at"]
    assert not node.seen.failed


def test_a_query_that_cannot_be_planned_is_reported_and_the_others_start(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application("  bad: {sql: SELECT nope FROM events}\n" + FILTER)
    running = runner(app)
    running.run(run_command(app.queries["bad"]))
    assert "nope" in node.failure("bad").reason
    assert node.failure("bad").number == 0
    running.run(run_command(app.queries["filter"]))
    node.mark("filter")
    assert node.admitted("filter", 1).num_rows == 0


def test_a_refused_query_does_not_start(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    node.refusals["filter"] = "the table has another column"
    app = application(FILTER)
    runner(app).run(run_command(app.queries["filter"]))
    assert "filter" in node.seen.planned
    assert not (node.checkpoints / "filter").exists()


def test_a_checkpoint_with_another_stamp_is_set_aside(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(UPDATES)
    running = runner(app)
    running.run(run_command(app.queries["updates"]))
    node.append(app.streams["events"], [event(0)])
    node.mark("updates")
    node.admitted("updates", 1)
    running.run(
        run_command(
            app.queries["updates"], lineage="t", mark=1, sequence=node.journal.last.sequence
        )
    )
    node.append(app.streams["events"], [event(1)])
    node.mark("updates")
    assert node.admitted("updates", 2).column("n").to_pylist() == [1]
    wait_until(lambda: not list(node.checkpoints.glob("*set-aside*")))


def test_halting_leaves_no_source_worker_behind(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    def is_source(process: psutil.Process) -> bool:
        try:
            return "streaming_source_runner" in " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            return False

    def workers() -> list[psutil.Process]:
        children = psutil.Process(os.getpid()).children(recursive=True)
        return [one for one in children if is_source(one)]

    app = application(FILTER)
    running = runner(app)
    before = len(workers())
    running.run(run_command(app.queries["filter"]))
    node.mark("filter")
    node.admitted("filter", 1)
    assert len(workers()) == before + 1
    running.halt("filter")
    wait_until(lambda: len(workers()) == before)


def test_halt_during_a_batch_neither_overflows_a_stack_nor_logs_one(
    spark: Any,
    node: LocalNode,
    application: Applications,
    runner: Runners,
    caplog: pytest.LogCaptureFixture,
) -> None:
    began = node.directory / "began"
    (node.directory / "endless.py").write_text(
        "import pathlib, time\n"
        "from pyspark.sql.functions import udf\n"
        "def wait(value):\n"
        f"    pathlib.Path({str(began)!r}).touch()\n"
        "    time.sleep(3600)\n"
        "def run(streams):\n"
        "    return streams['events'].select(udf(wait, 'int')('value').alias('never'))\n"
    )
    app = application("  endless: {function: 'endless:run', streams: [events]}\n")
    running = runner(app)
    running.run(run_command(app.queries["endless"]))
    (streaming,) = spark.streams.active
    node.append(app.streams["events"], [event(0)])
    node.mark("endless")
    wait_until(began.exists)
    running.halt("endless")
    # The error of a thread whose stack overflowed is lost.
    assert "BatchFailed" in str(streaming.exception())
    assert [one for one in caplog.records if one.exc_info] == []


def test_query_keeps_running_over_a_restart_of_the_node_process(
    node: LocalNode, application: Applications, runner: Runners
) -> None:
    app = application(UPDATES)
    running = runner(app)
    running.run(run_command(app.queries["updates"]))
    node.append(app.streams["events"], [event(0)])
    node.mark("updates")
    node.admitted("updates", 1)
    node.stop()
    node.append(app.streams["events"], [event(1)])
    node.mark("updates")
    node.start()
    assert node.admitted("updates", 2).column("n").to_pylist() == [2]
    node.seen.planned.clear()
    running.run(run_command(app.queries["updates"]))
    assert "updates" in node.seen.planned
