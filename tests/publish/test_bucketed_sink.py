"""A sink whose buckets tasks write: what a task does, and what the node finds in the ledger."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from ha_engine.buckets.place import BucketPlace
from ha_engine.buckets.task import write_bucket
from ha_engine.errors import Fenced, SinkRefused, SinkUnavailable
from ha_engine.outbox.batch_file import WRITTEN_BY_TASKS
from ha_engine.postgres.sink_table import Target
from ha_engine.publish.sinks.buckets import BucketedSink
from tests.publish.batches import GROUP, batch_of, execute, open_sink, soon
from tests.publish.bucketed import (
    BUCKETS,
    INSERT,
    MORE,
    ROWS,
    UPSERT,
    ledger,
    parts,
    place_of,
    sink_of,
    visible,
)

pytestmark = pytest.mark.rotates("files")


def claimed(url: str, target: Target = INSERT, epoch: int = 1) -> BucketedSink:
    sink = sink_of(url, target)
    sink.prepare(ROWS.schema)
    sink.claim(epoch, 0, GROUP, soon())
    return sink


def write(place: BucketPlace, number: int, bucket: int, *tables: pa.Table) -> bool:
    size = sum(table.num_rows for table in tables)
    return write_bucket(place, number, bucket, size, parts(*tables))


def test_bucket_is_written_once_in_parts(database_url: str) -> None:
    claimed(database_url)
    place = place_of(database_url)
    assert write(place, 1, 2, ROWS, ROWS.slice(0, 0), MORE)
    assert not write(place, 1, 2, ROWS, MORE)
    assert visible(database_url) == [("a", 1), ("b", 2), ("c", 3)]
    assert ledger(database_url) == [("table#0/3", 1, 0), ("table#1/3", 1, 0), ("table#2/3", 1, 1)]


def test_upsert_writes_one_row_of_a_key_of_all_parts(database_url: str) -> None:
    claimed(database_url, UPSERT)
    place = place_of(database_url, UPSERT)
    assert write(place, 1, 0, ROWS, pa.table({"k": ["a", "b"], "n": [7, 0]}))
    assert visible(database_url) == [("a", 7), ("b", 2)]
    assert write(place, 2, 0)
    assert write(place, 3, 0, pa.table({"k": ["b", "c"], "n": [0, 3]}))
    assert visible(database_url) == [("a", 7), ("b", 0), ("c", 3)]


def test_tasks_of_a_former_active_are_fenced(database_url: str) -> None:
    claimed(database_url, epoch=4)
    place = place_of(database_url, epoch=4)
    write(place, 1, 0, ROWS)
    claimed(database_url, epoch=5)
    for bucket in range(BUCKETS):
        with pytest.raises(Fenced) as caught:
            write(place, 1, bucket, ROWS)
        assert caught.value.epoch == 5
    assert len(visible(database_url)) == 2


def test_task_waits_for_the_claim_of_its_epoch_and_leaves_no_gap(database_url: str) -> None:
    claimed(database_url)
    with pytest.raises(SinkUnavailable):
        write(place_of(database_url, epoch=2), 1, 0, ROWS)
    with pytest.raises(SinkRefused, match="would leave a gap"):
        write(place_of(database_url), 2, 0, ROWS)
    with pytest.raises(SinkRefused, match="belongs to group"):
        write(replace(place_of(database_url), group_id="another"), 1, 0, ROWS)
    assert visible(database_url) == []


def test_refused_row_leaves_nothing_of_its_bucket(database_url: str) -> None:
    claimed(database_url)
    with pytest.raises(SinkRefused, match="row 2 of the batch"):
        write(place_of(database_url), 1, 0, ROWS, pa.table({"k": ["c", "d\0"], "n": [3, 4]}))
    assert visible(database_url) == []
    assert write(place_of(database_url), 1, 0, ROWS)


@pytest.mark.parametrize("target", [INSERT, UPSERT])
def test_task_whose_input_was_cut_writes_nothing(database_url: str, target: Target) -> None:
    """Spark may end the input of a task that it cancels, as if there were no further rows."""
    claimed(database_url, target)
    place = place_of(database_url, target)
    for cut in (parts(ROWS), parts()):
        with pytest.raises(SinkUnavailable, match="of 3 rows"):
            write_bucket(place, 1, 0, 3, cut)
    assert visible(database_url) == []
    assert write(place, 1, 0, ROWS)


def test_two_tasks_of_one_bucket_write_it_once(database_url: str) -> None:
    claimed(database_url)
    task = partial(write, place_of(database_url), 1, 0, *[ROWS] * 20)
    with ThreadPoolExecutor(4) as threads:
        tasks = [threads.submit(task) for _ in range(4)]
    assert sorted(one.result() for one in tasks) == [False, False, False, True]
    assert len(visible(database_url)) == 40


_DIES_BEFORE_COMMIT = """
import os, signal, sys
import sqlalchemy.event
from sqlalchemy import Engine
from tests.publish.test_bucketed_sink import ROWS, Target, place_of, write
url, mode = sys.argv[1:]
sqlalchemy.event.listen(Engine, "commit", lambda connection: os.kill(os.getpid(), signal.SIGKILL))
write(place_of(url, Target("delays", mode, ("k",))), 1, 0, ROWS)
"""


@pytest.mark.parametrize("target", [INSERT, UPSERT])
def test_task_killed_before_its_commit_leaves_no_rows(database_url: str, target: Target) -> None:
    claimed(database_url, target)
    command = [sys.executable, "-c", _DIES_BEFORE_COMMIT, database_url, target.mode]
    ended = subprocess.run(command, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    claimed(database_url, target, epoch=2)
    assert visible(database_url) == []
    assert write(place_of(database_url, target, epoch=2), 1, 0, ROWS)
    assert len(visible(database_url)) == 2


# -- the node --------------------------------------------------------------------------------------


def test_node_publishes_a_batch_that_every_bucket_has(database_url: str, tmp_path: Path) -> None:
    sink, place = claimed(database_url), place_of(database_url)
    batch = batch_of(tmp_path, WRITTEN_BY_TASKS)
    for bucket in range(BUCKETS):
        write(place, 1, bucket, ROWS)
    sink.publish(1, batch, 1, soon())
    sink.publish(1, batch, 1, soon())
    assert [batch for _, _, batch in ledger(database_url)] == [1] * BUCKETS
    assert len(visible(database_url)) == 2 * BUCKETS


def test_ledger_that_lost_a_written_batch_is_refused(database_url: str, tmp_path: Path) -> None:
    sink = claimed(database_url)
    batch = batch_of(tmp_path, WRITTEN_BY_TASKS)
    for bucket in range(2):
        with pytest.raises(SinkRefused, match="restored to an older state"):
            sink.publish(1, batch, 1, soon())
        write(place_of(database_url), 1, bucket, ROWS)
    assert [batch for _, _, batch in ledger(database_url)] == [1, 1, 0]


def test_batch_from_before_the_buckets_is_written_by_the_node(
    database_url: str, tmp_path: Path
) -> None:
    sink, place = claimed(database_url), place_of(database_url)
    sink.publish(1, batch_of(tmp_path, ROWS), 1, soon())
    sink.publish(2, batch_of(tmp_path, ROWS.slice(0, 0), 2), 1, soon())
    assert visible(database_url) == [("a", 1), ("b", 2)]
    assert not write(place, 2, 0, ROWS)
    write(place, 3, 0, ROWS)
    with pytest.raises(SinkUnavailable, match="still writes batch 3"):
        sink.publish(3, batch_of(tmp_path, ROWS, 3), 1, soon())
    assert [batch for _, _, batch in ledger(database_url)] == [3, 2, 2]


def test_claim_returns_the_batch_that_every_bucket_has(database_url: str) -> None:
    claimed(database_url)
    write(place_of(database_url), 1, 0, ROWS)
    assert sink_of(database_url).claim(2, 0, GROUP, soon()) == 0
    assert {epoch for _, epoch, _ in ledger(database_url)} == {2}


def test_claim_names_a_batch_that_the_journal_does_not_have(database_url: str) -> None:
    """RULES.md#r26: a forced failover gave the batch up, and no other batch gets its number."""
    claimed(database_url)
    write(place_of(database_url), 1, 0, ROWS)
    assert sink_of(database_url, last_mark=0).claim(2, 0, GROUP, soon()) == 1
    assert sink_of(database_url, last_mark=1).claim(2, 0, GROUP, soon()) == 0


