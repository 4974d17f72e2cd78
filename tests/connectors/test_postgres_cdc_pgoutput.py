"""The decoder of pgoutput, and the forms of offsets, values and snapshots, without a server."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha_engine.connectors.postgres_cdc.changes import Changes, Passed, Step
from ha_engine.connectors.postgres_cdc.initial import Initial, Page, Part, Snapshot
from ha_engine.connectors.postgres_cdc.offset import (
    Inside,
    Offset,
    Published,
    lsn_of,
    lsn_text,
)
from ha_engine.connectors.postgres_cdc.options import PostgresCdcOptions
from ha_engine.connectors.postgres_cdc.pgoutput import (
    BadMessage,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Message,
    Other,
    Relation,
    Truncate,
    Unchanged,
    Update,
    Values,
    decode,
)
from ha_engine.connectors.postgres_cdc.rows import require_fit
from ha_engine.connectors.postgres_cdc.values import TypeForm, fields_of, writer_of
from ha_engine.errors import SourceRefused

AT = datetime(2024, 2, 29, 12, 0, 0, 5, tzinfo=UTC)
MICROSECONDS = int((AT - datetime(2000, 1, 1, tzinfo=UTC)).total_seconds() * 10**6)


def text(written: str) -> bytes:
    return written.encode() + b"\0"


def tuple_of(values: Values) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        match value:
            case None:
                parts.append(b"n")
            case Unchanged():
                parts.append(b"u")
            case _:
                parts.append(b"t" + struct.pack(">I", len(value)) + value)
    return b"".join(parts)


def encoded(message: Message) -> bytes:
    """Return what pgoutput sends for ``message``."""
    match message:
        case Begin(lsn, _, xid):
            return b"B" + struct.pack(">QqI", lsn, MICROSECONDS, xid)
        case Commit(lsn, end, _):
            return b"C" + struct.pack(">BQQq", 0, lsn, end, MICROSECONDS)
        case Relation(oid, schema, name, identity, columns):
            head = b"R" + struct.pack(">I", oid) + text(schema) + text(name) + identity.encode()
            parts = [
                bytes([column.is_key]) + text(column.name) + struct.pack(">Ii", column.type_oid, -1)
                for column in columns
            ]
            return head + struct.pack(">H", len(columns)) + b"".join(parts)
        case Insert(relation, new):
            return b"I" + struct.pack(">I", relation) + b"N" + tuple_of(new)
        case Update(relation, old, is_whole, new):
            kind = b"" if old is None else (b"O" if is_whole else b"K") + tuple_of(old)
            return b"U" + struct.pack(">I", relation) + kind + b"N" + tuple_of(new)
        case Delete(relation, old, is_whole):
            kind = b"O" if is_whole else b"K"
            return b"D" + struct.pack(">I", relation) + kind + tuple_of(old)
        case Truncate(relations):
            numbers = struct.pack(f">{len(relations)}I", *relations)
            return b"T" + struct.pack(">IB", len(relations), 0) + numbers
        case Other(kind):
            return kind.encode() + b"what no row of a table needs"


OURS = Relation(7, "public", "t", "d", (Column("id", 23, True), Column("text", 25, False)))
OTHER = Relation(8, "public", "other", "d", (Column("id", 23, True),))
ROW: Values = (b"1", b"\xc3\xa9")

_oids = st.integers(0, 2**32 - 1)
_lsns = st.integers(0, 2**63)
_names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
_values = st.lists(st.none() | st.binary(max_size=20) | st.just(Unchanged.TOAST)).map(tuple)
_columns = st.lists(st.builds(Column, _names, _oids, st.booleans())).map(tuple)
MESSAGES = st.one_of(
    st.builds(Begin, _lsns, st.just(AT), _oids),
    st.builds(Commit, _lsns, _lsns, st.just(AT)),
    st.builds(Relation, _oids, _names, _names, st.sampled_from("dfni"), _columns),
    st.builds(Insert, _oids, _values),
    st.builds(Update, _oids, st.none(), st.just(False), _values),
    st.builds(Update, _oids, _values, st.booleans(), _values),
    st.builds(Delete, _oids, _values, st.booleans()),
    st.builds(Truncate, st.lists(_oids).map(tuple)),
)


@given(MESSAGES)
def test_each_message_is_decoded(message: Message) -> None:
    assert decode(encoded(message)) == message


@pytest.mark.parametrize("kind", ["Y", "O", "M"])
def test_a_message_without_a_change_is_passed_over(kind: str) -> None:
    other = Other(kind)
    assert decode(encoded(other)) == other
    assert steps(changes_at(50), TRANSACTION[0], other) == []


@given(MESSAGES, st.data())
def test_a_damaged_message_is_refused_and_never_half_decoded(
    message: Message, data: st.DataObject
) -> None:
    raw = encoded(message)
    cut = data.draw(st.integers(0, len(raw) - 1))
    for damaged in (raw[:cut], raw + b"x"):
        with pytest.raises(BadMessage):
            decode(damaged)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(raw: bytes) -> None:
    try:
        decode(raw)
    except BadMessage:
        pass


# -- steps -----------------------------------------------------------------------------------------


def steps(changes: Changes, *messages: Message) -> list[tuple[str, int, Values]]:
    found = list[tuple[str, int, Values]]()
    for message in messages:
        for event in changes.events(encoded(message)):
            match event:
                case Step():
                    found.append((event.operation, event.number, event.values))
                case Passed(lsn):
                    found.append(("passed", lsn, ()))
    return found


def changes_at(lsn: int, inside: Inside | None = None) -> Changes:
    return Changes(7, ("id",), lsn, inside)


TRANSACTION = (
    Begin(100, AT, 9),
    OURS,
    OTHER,
    Insert(7, ROW),
    Insert(8, (b"5",)),
    Update(7, (b"1", None), False, (b"2", b"x")),
    Truncate((8, 7)),
    Commit(100, 140, AT),
)


def test_a_change_of_the_key_has_two_steps_and_other_tables_none() -> None:
    assert steps(changes_at(50), *TRANSACTION) == [
        ("insert", 2, ROW),
        ("delete", 3, (b"1", None)),
        ("insert", 4, (b"2", b"x")),
        ("truncate", 6, ()),
        ("passed", 140, ()),
    ]


@pytest.mark.parametrize("done", range(7))
def test_steps_continue_inside_a_transaction(done: int) -> None:
    every = steps(changes_at(50), *TRANSACTION)
    rest = steps(changes_at(50, Inside(100, 9, done)), *TRANSACTION)
    assert rest == [one for one in every if one[1] > done]


def test_a_journalled_transaction_is_passed_over() -> None:
    following = (Begin(150, AT, 10), Insert(7, (b"3", None)), Commit(150, 160, AT))
    assert steps(changes_at(140), *TRANSACTION, *following) == [
        ("insert", 2, (b"3", None)),
        ("passed", 160, ()),
    ]


def test_a_transaction_whose_rest_is_missing_is_refused() -> None:
    for inside in (Inside(90, 9, 2), Inside(100, 8, 2), Inside(100, 9, 8)):
        with pytest.raises(SourceRefused):
            steps(changes_at(50, inside), *TRANSACTION)


def test_an_unchanged_value_is_filled_from_the_old_row() -> None:
    full = Relation(7, "public", "t", "f", OURS.columns)
    update = Update(7, (b"1", b"old"), True, (b"1", Unchanged.TOAST))
    found = steps(changes_at(50), Begin(100, AT, 9), full, update)
    assert found == [("update", 2, (b"1", b"old"))]
    moved = Update(7, (b"1", b"old"), True, (b"2", b"new"))
    found = steps(changes_at(50), Begin(100, AT, 9), full, moved)
    assert [one[0] for one in found] == ["delete", "insert"]


# -- offsets and snapshots -------------------------------------------------------------------------


_keys = st.none() | st.lists(st.text(), min_size=1).map(tuple)
_snapshots = st.builds(Snapshot, _lsns, _lsns, st.frozensets(_lsns))
_pages = st.none() | st.builds(Page, _keys, _snapshots, _lsns)
_orders = st.none() | st.text()
_initials = st.none() | st.builds(
    Initial, _keys, st.booleans(), _pages, st.frozensets(_oids), _orders
)
_insides = st.none() | st.builds(Inside, _lsns, _oids, _oids)


_published = st.builds(Published, _oids, _oids, _oids)


@given(st.builds(Offset, st.text(), _oids, _lsns, _published, _insides, _initials))
def test_an_offset_is_read_as_it_was_written(offset: Offset) -> None:
    assert Offset.parse(offset.text) == offset


@pytest.mark.parametrize("damaged", ["", "7", "{}", "[]", '{"lsn":"x"}', "null"])
def test_a_foreign_offset_is_refused(damaged: str) -> None:
    with pytest.raises(SourceRefused):
        Offset.parse(damaged)


@given(_lsns)
def test_a_position_has_the_form_of_postgresql(lsn: int) -> None:
    assert lsn_of(lsn_text(lsn)) == lsn


def test_a_snapshot_sees_the_transactions_that_ended_before_it() -> None:
    snapshot = Snapshot.parse("10:20:10,15")
    assert [xid for xid in range(5, 25) if snapshot.sees(xid)] == [
        *range(5, 10),
        *range(11, 15),
        *range(16, 20),
    ]
    assert Snapshot.parse("10:10:").sees(9)


@given(st.integers(2**31, 2**40), st.integers(-(2**31) + 1, 2**31 - 1))
def test_a_transaction_id_of_the_log_is_completed(xmax: int, distance: int) -> None:
    xid = xmax + distance
    assert Snapshot(xmax, xmax, frozenset()).sees(xid % 2**32) == (xid < xmax)


def test_a_change_is_left_out_exactly_if_a_page_has_it() -> None:
    initial = Initial().with_page(("5",), False, Snapshot(10, 10, frozenset()), 100)
    assert initial.contains(9, Part.LAST)
    assert not initial.contains(11, Part.LAST)
    assert initial.contains(11, Part.LATER)
    assert not initial.contains(9, Part.EARLIER)
    assert initial.caught_up(99) is initial
    caught_up = initial.caught_up(100)
    assert caught_up is not None
    assert not caught_up.contains(9, Part.LAST)
    last = caught_up.with_page(("7",), True, Snapshot(10, 10, frozenset()), 200)
    assert last.caught_up(200) is None
    assert not initial.with_hidden([12]).may_read(Snapshot(10, 13, frozenset({12})))


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("oid", "target", "written", "expected"),
    [
        (16, pa.bool_(), "t", True),
        (16, pa.string(), "f", "false"),
        (20, pa.int64(), "-9223372036854775808", -9223372036854775808),
        (701, pa.float64(), "1e-07", 1e-07),
        (701, pa.float64(), "NaN", "NaN"),
        (1700, pa.string(), "1.50", "1.50"),
        (17, pa.binary(), "\\x00ff", "AP8="),
        (17, pa.string(), "\\x00ff", "\\x00ff"),
        (114, pa.struct([("a", pa.int64())]), '{"a":\n1}', {"a": 1}),
        (114, pa.string(), '{"a":\n1}', '{"a":\n1}'),
        (1184, pa.timestamp("us", "UTC"), "2024-01-01 00:00:00.5+00", "2024-01-01 00:00:00.5Z"),
        (1184, pa.timestamp("us", "UTC"), "infinity", "infinity"),
        (1007, pa.list_(pa.int32()), "{}", []),
        (1007, pa.list_(pa.list_(pa.int32())), "[0:1][0:0]={{1},{NULL}}", [[1], [None]]),
        (1009, pa.list_(pa.string()), '{a,"b\\"c","NULL",NULL,""}', ["a", 'b"c', "NULL", None, ""]),
        (1009, pa.string(), "{a,b}", "{a,b}"),
        (1007, pa.list_(pa.list_(pa.string())), "{{1},{2}}", [["1"], ["2"]]),
        (1000, pa.list_(pa.list_(pa.string())), "{{t,f}}", [["true", "false"]]),
        (3807, pa.list_(pa.list_(pa.string())), '{"[\\"a\\"]"}', [["a"]]),
        (1020, pa.list_(pa.string()), "{(1,1),(0,0);(3,3),(2,2)}", ["(1,1),(0,0)", "(3,3),(2,2)"]),
        (99999, pa.string(), "new type", "new type"),
    ],
)
def test_a_value_has_the_form_of_its_column(
    oid: int, target: pa.DataType, written: str, expected: object
) -> None:
    forms = {1007: TypeForm(1007, 23), 1009: TypeForm(1009, 25), 1020: TypeForm(1020, 603, ";")}
    forms |= {1000: TypeForm(1000, 16), 3807: TypeForm(3807, 3802)}
    assert json.loads(writer_of(oid, forms, target)(written)) == expected
    assert "\n" not in writer_of(oid, forms, target)(written)


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ("()", [None]),
        ('("")', [""]),
        ("(1,,t)", ["1", None, "t"]),
        ('(1,"a ""b"" \\\\ c, d",)', ["1", 'a "b" \\ c, d', None]),
        ('("""")', ['"']),
        ('("a\nb")', ["a\nb"]),
    ],
)
def test_the_text_of_a_row_is_split(row: str, fields: list[str | None]) -> None:
    assert fields_of(row) == fields


