"""``ha-engine app test`` with real Spark: the batches, the end of time, the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from tests.programs import needs

pytestmark = pytest.mark.spark

SAMPLES = Path(__file__).parents[2] / "conf" / "applications"

APPLICATION = """
name: shop
streams:
  orders:
    schema: {at: timestamp not null, id: int not null, amount: string}
    watermark: {column: at, delay: 10 minutes}
    system_columns: [_received_at, _event_id]
  payments:
    schema: {at: timestamp not null, id: int not null}
    watermark: {column: at, delay: 10 minutes}
    log: {type: kafka, brokers: ["kafka.example:9092"], topic: payments}
queries:
  hours:
    sql: SELECT window.start AS hour, count(*) AS n FROM orders GROUP BY window(at, '1 hour')
  days: # a window over the windows of an hour
    sql: >
      SELECT window.start AS day, max(n) AS most
      FROM (SELECT window AS hour, count(*) AS n FROM orders GROUP BY window(at, '1 hour'))
      GROUP BY window(window_time(hour), '1 day')
  unpaid:
    sql: >
      SELECT o.id, p.id AS paid FROM orders o LEFT JOIN payments p
      ON o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 HOUR
  forgotten:
    pattern:
      from: [orders, payments]
      by: [id]
      sequence: [placed: {from: orders}, not paid: {from: payments}]
      within: 1 hour
  totals:
    sql: SELECT count(*) AS n, sum(CAST(amount AS INT)) AS total FROM orders
    output_mode: complete
  changes:
    sql: SELECT id, count(*) AS n FROM orders GROUP BY id
    output_mode: update
  received:
    sql: SELECT _event_id, _received_at FROM orders
  first:
    function: rules:first_of_each
    streams: [orders]
"""
RULES = """
def first_of_each(streams):
    return streams["orders"].dropDuplicatesWithinWatermark(["id"]).select("id")
"""
TESTS = """
application: application.yaml
tests:
  the end of time closes windows, joins and absences:
    input:
      - orders: [{at: 2024-05-01T10:15:00Z, id: 1}, {at: 2024-05-01T10:45:00Z, id: 2}]
        payments: [{at: 2024-05-01T10:20:00Z, id: 1}]
    expect:
      hours: [{hour: 2024-05-01T10:00:00Z, n: 2, _batch: end}]
      days: [{day: 2024-05-01, most: 2}]
      unpaid: [{id: 1, paid: 1}, {id: 2, paid: null}]
      forgotten: [{id: 2}]
      first: [{id: 1}, {id: 2}]

  without it a window stays open:
    close: false
    input:
      - orders: [{at: 2024-05-01T10:15:00Z, id: 1}]
    expect:
      hours: []
      unpaid: []

  all events in one batch are in time:
    input:
      - orders:
          - {at: 2024-05-01T10:15:00Z, id: 1}
          - {at: 2024-05-01T12:15:00Z, id: 2}
          - {at: 2024-05-01T10:16:00Z, id: 3}
    expect:
      hours: [{n: 2}, {n: 1}]

  the cut between batches makes an event late:
    input:
      - orders: [{at: 2024-05-01T10:15:00Z, id: 1}]
      - orders: [{at: 2024-05-01T12:15:00Z, id: 2}]
      - {}
      - orders: [{at: 2024-05-01T10:16:00Z, id: 3}, {at: 2024-05-01T12:16:00Z, id: 4}]
    expect:
      hours: [{hour: 2024-05-01T10:00:00Z, n: 1}, {hour: 2024-05-01T12:00:00Z, n: 2}]

  tables have the newest rows:
    input:
      - orders: [{at: 2024-05-01T10:15:00Z, id: 1, amount: "1"}]
      - orders: [{at: 2024-05-01T10:15:00Z, id: 1, amount: "5"}]
        _received_at: 2024-05-02T00:00:00Z
    expect:
      totals: [{n: 2, total: 6}]
      changes: {key: [id], rows: [{id: 1, n: 2}]}
      received:
        ordered: true
        rows:
          - {_event_id: 1-0, _received_at: 2024-01-01T00:00:01Z}
          - {_event_id: 2-0, _received_at: 2024-05-02T00:00:00Z}

  a test without input:
    input: []
    expect: {hours: [], totals: [{n: 0, total: null}]}

  other rows:
    input:
      - orders: [{at: 2024-05-01T10:15:00Z, id: 1}, {at: 2024-05-01T11:15:00Z, id: 2}]
    expect:
      hours: [{hour: 2024-05-01T10:00:00Z, n: 2}]
      changes: [{id: 1, n: 1}, {id: 2, n: 1}]

  a query that fails:
    input:
      - orders: [{at: 2024-05-01T10:15:00Z, id: 1, amount: "1"}]
      - orders: [{at: 2024-05-01T10:15:00Z, id: 1, amount: many}]
    expect:
      totals: []
