"""A sink with buckets whose batches are atomic: what a task and the driver do, on a real
PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from sqlalchemy import text

from ha_engine.buckets import atomic
from ha_engine.buckets.place import BucketPlace
from ha_engine.buckets.task import stage_bucket
from ha_engine.errors import Fenced, SinkRefused, SinkUnavailable
from ha_engine.outbox.batch_file import WRITTEN_BY_TASKS
from ha_engine.postgres.bucket_store import PostgresBucketStore
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.sink_table import Target
from tests.publish import bucketed
from tests.publish.batches import GROUP, QUERY, batch_of, execute, open_sink, rows_of, soon
from tests.publish.bucketed import INSERT, MORE, ROWS, UPSERT, ledger, parts, stages, visible
from tests.waiting import wait_until

pytestmark = pytest.mark.rotates("files")

COLUMNS = ROWS.column_names
sink_of = partial(bucketed.sink_of, atomic=True)
place_of = partial(bucketed.place_of, atomic=True)


def claimed(
    url: str, target: Target = INSERT, epoch: int = 1, schema: pa.Schema = ROWS.schema
) -> BucketPlace:
    """Prepare and claim the sink as a node, and return the place of its tasks."""
    sink = sink_of(url, target)
    sink.prepare(schema)
    sink.claim(epoch, 0, GROUP, soon())
    return place_of(url, target, epoch)


def begun(place: BucketPlace, number: int = 1) -> str:
    stage = atomic.begin(place, number, COLUMNS)
    assert stage is not None
    return stage


def write(place: BucketPlace, stage: str, task: int, *tables: pa.Table) -> dict[int, int]:
    """Write rows as a task, and return what its outcome says."""
    size = sum(table.num_rows for table in tables)
    return {task: stage_bucket(place, stage, task, size, parts(*tables))}


def written_batch(place: BucketPlace, number: int, *buckets: pa.Table) -> None:
    """Write a whole batch, with a task for each bucket."""
    stage, staged = begun(place, number), dict[int, int]()
    for task, rows in enumerate(buckets):
        staged |= write(place, stage, task, rows)
    atomic.commit(place, number, COLUMNS, stage, staged)


def test_rows_of_all_tasks_and_the_ledger_appear_at_once(database_url: str) -> None:
    place = claimed(database_url)
    stage = begun(place)
    staged = write(place, stage, 7, ROWS, ROWS.slice(0, 0), ROWS) | write(place, stage, 8, MORE)
    staged |= write(place, stage, 9)
    assert staged == {7: 4, 8: 1, 9: 0}
    assert visible(database_url) == []
    assert ledger(database_url) == [("table#batch", 1, 0)]
    atomic.commit(place, 1, COLUMNS, stage, staged)
    assert visible(database_url) == [("a", 1), ("a", 1), ("b", 2), ("b", 2), ("c", 3)]
    assert ledger(database_url) == [("table#batch", 1, 1)]
    assert stages(database_url) == []


def test_upsert_replaces_rows_of_earlier_batches(database_url: str) -> None:
    place = claimed(database_url, UPSERT)
    again = pa.table({"k": ["a", "b"], "n": pa.array([7, 0], pa.int64())})
    stage = begun(place)
    staged = write(place, stage, 1, ROWS, again) | write(place, stage, 2, MORE)
    assert staged == {1: 2, 2: 1}  # one row of each key
    atomic.commit(place, 1, COLUMNS, stage, staged)
    assert visible(database_url) == [("a", 7), ("b", 2), ("c", 3)]
    written_batch(place, 2, again)
    assert visible(database_url) == [("a", 7), ("b", 0), ("c", 3)]


def test_upsert_of_key_columns_alone_keeps_the_rows_that_are_there(database_url: str) -> None:
    target = replace(UPSERT, key=("k", "n"))
    place = claimed(database_url, target)
    written_batch(place, 1, ROWS)
    written_batch(place, 2, ROWS, MORE)
    assert visible(database_url) == [("a", 1), ("b", 2), ("c", 3)]


def test_batch_without_rows_moves_the_ledger(database_url: str) -> None:
    place = claimed(database_url)
    atomic.commit(place, 1, COLUMNS, None, {})
    assert ledger(database_url) == [("table#batch", 1, 1)]


def test_batch_that_the_sink_has_is_not_begun_and_not_committed_again(database_url: str) -> None:
    place = claimed(database_url)
    stage = begun(place)
    staged = write(place, stage, 1, ROWS)
    written_batch(place, 1, ROWS)
    assert atomic.begin(place, 1, COLUMNS) is None
    atomic.commit(place, 1, COLUMNS, stage, staged)
    assert visible(database_url) == [("a", 1), ("b", 2)]


# -- tasks and drivers that come late --------------------------------------------------------------


def test_rows_of_a_task_that_ran_twice_get_in_once(database_url: str) -> None:
    """Spark lost the executor of task 1 and ran its bucket again, while task 1 still wrote."""
    place = claimed(database_url)
    stage = begun(place)
    write(place, stage, 1, ROWS)
    staged = write(place, stage, 2, ROWS)
    atomic.commit(place, 1, COLUMNS, stage, staged)
    assert visible(database_url) == [("a", 1), ("b", 2)]


def test_rows_of_an_earlier_attempt_do_not_get_in(database_url: str) -> None:
    place = claimed(database_url)
    earlier = begun(place)
    write(place, earlier, 1, MORE)
    stage = begun(place)
    assert [earlier] != stages(database_url) == [stage]
    staged = write(place, stage, 1, ROWS)
    with pytest.raises(SinkUnavailable, match="is gone"):
        write(place, earlier, 2, MORE)
    with pytest.raises(SinkUnavailable, match="is gone"):
        atomic.commit(place, 1, COLUMNS, earlier, {1: 1})
    assert ledger(database_url) == [("table#batch", 1, 0)]
    atomic.commit(place, 1, COLUMNS, stage, staged)
    assert visible(database_url) == [("a", 1), ("b", 2)]


def test_driver_of_a_former_active_is_fenced(database_url: str) -> None:
    former = claimed(database_url, epoch=4)
    stage = begun(former)
    staged = write(former, stage, 1, MORE)
    present = claimed(database_url, epoch=5)
    with pytest.raises(Fenced) as caught:
        atomic.commit(former, 1, COLUMNS, stage, staged)
    assert caught.value.epoch == 5
    with pytest.raises(Fenced):
        atomic.begin(former, 1, COLUMNS)
    assert visible(database_url) == []
    written_batch(present, 1, ROWS)
    with pytest.raises(Fenced):
        atomic.commit(former, 1, COLUMNS, stage, staged)
    assert visible(database_url) == [("a", 1), ("b", 2)]
    assert ledger(database_url) == [("table#batch", 5, 1)]


def test_batches_are_committed_in_order(database_url: str) -> None:
    place = claimed(database_url)
    with pytest.raises(SinkRefused, match="would leave a gap"):
        atomic.begin(place, 2, COLUMNS)
    with pytest.raises(SinkRefused, match="would leave a gap"):
        atomic.commit(place, 2, COLUMNS, None, {})
    with pytest.raises(SinkUnavailable):
        atomic.begin(replace(place, epoch=2), 1, COLUMNS)
    with pytest.raises(SinkRefused, match="belongs to group"):
        atomic.begin(replace(place, group_id="another"), 1, COLUMNS)


def test_drivers_of_one_epoch_commit_a_batch_once(database_url: str) -> None:
    """A query process that its node believes dead commits beside the next one."""
    place = claimed(database_url)
    stage = begun(place)
    staged = write(place, stage, 1, *[ROWS] * 500)
    commit = partial(atomic.commit, place, 1, COLUMNS, stage, staged)
    with ThreadPoolExecutor(4) as threads:
        commits = [threads.submit(commit) for _ in range(4)]
    assert [one.exception() for one in commits] == [None] * 4
    assert len(visible(database_url)) == 1000


def test_staging_table_into_which_a_late_task_writes_is_dropped_later(database_url: str) -> None:
    place = claimed(database_url)
    stage = begun(place)
    staged = write(place, stage, 1, ROWS)
    with open_engine(database_url).connect() as late:
        late.execute(text(f"INSERT INTO {stage} VALUES ('late', 1, 2)"))
        atomic.commit(place, 1, COLUMNS, stage, staged)
        following = begun(place, 2)
        assert set(stages(database_url)) == {stage, following}
    written_batch(place, 2, MORE)
    assert stages(database_url) == []
    assert visible(database_url) == [("a", 1), ("b", 2), ("c", 3)]


def test_staging_tables_of_another_sink_remain(database_url: str) -> None:
    place = claimed(database_url)
    stage = begun(place)
    other = LedgerKey("default", QUERY, "other")
    store = PostgresBucketStore(open_engine(database_url), other, INSERT, 2, atomic=True)
    store.claim(1, 0, GROUP, lambda: 10)
    written_batch(replace(place, sink="other"), 1, MORE)
    assert stages(database_url) == [stage]


@pytest.mark.parametrize("target", [INSERT, UPSERT])
def test_task_whose_input_was_cut_stages_nothing(database_url: str, target: Target) -> None:
    """Spark may end the input of a task that it cancels, as if there were no further rows."""
    place = claimed(database_url, target)
    stage = begun(place)
    with pytest.raises(SinkUnavailable, match="2 of 3 rows"):
        stage_bucket(place, stage, 1, 3, parts(ROWS))
    assert rows_of(database_url, f"SELECT * FROM {stage}") == []


def test_commit_without_the_rows_of_one_task_moves_nothing(database_url: str) -> None:
    place = claimed(database_url)
    stage = begun(place)
    staged = write(place, stage, 1, ROWS) | write(place, stage, 2, MORE)
    execute(database_url, f"DELETE FROM {stage} WHERE ha_engine_task = 2")
    with pytest.raises(SinkUnavailable, match="2 of 3 rows"):
        atomic.commit(place, 1, COLUMNS, stage, staged)
    assert visible(database_url) == []
    assert ledger(database_url) == [("table#batch", 1, 0)]


# -- crashes ---------------------------------------------------------------------------------------

_DIES = """
import os, signal, sys
from ha_engine.buckets import atomic
from ha_engine.postgres import staged_store
from tests.publish.test_atomic_batches import COLUMNS, ROWS, Target, begun, place_of, write
url, mode, step = sys.argv[1:]
die = lambda *words: os.kill(os.getpid(), signal.SIGKILL)
place = place_of(url, Target("delays", mode, ("k",) if mode == "upsert" else ()))
stage = begun(place)
if step == "copied":
    staged_store.write_rows = lambda *words, write=staged_store.write_rows: (write(*words), die())
