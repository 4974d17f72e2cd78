"""A test file is read with the words of JSON, and each error names its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.app_test.cases import END
from ha_engine.app_test.comparison import compare, plain
from ha_engine.app_test.events import decode_batches
from ha_engine.app_test.file import read_cases
from ha_engine.app_test.run import QueryOutput
from ha_engine.app_test.suite import CaseResult, SuiteResult
from ha_engine.app_test.update import update_file
from ha_engine.errors import BadTestFile

APPLICATION = """
name: shop
streams:
  orders:
    schema: {at: timestamp not null, shop: string not null, amount: int, price: "decimal(10,2)"}
    watermark: {column: at, delay: 0s}
  refunds:
    schema: {at: timestamp not null, shop: string not null}
queries:
  all: {sql: "SELECT shop, amount FROM orders"}
  counts:
    sql: SELECT shop, count(*) AS n, avg(amount) AS mean FROM orders GROUP BY shop
    output_mode: update
    sinks: [{name: table, type: postgres, table: counts, mode: upsert, key: [shop]}]
"""
TESTS = """
application: application.yaml
tests:
  one:
    input:
      - orders:
          - {at: 2024-01-01T10:00:00Z, shop: no, amount: 1}
    expect:
      all: []
"""
COUNTS = pa.schema([("shop", pa.string()), ("n", pa.int64()), ("mean", pa.float64())])

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a test file beside the application."""
    (tmp_path / "application.yaml").write_text(APPLICATION)

    def to_file(text: str) -> Path:
        path = tmp_path / "tests.yaml"
        path.write_text(text)
        return path

    return to_file


def rows_of(path: Path) -> list[list[dict[str, Any]]]:
    """The decoded rows of each record of the first test."""
    file = read_cases(path)
    batches = decode_batches(file.cases[0], file.application)
    return [record.rows.to_pylist() for batch in batches for record in batch.records]


def test_only_the_words_of_json_are_no_texts(write: Write) -> None:
    text = TESTS.replace("shop: no", "shop: 5:30, price: 1.10")
    (row,) = rows_of(write(text))[0]
    assert (row["shop"], row["amount"], str(row["price"])) == ("5:30", 1, "1.10")
    (row,) = rows_of(write(TESTS))[0]
    assert row["shop"] == "no"


def test_an_event_has_the_defaults_of_its_stream(write: Write) -> None:
    defaults = "defaults:\n  orders: {shop: north, amount: 7}\ntests:"
    text = TESTS.replace("tests:", defaults).replace("shop: no, amount: 1", "amount: 2")
    (row,) = rows_of(write(text))[0]
    assert (row["shop"], row["amount"]) == ("north", 2)


def test_a_batch_has_events_of_several_streams_in_their_order(write: Write) -> None:
    order, refund = "at: 2024-01-01, shop: a", "at: 2024-01-01, shop: b"
    text = f"""
application: application.yaml
tests:
  one:
    input:
      - - orders: [{{{order}}}]
        - refunds: [{{{refund}}}]
        - orders: [{{{order}}}, {{{order}}}]
      - {{}}
      -
      - {{refunds: [{{{refund}}}], _received_at: 2024-05-01T00:00:00Z}}
    expect: {{all: []}}
"""
    file = read_cases(write(text))
    batches = decode_batches(file.cases[0], file.application)
    found = [[(one.stream, one.rows.num_rows) for one in batch.records] for batch in batches]
    assert found == [[("orders", 1), ("refunds", 1), ("orders", 2)], [], [], [("refunds", 1)]]
    assert [batch.received_at.isoformat() for batch in batches] == [
        "2024-01-01T00:00:01+00:00",
        "2024-01-01T00:00:02+00:00",
        "2024-01-01T00:00:03+00:00",
        "2024-05-01T00:00:00+00:00",
    ]