def test_sink_is_ready_once_its_table_is_there_and_its_epoch_has_claimed(database_url: str) -> None:
    sink = sink_of(database_url)
    assert not sink.is_ready(1)
    sink.claim(1, 0, GROUP, soon())
    assert not sink.is_ready(1)
    sink.prepare(ROWS.schema)
    assert sink.is_ready(1)
    assert not sink.is_ready(2)
    with pytest.raises(Fenced):
        claimed(database_url, epoch=3) and sink.claim(2, 0, GROUP, soon())
    assert not sink.is_ready(2)


@pytest.mark.parametrize(("had", "wanted"), [(3, 4), (3, None), (None, 3)])
def test_number_of_buckets_cannot_change(
    database_url: str, had: int | None, wanted: int | None
) -> None:
    def made(buckets: int | None) -> BucketedSink:
        if buckets is None:
            return open_sink(database_url, INSERT)  # type: ignore[return-value]
        return sink_of(database_url, buckets=buckets)

    made(had).claim(1, 0, GROUP, soon())
    before = ledger(database_url)
    with pytest.raises(SinkRefused, match="give the sink a new name"):
        made(wanted).claim(2, 0, GROUP, soon())
    assert ledger(database_url) == before
    execute(database_url, "DELETE FROM ha_engine_ledger")
    made(wanted).claim(2, 0, GROUP, soon())