def test_a_large_value_is_split_without_a_state_for_each_character() -> None:
    """The memory of the matcher counts, which tracemalloc does not see."""
    size = 4_000_000
    program = (
        "import resource, sys\n"
        "from ha_engine.connectors.postgres_cdc.values import TypeForm, fields_of, writer_of\n"
        "import pyarrow as pa\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10\n"
        f"value = 'x ' * {size // 2}\n"
        "array = writer_of(1009, {1009: TypeForm(1009, 25)}, pa.list_(pa.string()))\n"
        "before = peak()\n"
        "assert fields_of(f'(1,\"{value}\")') == ['1', value]\n"
        "assert len(array(f'{{\"{value}\"}}')) == len(value) + 4\n"
        "print(peak() - before)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(ended.stdout) < 20 * size


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("lsn_column", pa.field("extra", pa.int32())),
        ("unchanged_column", pa.field("extra", pa.list_(pa.int64()))),
        ("unchanged_column", pa.field("extra", pa.list_(pa.string()), nullable=False)),
        ("before_column", pa.field("extra", pa.string(), nullable=False)),
    ],
)
def test_a_column_that_would_refuse_its_values_is_refused(key: str, field: pa.Field) -> None:
    given = {"host": "h", "database": "d", "user": "u", "table": "t", key: "extra"}
    options = PostgresCdcOptions.model_validate(given)
    with pytest.raises(SourceRefused, match="'extra'"):
        require_fit(options, pa.schema([("op", pa.string()), field]))
