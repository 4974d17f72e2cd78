"""The expressions that docs/MIGRATION.md gives for the functions of Siddhi can run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ha_engine.query.application import load_application
from ha_engine.query.check import check_application
from tests.docs.pages import ROOT

pytestmark = pytest.mark.spark

PAGE = ROOT / "docs" / "MIGRATION.md"
STREAM = {
    "schema": {
        "at": "timestamp not null",
        "a": "double",
        "b": "double",
        "text": "string",
        "flag": "boolean",
    },
    "watermark": {"column": "at", "delay": "10s"},
    "system_columns": ["_received_at", "_event_id"],
}
_EXPRESSION = re.compile(r"`(at|_received_at|_event_id|a \* [^`]+|\w+\([^`]*\))`")
_AGGREGATE = re.compile(r"(sum|max|stddev_pop|bool_\w+|percentile|approx_\w+|size\(collect_set)\(")


def expressions() -> list[str]:
    """The expressions in the second column of the table of functions."""
    table = PAGE.read_text().partition("### Functions\n")[2].partition("\n\nThese extensions")[0]
    cells = (line.split(" | ", 1)[1] for line in table.splitlines() if line.startswith("| `"))
    return [expression for cell in cells for expression in _EXPRESSION.findall(cell)]


def test_each_expression_in_place_of_a_function_can_run(spark: Any, tmp_path: Path) -> None:
    found = expressions()
    assert len(found) > 25
    queries = {}
    for number, expression in enumerate(found):
        sql = f"SELECT {expression} AS x FROM events"
        if _AGGREGATE.match(expression):
            sql += " GROUP BY window(at, '1 minute')"
        queries[f"q{number}"] = {"sql": sql}
    path = tmp_path / "application.yaml"
    tree = {"name": "a", "streams": {"events": STREAM}, "queries": queries}
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    report = check_application(load_application(path), spark)
    refused = [(one, query.error) for one, query in zip(found, report.queries, strict=True)]
    assert [both for both in refused if both[1]] == []
