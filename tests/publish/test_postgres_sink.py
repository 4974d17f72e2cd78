"""The postgres sink alone: types, keys, checks, fencing, and the state after a crash."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from ha_engine.errors import Fenced, SinkRefused, SinkUnavailable
from ha_engine.postgres.sink_table import Target
from tests.publish.batches import (
    GROUP,
    batch_of,
    execute,
    ledger_of,
    open_sink,
    rows_of,
    soon,
)
from tests.waiting import SLOW_HOST, wait_until

ROWS = pa.table({"k": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
INSERT = Target("delays", auto_create=True)
UPSERT = Target("delays", "upsert", ("k",), auto_create=True)


def test_every_type_survives_a_round_trip(database_url: str, tmp_path: Path) -> None:
    moment = datetime(2013, 1, 31, 23, 59, 59, 123456, UTC)
    columns: dict[str, tuple[pa.DataType, object]] = {
        "tiny": (pa.int8(), -128),
        "int": (pa.int32(), 2**31 - 1),
        "long": (pa.int64(), -(2**63)),
        "unsigned": (pa.uint64(), 2**64 - 1),
        "real": (pa.float32(), 0.5),
        "double": (pa.float64(), 0.1),
        "decimal": (pa.decimal128(20, 4), Decimal("-1234567890123456.7890")),
        "small decimal": (pa.decimal128(18, 12), Decimal("0.000000000001")),
        "text": (pa.string(), 'a "quoted", \\N \\. \n line\r\n é 😀'),
        "empty": (pa.string(), ""),
        "bytes": (pa.binary(), b"\x00\xff\\x"),
        "flag": (pa.bool_(), True),
        "day": (pa.date32(), date(1, 1, 1)),
        "moment": (pa.timestamp("us", "UTC"), moment),
        "local": (pa.timestamp("us"), moment.replace(tzinfo=None)),
        "window": (pa.struct({"start": pa.timestamp("us", "UTC")}), {"start": moment}),
        "list": (pa.list_(pa.int64()), [1, None, 3]),
        "map": (pa.map_(pa.string(), pa.float64()), [("x", 1.5)]),
        "dictionary": (pa.dictionary(pa.int32(), pa.string()), "coded"),
        "odd: name % (\"q\")": (pa.string(), "x"),
    }  # fmt: skip
    table = pa.table(
        {name: pa.array([value, None], kind) for name, (kind, value) in columns.items()}
    )
    sink = open_sink(database_url, INSERT)
    sink.prepare(table.schema)
    sink.claim(1, 0, GROUP, soon())
    sink.publish(1, batch_of(tmp_path, table), 1, soon())
    expected = {name: value for name, (_, value) in columns.items()}
    expected |= {"window": {"start": moment.isoformat()}, "map": {"x": 1.5}}
    full, empty = rows_of(database_url, "SELECT * FROM delays ORDER BY int NULLS LAST")
    found = {
        n: bytes(v) if isinstance(v, memoryview) else v for n, v in zip(columns, full, strict=True)
    }
    assert found == expected
    assert set(empty) == {None}


def test_infinities_and_nan_are_stored(database_url: str, tmp_path: Path) -> None:
    table = pa.table({"x": [float("nan"), float("inf"), float("-inf"), -0.0]})
    sink = open_sink(database_url, INSERT)
    sink.claim(1, 0, GROUP, soon())
    sink.publish(1, batch_of(tmp_path, table), 1, soon())
    assert [str(row[0]) for row in rows_of(database_url, "SELECT x FROM delays")] == [
        "nan",
        "inf",
        "-inf",
        "-0.0",
    ]


def test_a_single_column_of_nulls_and_empty_texts_keeps_its_rows(
    database_url: str, tmp_path: Path
) -> None:
    sink = open_sink(database_url, INSERT)
    sink.claim(1, 0, GROUP, soon())
    sink.publish(1, batch_of(tmp_path, pa.table({"x": ["", None, "\\."]})), 1, soon())
    assert rows_of(database_url, "SELECT x FROM delays") == [("",), (None,), ("\\.",)]


def test_a_batch_moves_the_ledger_once_and_a_repeat_adds_nothing(
    database_url: str, tmp_path: Path
) -> None:
    sink = open_sink(database_url, INSERT)
    assert sink.claim(1, 0, GROUP, soon()) == 0
    batch = batch_of(tmp_path, ROWS)
    sink.publish(1, batch, 1, soon())
    sink.publish(1, batch, 1, soon())
    assert rows_of(database_url, "SELECT * FROM delays") == [("a", 1), ("b", 2)]
    assert ledger_of(database_url) == (1, 1)
    with pytest.raises(SinkRefused, match="would leave a gap"):
        sink.publish(3, batch, 1, soon())


def test_an_empty_batch_moves_the_ledger_and_needs_no_table(
    database_url: str, tmp_path: Path
) -> None:
    sink = open_sink(database_url, Target("absent"))
    sink.claim(1, 0, GROUP, soon())
    sink.publish(1, batch_of(tmp_path, ROWS.slice(0, 0)), 1, soon())
    assert ledger_of(database_url) == (1, 1)


def test_a_higher_epoch_fences_the_lower_one(database_url: str, tmp_path: Path) -> None:
    old, new = open_sink(database_url, INSERT), open_sink(database_url, INSERT)
    batch = batch_of(tmp_path, ROWS)
    old.claim(4, 0, GROUP, soon())
    old.publish(1, batch, 4, soon())
    assert new.claim(5, 0, GROUP, soon()) == 1
    with pytest.raises(Fenced) as caught:
        old.publish(2, batch, 4, soon())
    assert caught.value.epoch == 5
    with pytest.raises(Fenced):
        old.claim(4, 0, GROUP, soon())
    new.publish(2, batch, 5, soon())
    assert ledger_of(database_url) == (5, 2)
    assert rows_of(database_url, "SELECT count(*) FROM delays") == [(4,)]


def test_ledger_of_another_group_with_the_same_name_is_refused_and_kept(
    database_url: str, tmp_path: Path
) -> None:
    theirs, ours = open_sink(database_url, INSERT), open_sink(database_url, INSERT)
    theirs.claim(9, 41, "group-of-before", soon())
    with pytest.raises(SinkRefused) as caught:
        ours.claim(1, 0, GROUP, soon())
    for word in ("ha_engine_ledger", "group-of-before", GROUP, "another name", "delete that row"):
        assert word in str(caught.value)
    assert ledger_of(database_url) == (9, 41)
    execute(database_url, "DELETE FROM ha_engine_ledger")
    assert ours.claim(1, 0, GROUP, soon()) == 0
    with pytest.raises(SinkRefused, match="belongs to group"):
        theirs.publish(42, batch_of(tmp_path, ROWS), 9, soon())
    with pytest.raises(SinkRefused, match="belongs to group"):
        theirs.claim(9, 41, "group-of-before", soon())
    assert ledger_of(database_url) == (1, 0)


def test_new_sink_of_an_old_query_starts_at_the_given_batch(database_url: str) -> None:
    assert open_sink(database_url, INSERT).claim(3, 41, GROUP, soon()) == 41
    assert open_sink(database_url, INSERT).claim(4, 99, GROUP, soon()) == 41


def test_upsert_replaces_rows_by_key(database_url: str, tmp_path: Path) -> None:
    sink = open_sink(database_url, UPSERT)
    sink.claim(1, 0, GROUP, soon())
    sink.publish(1, batch_of(tmp_path, ROWS), 1, soon())
    sink.publish(2, batch_of(tmp_path, pa.table({"k": ["b", "c"], "n": [7, 8]}), 2), 1, soon())
    assert rows_of(database_url, "SELECT * FROM delays ORDER BY k") == [
        ("a", 1),
        ("b", 7),
        ("c", 8),
    ]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
def test_upsert_keeps_the_same_row_of_equal_keys_in_any_order(
    database_url: str, tmp_path: Path, order: list[int]
) -> None:
    table = pa.table({"k": ["a", "a", "a", "b"], "n": [1, None, 5, 2], "w": [[1], [2], [3], [4]]})
    sink = open_sink(database_url, UPSERT)
    sink.claim(1, 0, GROUP, soon())
    sink.publish(1, batch_of(tmp_path, table.take(order)), 1, soon())
    assert rows_of(database_url, "SELECT * FROM delays ORDER BY k") == [
        ("a", 5, [3]),
        ("b", 2, [4]),
    ]


def test_upsert_takes_both_zeros_and_all_nans_as_one_key(database_url: str, tmp_path: Path) -> None:
    """PostgreSQL does, and refuses a batch that has one key twice, whenever it is repeated."""
    table = pa.table({"k": [0.0, -0.0, math.nan, -math.nan], "n": [1, 2, 3, 4]})
    sink = open_sink(database_url, UPSERT)
    sink.claim(1, 0, GROUP, soon())
    sink.publish(1, batch_of(tmp_path, table), 1, soon())
    assert rows_of(database_url, "SELECT n FROM delays ORDER BY k") == [(2,), (4,)]


def test_existing_table_of_another_owner_is_used_with_its_defaults(
    database_url: str, tmp_path: Path
) -> None:
    execute(database_url, "CREATE SCHEMA reports")
    execute(
        database_url,
        'CREATE TABLE reports."Odd Name" (id bigint GENERATED ALWAYS AS IDENTITY, n numeric, '
        "seen timestamptz NOT NULL DEFAULT now(), k varchar(10) UNIQUE)",
    )
    sink = open_sink(database_url, Target("reports.Odd Name", "upsert", ("k",)))
    sink.claim(1, 0, GROUP, soon())
    sink.publish(1, batch_of(tmp_path, ROWS), 1, soon())
    assert rows_of(database_url, 'SELECT k, n FROM reports."Odd Name"') == [("a", 1), ("b", 2)]
    assert rows_of(database_url, "SELECT batch FROM reports.ha_engine_ledger") == [(1,)]


PLAIN = Target("delays")
KEYED = Target("delays", "upsert", ("k",))
OTHER_KEY = Target("delays", "upsert", ("z",), auto_create=True)
GENERATED = "k text, n bigint GENERATED ALWAYS AS (1) STORED"


@pytest.mark.parametrize(
    ("columns", "target", "reason"),
    [
        (None, PLAIN, "does not exist; create it, or set auto_create"),
        ("k text", PLAIN, "has no column n"),
        ("k text, n text", PLAIN, "column n .* is text, but the query gives int64"),
        ("k text, n int", PLAIN, "make it bigint or numeric"),
        ("k text, n bigint, must int NOT NULL", PLAIN, "column must .* must not be null"),
        (GENERATED, PLAIN, "bigint and generated"),
        ("k text, n bigint", KEYED, r"no unique index on \(k\)"),
        ("k text, n bigint, UNIQUE (k, n)", KEYED, "no unique index"),
        ("k text UNIQUE DEFERRABLE, n bigint", KEYED, "no unique index"),
        (None, OTHER_KEY, "key column z .* is not in the query's output"),
        (None, Target("d" * 64, auto_create=True), "is not a PostgreSQL name"),
    ],
)
def test_mismatched_table_is_refused_with_a_reason(
    database_url: str, columns: str | None, target: Target, reason: str
) -> None:
    if columns is not None:
        execute(database_url, f"CREATE TABLE delays ({columns})")
    with pytest.raises(SinkRefused, match=reason):
        open_sink(database_url, target).prepare(ROWS.schema)


def test_type_without_a_postgresql_equivalent_is_refused_with_advice(database_url: str) -> None:
    with pytest.raises(SinkRefused, match="cast it in the query"):
        open_sink(database_url, INSERT).prepare(pa.schema([("d", pa.duration("us"))]))


def test_values_that_do_not_fit_the_table_are_refused_with_their_row(
    database_url: str, tmp_path: Path
) -> None:
    execute(
        database_url, "CREATE TABLE delays (k varchar(1) PRIMARY KEY, n bigint CHECK (n < 100))"
    )
    sink = open_sink(database_url, Target("delays"))
    sink.claim(1, 0, GROUP, soon())
    for table in (
        pa.table({"k": ["a", "long"], "n": [1, 2]}),
        pa.table({"k": ["a", "b\0"], "n": [1, 2]}),
        pa.table({"k": ["a", "b"], "n": [1, 100]}),
        pa.table({"k": ["a", "a"], "n": [1, 2]}),
    ):
        with pytest.raises(SinkRefused, match="row 2 of the batch"):
            sink.publish(1, batch_of(tmp_path, table), 1, soon())
    assert ledger_of(database_url) == (1, 0)
    assert rows_of(database_url, "SELECT * FROM delays") == []


def test_nested_number_without_a_json_form_is_stored_as_text(
    database_url: str, tmp_path: Path
) -> None:
    """A batch cannot be taken back once admitted, so the sink may refuse none of its values for
    ever."""
    sink = open_sink(database_url, INSERT)
    sink.claim(1, 0, GROUP, soon())
    sink.publish(1, batch_of(tmp_path, pa.table({"w": [[float("nan"), 1.5]]})), 1, soon())
    assert rows_of(database_url, "SELECT w FROM delays") == [(["NaN", 1.5],)]


def test_type_without_a_json_form_is_refused_before_the_first_batch(database_url: str) -> None:
    by_day = pa.map_(pa.date32(), pa.int64())
    with pytest.raises(SinkRefused, match="column w is map<date32"):
        open_sink(database_url, INSERT).prepare(pa.schema([("w", by_day)]))


def test_two_nodes_may_prepare_a_sink_at_once(database_url: str) -> None:
    def prepare() -> None:
        open_sink(database_url, Target("new.delays", auto_create=True)).prepare(ROWS.schema)

    with ThreadPoolExecutor(4) as threads:
        prepared = [threads.submit(prepare) for _ in range(4)]
    assert [one.exception() for one in prepared] == [None] * 4


def test_a_role_without_rights_is_refused(database_url: str, tmp_path: Path) -> None:
    execute(database_url, "CREATE TABLE delays (k text, n bigint)")
    execute(database_url, "CREATE ROLE reader_of_delays LOGIN")
    try:
        sink = open_sink(
            database_url.replace("//postgres@", "//reader_of_delays@"), Target("delays")
        )
        with pytest.raises(SinkRefused, match="permission denied"):
            sink.claim(1, 0, GROUP, soon())
    finally:
        execute(database_url, "DROP ROLE reader_of_delays")


def test_call_ends_at_its_deadline_while_the_database_holds_a_lock(
    database_url: str, tmp_path: Path
) -> None:
    sink = open_sink(database_url, INSERT)
    sink.claim(1, 0, GROUP, soon())
    sink.publish(1, batch_of(tmp_path, ROWS), 1, soon())
    holder = open_sink(database_url, INSERT)
    locked, free = threading.Event(), threading.Event()
    thread = threading.Thread(target=_hold_the_ledger, args=(database_url, locked, free))
    thread.start()
    try:
        assert locked.wait(10)
        started = time.monotonic()
        with pytest.raises(SinkUnavailable):
            sink.publish(2, batch_of(tmp_path, ROWS), 1, soon(0.5))
        assert time.monotonic() - started < SLOW_HOST * 0.5
    finally:
        free.set()
        thread.join()
    assert holder.claim(2, 0, GROUP, soon()) == 1


def _hold_the_ledger(url: str, locked: threading.Event, free: threading.Event) -> None:
    from sqlalchemy import text

    from ha_engine.postgres.engine import open_engine

    with open_engine(url).begin() as connection:
        connection.execute(text("SELECT * FROM ha_engine_ledger FOR UPDATE"))
        locked.set()
        free.wait(20)


_DIES_BEFORE_COMMIT = """
import os, signal, sys
from pathlib import Path
import sqlalchemy.event
from ha_engine.postgres.sink_table import Target
from ha_engine.outbox import OutboxBatch
from tests.publish.batches import GROUP, open_sink, soon
url, path, mode = sys.argv[1:]
sink = open_sink(url, Target("delays", mode, ("k",)))
sink.claim(2, 0, GROUP, soon())
engine = sink._store._ledgers._session.engine
sqlalchemy.event.listen(engine, "commit", lambda connection: os.kill(os.getpid(), signal.SIGKILL))
sink.publish(2, OutboxBatch(Path(path), 2, 1), 2, soon())
"""


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_publisher_killed_between_copy_and_commit_leaves_no_rows(
    database_url: str, tmp_path: Path, mode: str
) -> None:
    target = Target("delays", "upsert" if mode == "upsert" else "insert", ("k",), auto_create=True)
    sink = open_sink(database_url, target)
    sink.claim(1, 0, GROUP, soon())
    sink.publish(1, batch_of(tmp_path, ROWS), 1, soon())
    batch = batch_of(tmp_path, pa.table({"k": ["c", "d"], "n": [3, 4]}), 2)
    command = [sys.executable, "-c", _DIES_BEFORE_COMMIT, database_url, str(batch.path), mode]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    after = open_sink(database_url, target)
    assert after.claim(3, 0, GROUP, soon()) == 1
    after.publish(2, batch, 3, soon())
    assert rows_of(database_url, "SELECT k FROM delays ORDER BY k") == [
        ("a",),
        ("b",),
        ("c",),
        ("d",),
    ]
    assert ledger_of(database_url) == (3, 2)


def test_closed_sink_holds_no_connection_and_reconnects(database_url: str, tmp_path: Path) -> None:
    sink = open_sink(database_url, INSERT)
    sink.claim(1, 0, GROUP, soon())
    sink.close()
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    wait_until(lambda: rows_of(database_url, sessions) == [(1,)])
    assert sink.claim(1, 0, GROUP, soon()) == 0