staged = write(place, stage, 1, ROWS)
if step == "staged":
    die()
if step == "moved":
    staged_store._drop = die
if step == "committing":
    from sqlalchemy import Engine, event
    event.listen(Engine, "commit", die)
atomic.commit(place, 1, COLUMNS, stage, staged)
"""


@pytest.mark.parametrize("target", [INSERT, UPSERT], ids=["insert", "upsert"])
@pytest.mark.parametrize("step", ["copied", "staged", "moved", "committing"])
def test_batch_of_a_driver_that_died_in_any_step_is_written_once_by_the_next(
    database_url: str, target: Target, step: str
) -> None:
    claimed(database_url, target)
    command = [sys.executable, "-c", _DIES, database_url, target.mode, step]
    ended = subprocess.run(command, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert visible(database_url) == []
    assert len(stages(database_url)) == 1
    written_batch(claimed(database_url, target, epoch=2), 1, ROWS)
    assert visible(database_url) == [("a", 1), ("b", 2)]
    assert ledger(database_url) == [("table#batch", 2, 1)]
    assert stages(database_url) == []


def test_rows_that_a_crash_of_the_server_lost_are_written_again(
    own_postgres: EmbeddedPostgres,
) -> None:
    """The crash empties the staging table between two tasks of one attempt."""
    url = own_postgres.url
    place = claimed(url)
    stage = begun(place)
    staged = write(place, stage, 1, ROWS)
    pid = own_postgres.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid))
    own_postgres.start()
    staged |= write(place, stage, 2, MORE)
    with pytest.raises(SinkUnavailable, match="1 of 3 rows"):
        atomic.commit(place, 1, COLUMNS, stage, staged)
    assert visible(url) == []
    written_batch(place, 1, ROWS, MORE)
    assert visible(url) == [("a", 1), ("b", 2), ("c", 3)]
    assert stages(url) == []


# -- the table and the role ------------------------------------------------------------------------


def test_staging_table_has_the_columns_that_the_table_has_at_the_attempt(database_url: str) -> None:
    place = claimed(database_url)
    execute(
        database_url, "ALTER TABLE delays ALTER n TYPE numeric, ADD at timestamptz DEFAULT now()"
    )
    written_batch(place, 1, ROWS)
    stage = begun(place, 2)
    staged = write(place, stage, 1, MORE)
    execute(database_url, "ALTER TABLE delays ALTER k TYPE varchar(9), ADD CHECK (n < 9)")
    atomic.commit(place, 2, COLUMNS, stage, staged)
    assert visible(database_url) == [("a", 1), ("b", 2), ("c", 3)]


def test_row_that_the_table_refuses_leaves_nothing_of_its_batch(database_url: str) -> None:
    place = claimed(database_url)
    execute(database_url, "ALTER TABLE delays ADD CONSTRAINT small CHECK (n < 3)")
    with pytest.raises(SinkRefused, match="small"):
        written_batch(place, 1, ROWS, MORE)
    assert visible(database_url) == []
    assert ledger(database_url) == [("table#batch", 1, 0)]
    execute(database_url, "ALTER TABLE delays DROP CONSTRAINT small")
    written_batch(place, 1, ROWS, MORE)
    assert visible(database_url) == [("a", 1), ("b", 2), ("c", 3)]


def test_names_of_schema_and_columns_are_quoted(database_url: str) -> None:
    rows = pa.table({'a "b" 50%': ["x"], "c:d": [1]})
    target = Target("Reports.Late", "upsert", ("c:d",), auto_create=True)
    place = claimed(database_url, target, schema=rows.schema)
    stage = atomic.begin(place, 1, rows.column_names)
    assert stage is not None
    assert stage.startswith("Reports.ha_engine_stage_")
    staged = write(place, stage, 1, rows)
    atomic.begin(place, 1, rows.column_names)
    assert len(stages(database_url)) == 1
    with pytest.raises(SinkUnavailable, match="is gone"):
        atomic.commit(place, 1, rows.column_names, stage, staged)
    stage = atomic.begin(place, 1, rows.column_names)
    assert stage is not None
    staged = write(place, stage, 2, rows)
    atomic.commit(place, 1, rows.column_names, stage, staged)
    assert rows_of(database_url, 'SELECT * FROM "Reports"."Late"') == [("x", 1)]


# -- the node --------------------------------------------------------------------------------------


def test_node_publishes_a_batch_that_tasks_have_committed(
    database_url: str, tmp_path: Path
) -> None:
    place, sink = claimed(database_url), sink_of(database_url)
    assert sink.claim(1, 0, GROUP, soon()) == 0
    batch = batch_of(tmp_path, WRITTEN_BY_TASKS)
    with pytest.raises(SinkRefused, match="restored to an older state"):
        sink.publish(1, batch, 1, soon())
    written_batch(place, 1, ROWS)
    sink.publish(1, batch, 1, soon())
    sink.publish(2, batch_of(tmp_path, MORE, 2), 1, soon())  # admitted before there were buckets
    assert visible(database_url) == [("a", 1), ("b", 2), ("c", 3)]
    assert sink_of(database_url).claim(2, 0, GROUP, soon()) == 2


def test_claim_names_a_committed_batch_that_the_journal_does_not_have(database_url: str) -> None:
    """RULES.md#r26: a forced failover gave the batch up, and no other batch gets its number."""
    place = claimed(database_url)
    written_batch(place, 1, ROWS)
    assert sink_of(database_url, last_mark=0).claim(2, 0, GROUP, soon()) == 1


def test_number_of_buckets_may_change_but_not_what_is_atomic(database_url: str) -> None:
    claimed(database_url)
    sink_of(database_url, buckets=5).claim(2, 0, GROUP, soon())
    each = bucketed.sink_of(database_url)
    with pytest.raises(SinkRefused, match=r"has buckets with atomic: batch .* new name"):
        each.claim(3, 0, GROUP, soon())
    with pytest.raises(SinkRefused, match=r"has buckets with atomic: batch .* new name"):
        open_sink(database_url, INSERT).claim(3, 0, GROUP, soon())
    execute(database_url, "DELETE FROM ha_engine_ledger")
    each.claim(3, 0, GROUP, soon())
    with pytest.raises(SinkRefused, match=r"has 3 separate buckets .* new name"):
        sink_of(database_url).claim(4, 0, GROUP, soon())