def test_events_may_be_in_a_file_beside_the_test_file(write: Write, tmp_path: Path) -> None:
    text = TESTS.replace(
        "\n          - {at: 2024-01-01T10:00:00Z, shop: no, amount: 1}", " more.csv"
    )
    (tmp_path / "more.csv").write_text("at,shop,amount\n2024-01-01,a,1\n2024-01-02,b,\n")
    assert [row["amount"] for row in rows_of(write(text))[0]] == [1, None]
    (tmp_path / "more.csv").write_text("at,shop,amount\n2024-01-01,a,1\n2024-01-02,b,many\n")
    with pytest.raises(BadTestFile, match=r"tests\.yaml:6: .*line or row 3 of the file: .*amount"):
        rows_of(write(text))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("application:", "applicaton:", r":2: applicaton is not a known key; did you mean 'appl"),
        ("input:", "inputs:", r":5: tests.one.inputs is not a known key; did you mean 'input'"),
        ("- orders", "- order", r":6: .*no stream 'order'; did you mean 'orders'"),
        ("all: []", "al: []", r":9: .*no query 'al'; did you mean 'all'"),
        ("amount: 1", "amount: one", r":7: tests.one.input\[0\].orders\[0\]: .*amount"),
        ("amount: 1", "amont: 1", r":7: .*orders\[0\]: .*amont"),
        ("shop: no, ", "", r":7: .*orders\[0\]: .*shop"),
        ("shop: no", "shop: no, shop: a", r"key 'shop' is written twice, in line 7"),
        ("all: []", "all: {ordered: true}", r":9: .*needs one of rows and file"),
        ("all: []", "all: {rows: [], changes: true, key: [a]}", r":9: .*remove one of both"),
        ("- orders", "- _received_at: soon\n        orders", r":6: .*_received_at: "),
        ("application.yaml", "other.yaml", r"other.yaml: cannot be read"),
    ],
)
def test_an_error_names_its_place_and_what_to_write(
    write: Write, old: str, new: str, error: str
) -> None:
    assert old in TESTS
    with pytest.raises(Exception, match=error) as raised:
        rows_of(write(TESTS.replace(old, new, 1)))
    assert getattr(raised.value, "exit_code", None) == 2


def test_a_test_that_does_not_exist_is_refused(write: Write) -> None:
    with pytest.raises(BadTestFile, match=r"no test 'on'; did you mean 'one'"):
        read_cases(write(TESTS), ["on"])


# -- expected rows ---------------------------------------------------------------------------------


def compared(path: Path, batches: dict[int, list[dict[str, Any]]], inputs: int = 2) -> Any:
    """Compare batches of the query ``counts`` with the expected rows of the only test."""
    file = read_cases(path)
    tables = {number: pa.Table.from_pylist(rows, COUNTS) for number, rows in batches.items()}
    (expectation,) = file.cases[0].expected
    spec = file.application.queries[expectation.query]
    return compare(expectation, spec, QueryOutput(COUNTS, tables, inputs))


def expecting(rows: str) -> str:
    return TESTS.replace("all: []", f"counts: {rows}")


def row(shop: str, n: int, mean: float = 1.0) -> dict[str, Any]:
    return {"shop": shop, "n": n, "mean": mean}


UPDATES = {1: [row("a", 1), row("b", 1)], 2: [row("a", 2, 0.1 + 0.2)], 3: []}


@pytest.mark.parametrize(
    "rows",
    [
        "[{shop: b, n: 1}, {shop: a, n: 2}]",
        "[{mean: 0.3}, {mean: 1}]",
        "{key: [n], rows: [{shop: b, n: 1}, {shop: a, n: 2}]}",
        "{changes: true, rows: [{shop: a}, {shop: a}, {shop: b}]}",
        "{changes: true, ordered: true, rows: [{n: 1}, {n: 1}, {n: 2}]}",
        "[{_batch: 1, shop: b}, {_batch: 2, shop: a}]",
        "[{_batch: 2}, {_batch: 1}]",
    ],
)
def test_expected_rows_equal_the_newest_row_of_each_key(write: Write, rows: str) -> None:
    assert compared(write(expecting(rows)), UPDATES).is_none


@pytest.mark.parametrize(
    "rows",
    [
        "[]",
        "[{shop: a, n: 2}]",
        "[{shop: b, n: 1}, {shop: a, n: 2}, {shop: a, n: 2}]",
        "[{shop: b, n: 1}, {shop: a, n: 3}]",
        "[{mean: 0.30001}, {mean: 1}]",
        "{changes: true, rows: [{shop: b, n: 1}, {shop: a, n: 2}]}",
        "{changes: true, ordered: true, rows: [{n: 2}, {n: 1}, {n: 1}]}",
        "[{_batch: 1, shop: b}, {_batch: end, shop: a}]",
    ],
)
def test_other_rows_differ(write: Write, rows: str) -> None:
    assert not compared(write(expecting(rows)), UPDATES).is_none


def test_a_batch_after_the_input_is_named_end(write: Write) -> None:
    found = compared(
        write(expecting("[{_batch: 1, shop: a}, {_batch: end, shop: b}]")),
        {
            1: [row("a", 1)],
            2: [],
            3: [row("b", 1)],
        },
    )
    assert found.is_none
    assert [one["_batch"] for one in found.actual] == [1, END]


