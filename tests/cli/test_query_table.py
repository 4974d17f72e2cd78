"""The table of queries prints the reasons of Spark and sinks, whatever text a producer puts
there."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ha_engine.cli.status_table import query_table

QUERY = {
    "state": "failed",
    "batch": 7,
    "published": {"table": 6},
    "backlog_events": 0,
    "outbox_batches": 1,
    "batch_duration_ms": 12,
    "watermark": None,
    "reason": "",
    "sinks": {"table": {"error": None}},
}


@pytest.mark.parametrize(
    "said",
    ["[CAST_INVALID_INPUT] The value '[/b]' cannot be cast", "no rule for [delay] in row"],
)
@pytest.mark.parametrize("by_the_sink", [False, True])
def test_brackets_in_a_reason_are_printed_as_text(said: str, by_the_sink: bool) -> None:
    told = {"sinks": {"table": {"error": said}}} if by_the_sink else {"reason": said}
    shown = io.StringIO()
    Console(file=shown, width=400).print(query_table({"queries": {"delays": QUERY | told}}))
    assert said in shown.getvalue()
