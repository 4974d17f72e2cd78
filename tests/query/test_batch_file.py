"""The outbox file, and the digest by which nodes compare batches (RULES.md#i6)."""

from __future__ import annotations

import math
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ha_engine.errors import DiskFailed, OutboxDamaged
from ha_engine.outbox.batch_file import (
    digest_of_file,
    digest_of_table,
    in_canonical_form,
    read_batch_file,
    write_batch_file,
)

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.int64()),
        ("ratio", pa.float64()),
        ("small", pa.float32()),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("span", pa.struct([("start", pa.timestamp("us", tz="UTC")), ("x", pa.float64())])),
        ("tags", pa.list_(pa.string())),
        ("nested", pa.list_(pa.struct([("a", pa.float64()), ("b", pa.list_(pa.int32()))]))),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("took", pa.duration("us")),
        ("nothing", pa.null()),
    ]
)

text = st.text(st.characters(codec="utf-8"), max_size=4)
micros = st.integers(0, 4_000_000_000_000_000)
doubles = st.floats(allow_nan=True)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "text": maybe(text),
            "number": maybe(st.integers(-3, 3)),
            "ratio": maybe(doubles),
            "small": maybe(st.sampled_from([0.0, -0.0, 1.5])),
            "flag": maybe(st.booleans()),
            "price": maybe(st.decimals(-99, 99, places=2).map(Decimal)),
            "at": maybe(micros),
            "day": maybe(st.integers(0, 20_000)),
            "raw": maybe(st.binary(max_size=3)),
            "span": maybe(st.fixed_dictionaries({"start": maybe(micros), "x": maybe(doubles)})),
            "tags": maybe(st.lists(maybe(text), max_size=2)),
            "nested": maybe(
                st.lists(
                    st.fixed_dictionaries(
                        {"a": maybe(doubles), "b": maybe(st.lists(st.integers(0, 3), max_size=2))}
                    ),
                    max_size=2,
                )
            ),
            "counts": maybe(
                st.dictionaries(text, maybe(st.integers(0, 9)), max_size=3).map(
                    lambda found: list(found.items())
                )
            ),
            "took": maybe(st.integers(-5, 5)),
            "nothing": st.none(),
        }
    ),
    max_size=8,
)


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def rechunked(table: pa.Table, cut: int) -> pa.Table:
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)])


@settings(max_examples=150)
@given(rows=ROWS, seed=st.integers(0, 99), data=st.data())
def test_the_digest_does_not_depend_on_row_order_chunks_or_map_order(
    rows: list[dict[str, Any]], seed: int, data: st.DataObject
) -> None:
    expected = digest_of_table(table_of(rows))
    shuffled = random.Random(seed).sample(rows, len(rows))
    turned = [
        {**row, "counts": row["counts"] and list(reversed(row["counts"]))} for row in shuffled
    ]
    cut = data.draw(st.integers(0, len(rows)))
    assert digest_of_table(rechunked(table_of(turned), cut)) == expected


@settings(max_examples=100)
@given(rows=ROWS.filter(bool), data=st.data())
def test_the_digest_changes_with_any_value_and_with_a_repeated_row(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    before = digest_of_table(table_of(rows))
    assert digest_of_table(table_of([*rows, rows[0]])) != before
    number = rows[0]["number"]
    other = data.draw(maybe(st.integers(-3, 3)).filter(lambda value: value != number))
    assert digest_of_table(table_of([{**rows[0], "number": other}, *rows[1:]])) != before
    tags = rows[0]["tags"]
    assert (
        digest_of_table(table_of([{**rows[0], "tags": [*(tags or []), "x"]}, *rows[1:]])) != before
    )


def test_both_zeros_and_all_nans_have_equal_digests() -> None:
    other_nan = pa.Array.from_buffers(
        pa.float64(), 2, [None, pa.py_buffer(bytes.fromhex("010000000000f8ff0000000000000080"))]
    )
    plain = pa.table({"x": pa.array([float("nan"), 0.0])})
    assert digest_of_table(pa.table({"x": other_nan})) == digest_of_table(plain)
    lists = [pa.table({"x": pa.array([[value]])}) for value in (0.0, -0.0)]
    assert digest_of_table(lists[0]) == digest_of_table(lists[1])


FORMS = pa.schema(
    [
        ("ratio", pa.float64()),
        ("small", pa.float32()),
        ("list", pa.list_(pa.float64())),
        ("struct", pa.struct([("x", pa.float32()), ("text", pa.string())])),
        ("map", pa.map_(pa.float64(), pa.list_(pa.float32()))),
        ("maps", pa.list_(pa.map_(pa.string(), pa.int64()))),
    ]
)
zeros = st.sampled_from([0.0, -0.0, 1.5, math.nan])
"""Few values, so that rows are often equal."""


@settings(max_examples=100)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "ratio": maybe(zeros),
                "small": maybe(zeros),
                "list": maybe(st.lists(maybe(zeros), max_size=2)),
                "struct": maybe(st.fixed_dictionaries({"x": maybe(zeros), "text": maybe(text)})),
                "map": maybe(
                    st.lists(
                        st.tuples(zeros, maybe(st.lists(maybe(zeros), max_size=2))), max_size=3
                    )
                ),
                "maps": maybe(
                    st.lists(
                        maybe(st.dictionaries(text, st.integers(0, 9), max_size=3)), max_size=2
                    )
                ),
            }
        ),
        max_size=6,
    ),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_tables_with_equal_digests_have_equal_bytes_in_canonical_form(
    rows: list[dict[str, Any]], seed: int, data: st.DataObject
) -> None:
    """A sink compares or shows the bytes, also of a batch that the next active delivers again."""
    cut = data.draw(st.integers(0, len(rows)))
    other = [_in_another_form(row) for row in random.Random(seed).sample(rows, len(rows))]
    tables = [
        pa.Table.from_pylist(rows, schema=FORMS),
        rechunked(pa.Table.from_pylist(other, schema=FORMS), cut),
    ]
    assert digest_of_table(tables[0]) == digest_of_table(tables[1])
    mine, others = map(in_canonical_form, tables)
    mine.validate(full=True)
    assert digest_of_table(mine) == digest_of_table(tables[0])
    assert mine.schema == FORMS
    assert ipc(mine) == ipc(others)


