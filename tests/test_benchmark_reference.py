"""The benchmark's comparison of a sink with its reference detects wrong rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.paced import Schedule
from benchmarks.reference import SinkDiffers, compare
from benchmarks.workload import WINDOW_EVENTS, events

SENT = Schedule.of_rate(3 * WINDOW_EVENTS, rate=100_000, seconds=12, a_second=20)
WINDOWS = 6


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    """Return the rows that Spark would give, computed by Arrow: key, window, events, total."""
    sent = pa.Table.from_batches([events(first, count) for first, count in SENT.requests()])
    window = pc.subtract(pc.divide(sent["id"], WINDOW_EVENTS), 3)
    found = sent.append_column("number", window).group_by(["key", "number"])
    grouped = found.aggregate([("id", "count"), ("amount", "sum")])
    return grouped.rename_columns(["key", "number", "events", "total"])


def changed(rows: pa.Table, column: str, by: float) -> pa.Table:
    """Return the rows with a changed one in the middle."""
    values = rows[column].to_pylist()
    values[len(values) // 2] += by
    array = pa.array(values, rows[column].type)
    return rows.set_column(rows.schema.get_field_index(column), column, array)


def test_equal_rows_match_in_any_order(rows: pa.Table) -> None:
    assert compare(rows, SENT) == WINDOWS
    assert compare(rows.sort_by("total"), SENT) == WINDOWS


def test_lost_doubled_or_wrong_row_is_detected(rows: pa.Table) -> None:
    wrong = {
        "lost": rows.slice(1),
        "twice": pa.concat_tables([rows, rows.slice(0, 1)]),
        "one event more": changed(rows, "events", 1),
        "a millionth less": changed(rows, "total", -1e-6),
        "a window too early": changed(rows, "number", -1),
    }
    for name, table in wrong.items():
        with pytest.raises(SinkDiffers):
            pytest.fail(f"{name}: {compare(table, SENT)} windows are called equal")


def test_windows_that_never_closed_are_reported_as_missing(rows: pa.Table) -> None:
    with pytest.raises(SinkDiffers):
        compare(rows.filter(pc.less(rows["number"], WINDOWS - 1)), SENT)