"""
FAILING = {"other rows", "a query that fails"}


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ha_engine", "app", "test", *words],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of the command about TESTS, by the names of the tests, and the updated text."""
    if not JAR.exists():
        build(JAR)
    directory = tmp_path_factory.mktemp("tests")
    (directory / "application.yaml").write_text(APPLICATION)
    (directory / "rules.py").write_text(RULES)
    (directory / "tests.yaml").write_text(TESTS)
    ended = command(str(directory / "tests.yaml"), "-f", "json", "--progress", "--update")
    assert ended.returncode == 1, ended.stderr
    assert "test other rows: failed in" in ended.stderr
    tree = json.loads(ended.stdout)
    assert tree["failed"] == len(FAILING)
    tests = {test["name"]: test for test in tree["tests"]}
    return {**tests, "text": (directory / "tests.yaml").read_text()}


@pytest.mark.parametrize(
    "name",
    [
        "the end of time closes windows, joins and absences",
        "without it a window stays open",
        "all events in one batch are in time",
        "the cut between batches makes an event late",
        "tables have the newest rows",
        "a test without input",
    ],
)
def test_expected_rows_are_those_of_the_query(report: dict[str, Any], name: str) -> None:
    assert report[name]["passed"], report[name]


def test_a_dropped_late_event_is_a_note_with_its_line(report: dict[str, Any]) -> None:
    (query,) = report["the cut between batches makes an event late"]["queries"]
    (note,) = query["notes"]
    line = 1 + TESTS[: TESTS.rindex("10:16:00Z")].count("\n")
    assert note == (
        "batch 4: the query dropped 1 late row; its events up to the watermark "
        f"2024-05-01T12:05:00.000Z: line {line}"
    )
    (query,) = report["all events in one batch are in time"]["queries"]
    assert query["notes"] == []


def test_a_difference_shows_the_columns_that_differ(report: dict[str, Any]) -> None:
    hours, changes = report["other rows"]["queries"]
    (near,) = hours["differing"]
    assert (near["expected"]["n"], near["actual"]["n"], near["columns"]) == (2, 1, ["n"])
    assert [row["hour"] for row in hours["unexpected"]] == ["2024-05-01T11:00:00+00:00"]
    assert (hours["passed"], changes["passed"]) == (False, True)


def test_a_failed_query_fails_its_test_with_batch_and_reason(report: dict[str, Any]) -> None:
    (query,) = report["a query that fails"]["queries"]
    assert query["error"].startswith("batch 2: ")
    assert "many" in query["error"]


def test_an_update_replaces_only_the_rows_that_differ(report: dict[str, Any]) -> None:
    before, after = TESTS.splitlines(), report["text"].splitlines()
    old = "      hours: [{hour: 2024-05-01T10:00:00Z, n: 2}]"
    at = before.index(old)
    assert before[:at] == after[:at]
    assert before[at + 1 :] == after[at + 3 :]
    assert after[at : at + 3] == [
        "      hours:",
        "        - {hour: 2024-05-01T10:00:00+00:00, n: 1}",
        "        - {hour: 2024-05-01T11:00:00+00:00, n: 1}",
    ]


PASSED = {"flights.yaml": 3, "rules.yaml": 5, "turnaround.yaml": 1}


@needs("javac")
@pytest.mark.nightly("the other tests run an application, and test_samples.py plans each sample")
def test_the_tests_of_each_sample_pass() -> None:
    files = sorted((SAMPLES / "tests").glob("*.yaml"))
    assert [file.name for file in files] == [*PASSED]
    for file in files:
        ended = command(str(file))
        assert ended.returncode == 0, ended.stdout
        assert ended.stdout.splitlines()[-1].startswith(f"{PASSED[file.name]} passed in ")


def test_a_column_that_no_query_has_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "application.yaml").write_text(APPLICATION)
    (tmp_path / "rules.py").write_text(RULES)
    file = tmp_path / "tests.yaml"
    file.write_text(TESTS.replace("at: 2024-05-01T10:16:00Z", "ta: 2024-05-01T10:16:00Z"))
    ended = command(str(file))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "orders[2]" in ended.stderr