def _in_another_form(value: Any) -> Any:
    """Turn the zeros of ``value`` into -0.0 or back, and reverse its maps."""
    match value:
        case float():
            return -value if value == 0 else value
        case dict():
            pairs = [(name, _in_another_form(part)) for name, part in value.items()]
            return dict(pairs if "x" in value or "map" in value else reversed(pairs))
        case [tuple(), *_]:
            return [tuple(map(_in_another_form, pair)) for pair in reversed(value)]
        case list():
            return [_in_another_form(part) for part in value]
        case _:
            return value


def ipc(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(out.getvalue())


def test_value_buffer_under_a_null_does_not_change_the_digest() -> None:
    hidden = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(bytes([7, *[0] * 7, 9, *[0] * 7]))]
    )
    assert digest_of_table(pa.table({"x": hidden})) == digest_of_table(pa.table({"x": [7, None]}))


def test_null_and_zero_have_different_digests() -> None:
    with_null = digest_of_table(pa.table({"x": pa.array([None, 1], pa.int64())}))
    assert with_null != digest_of_table(pa.table({"x": pa.array([0, 1], pa.int64())}))
    empty = digest_of_table(pa.table({"x": pa.array([], pa.int64())}))
    assert empty != digest_of_table(pa.table({"y": pa.array([], pa.int64())}))
    assert empty == digest_of_table(pa.table({"x": pa.chunked_array([], pa.int64())}))


@settings(max_examples=30)
@given(rows=ROWS)
def test_batch_file_survives_a_round_trip(tmp_path_factory: Any, rows: list[Any]) -> None:
    path = tmp_path_factory.mktemp("outbox") / "1.arrow"
    written = write_batch_file(path, table_of(rows), query="q", number=1)
    assert (written.rows, written.bytes) == (len(rows), path.stat().st_size)
    assert read_batch_file(path).schema == SCHEMA
    assert read_batch_file(path).num_rows == len(rows)
    assert digest_of_file(path) == digest_of_table(table_of(rows))


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "1.arrow"
    with pytest.raises(OutboxDamaged, match=r"1\.arrow"):
        read_batch_file(path)
    path.write_bytes(b"ARROW1 and then nothing of use")
    with pytest.raises(OutboxDamaged, match=r"1\.arrow"):
        read_batch_file(path)


@settings(max_examples=60)
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_each_flipped_bit_of_a_file_is_found(tmp_path_factory: Any, at: float, bit: int) -> None:
    path = tmp_path_factory.mktemp("outbox") / "1.arrow"
    write_batch_file(path, pa.table({"n": [700, 2, 3]}), query="q", number=1)
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1 << bit
    path.write_bytes(content)
    with pytest.raises(OutboxDamaged, match=r"1\.arrow cannot be read"):
        read_batch_file(path)


def test_file_of_an_earlier_version_is_readable(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2]})
    with pa.ipc.new_file(str(tmp_path / "1.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert read_batch_file(tmp_path / "1.arrow").equals(table)


def test_full_disk_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DiskFailed, match="missing"):
        write_batch_file(tmp_path / "missing" / "1.arrow", table_of([]), query="q", number=1)


def test_no_other_user_can_read_a_batch(tmp_path: Path) -> None:
    former = os.umask(0o022)
    try:
        written = write_batch_file(tmp_path / "1.arrow", pa.table({"n": [1]}), query="q", number=1)
    finally:
        os.umask(former)
    assert written.path.stat().st_mode & 0o777 == 0o600
