"""Expressions of patterns that no pattern can have, or whose value would differ between nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ha_engine.query.application import StreamApplication
from ha_engine.query.check import check_application
from tests.programs import needs

pytestmark = [needs("javac"), pytest.mark.spark]

PATTERN = """
  pattern:
    pattern:
      from: events
      by: [key]
      sequence:
        - first: "CONDITION"
        - second: text = first.text
      within: 15 minutes
      yield: {key: key, value: "COLUMN"}
"""


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("value", "first: 'value' is no condition, but a int"),
        ("nothing > 1", "first: [UNRESOLVED_COLUMN"),
        ("value > (SELECT max(value) FROM events)", "first"),
        ("value > rand()", "rand"),
        ("at > current_timestamp()", "current_timestamp"),
        ("sum(max(value)) > 1", "an aggregate within an aggregate"),
        ("sum(value", "is not closed"),
        ("value > second.value", "no second comes before first"),
        ("count(second) = 0", "no second comes before first"),
        ("stddev(value) > 1", "a pattern knows the aggregates"),
        ("count(DISTINCT value) > 1", "a pattern knows no DISTINCT"),
        ("sum(first.value - ratio) > 1", "mixes ratio with columns of a step"),
        ("exists(array(value), second -> second > 1)", "the variable 'second' of a lambda"),
        ("row_number() OVER (ORDER BY value) = 1", "a pattern"),
        ("last(value, 17) > 1", "from 0 to 16"),
    ],
)
def test_a_condition_is_refused_with_its_step(
    spark: Any, application: Callable[[str], StreamApplication], condition: str, reason: str
) -> None:
    text = PATTERN.replace("CONDITION", condition).replace("COLUMN", "second.value")
    (report,) = check_application(application(text), spark).queries
    assert report.error is not None
    assert reason in report.error


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("prev(value)", "prev(value) is only for conditions"),
        ("count(second) AS many", "PARSE_SYNTAX_ERROR"),
    ],
)
def test_a_column_is_refused_with_its_name(
    spark: Any, application: Callable[[str], StreamApplication], column: str, reason: str
) -> None:
    text = PATTERN.replace("CONDITION", "true").replace("COLUMN", column)
    (report,) = check_application(application(text), spark).queries
    assert report.error is not None
    assert report.error.startswith("query pattern: value: ")
    assert reason in report.error


@pytest.mark.parametrize("column", ["uuid()", "shuffle(collect_list(second.value))[0]"])
def test_a_column_that_differs_between_runs_is_refused(
    spark: Any, application: Callable[[str], StreamApplication], column: str
) -> None:
    text = PATTERN.replace("CONDITION", "true").replace("COLUMN", column)
    (report,) = check_application(application(text), spark).queries
    assert report.error is not None
    assert "differ" in report.error or "same" in report.error


def test_expressions_that_an_optimizer_rewrites_are_accepted(
    spark: Any, application: Callable[[str], StreamApplication]
) -> None:
    condition = (
        "coalesce(nullif(value, 0), 1) BETWEEN 1 AND 3 AND text ILIKE '%a%' AND value IN (1, 2)"
    )
    text = PATTERN.replace("CONDITION", condition).replace("COLUMN", "try_divide(second.value, 2)")
    (report,) = check_application(application(text), spark).queries
    assert report.error is None


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("second.value", "no expression names a column of the table others"),
        ("others.size", "others: [UNRESOLVED_COLUMN"),
        ("max(second.others.weight)", "others is a table and belongs to no step"),
        ("second.others.weight", "others is a table and belongs to no step"),
        ("exists(array(1), others -> others > 1)", "the name of a step or a table"),
        ("prev(others.weight)", "prev(others.weight) is only for conditions"),
        ("others IS NOT NULL", "others is a table; name one of its columns"),
        ("others/* the newest */.weight", "has a comment within a name"),
    ],
)
def test_a_table_is_refused_with_its_name(
    spark: Any, application: Callable[[str], StreamApplication], column: str, reason: str
) -> None:
    text = PATTERN.replace("CONDITION", "true").replace("COLUMN", column)
    text = text.replace("from: events", "from: events\n      tables: [others]")
    (report,) = check_application(application(text), spark).queries
    assert report.error is not None
    assert reason in report.error


@pytest.mark.parametrize("column", ["`others`.`weight`", "max(others.weight)"])
def test_a_column_of_a_table_is_accepted(
    spark: Any, application: Callable[[str], StreamApplication], column: str
) -> None:
    text = PATTERN.replace("CONDITION", "true").replace("COLUMN", column)
    text = text.replace("from: events", "from: events\n      tables: [others]")
    (report,) = check_application(application(text), spark).queries
    assert report.error is None