def test_rows_with_one_key_are_shown_beside_each_other(write: Write) -> None:
    found = compared(
        write(expecting("[{shop: a, n: 3, mean: 9}, {shop: b, n: 1, mean: 1}]")), UPDATES
    )
    (near,) = found.near
    assert near.columns == ("n", "mean")
    assert (found.missing, found.unexpected) == ((), ())


def test_a_row_like_an_expected_one_is_shown_beside_it(write: Write) -> None:
    found = compared(write(expecting("[{shop: a, n: 3}, {shop: c, n: 9}]")), UPDATES)
    (near,) = found.near
    assert (near.expected["n"], near.actual["n"], near.columns) == (3, 2, ("n",))
    assert [one["shop"] for one in found.missing] == ["c"]
    assert [one["shop"] for one in found.unexpected] == ["b"]


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ("[{shap: a}]", r":9: tests.one.expect.counts\[0\].shap: .*did you mean 'shop'"),
        ("[{n: many}]", r"counts\[0\]: .*n"),
        ("[{shop: a, n: 1}, {shop: b}]", r"counts\[1\]: only one of .* names n; "),
        ("[{_batch: 0}]", r"_batch: must be the number of a batch"),
        ("[{}]", r"names no column"),
        ("{key: [shap], rows: []}", r"key: the query has no column 'shap'"),
        ("missing.csv", r"missing.csv cannot be read"),
    ],
)
def test_an_expected_row_that_does_not_fit_the_query_is_refused(
    write: Write, rows: str, error: str
) -> None:
    with pytest.raises(BadTestFile, match=error):
        compared(write(expecting(rows)), UPDATES)


def test_expected_rows_may_be_in_a_file(write: Write, tmp_path: Path) -> None:
    (tmp_path / "rows.ndjson").write_text('{"shop":"b","n":1}\n{"shop":"a","n":2}\n')
    assert compared(write(expecting("rows.ndjson")), UPDATES).is_none
    (tmp_path / "rows.csv").write_text("n,shop\n1,b\n3,a\n")
    assert compared(write(expecting("rows.csv")), UPDATES).near[0].columns == ("n",)


# -- update ----------------------------------------------------------------------------------------


def updated(path: Path) -> tuple[int, list[str]]:
    file = read_cases(path)
    found = compared(path, UPDATES)
    case = CaseResult("one", (found,), {"counts": ()}, 0.0)
    return update_file(SuiteResult(file, (case,), 0.0))


@pytest.mark.parametrize(
    "rows",
    [
        "\n        # of the shop\n        - {shop: a, n: 1} # first\n        - {shop: c, n: 1}",
        "\n      - shop: a\n        n: 1\n      - {shop: c, n: 1}",
        "[{shop: c, n: 5}]",
        "\n        ordered: false\n        rows: # all\n          - {shop: c, n: 1}",
        "\n        rows: [{shop: c, n: 1}]\n        ordered: false",
    ],
)
def test_update_replaces_only_the_expected_rows(write: Write, rows: str) -> None:
    text = "# a comment\n" + expecting(rows) + "    close: false # kept\n"
    path = write(text)
    assert updated(path) == (1, [])
    assert compared(path, UPDATES).is_none
    now = path.read_text()
    assert now.startswith("# a comment\n")
    assert now.endswith("    close: false # kept\n")
    assert "{shop: a, n: 2}" in now
    assert "{shop: b, n: 1}" in now


def test_update_of_no_rows_names_all_columns_and_keeps_flow_style(write: Write) -> None:
    path = write(TESTS.replace("\n      all: []", " {counts: []}"))
    assert updated(path) == (1, [])
    assert path.read_text().splitlines()[-1] == (
        "    expect: {counts: [{shop: a, n: 2, mean: 0.30000000000000004}, "
        "{shop: b, n: 1, mean: 1.0}]}"
    )


def test_update_keeps_rows_that_are_elsewhere(write: Write, tmp_path: Path) -> None:
    (tmp_path / "rows.ndjson").write_text('{"shop":"b","n":2}\n')
    path = write(expecting("rows.ndjson"))
    count, (reason,) = updated(path)
    assert count == 0
    assert "update that file yourself" in reason


def test_values_are_shown_as_events_have_them() -> None:
    assert plain(float("nan")) == "NaN"
    assert plain(b"ab") == "YWI="
