"""The status shows the executors of the present query process, in each form of the status."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from ha_engine.api.status import Executors, _executors
from ha_engine.cli.status_table import _executors as row
from ha_engine.core.process import QueryProcessState
from ha_engine.core.queries import RestartPolicy

FOUND = Executors("node.1", "app-7", live=1, wanted=2, master_connected=False)


@pytest.fixture
def process() -> QueryProcessState:
    process = QueryProcessState("node", RestartPolicy())
    process.start(0.0)
    return process


def shown(text: str) -> str:
    table = Table(show_header=False)
    table.add_row(text)
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    return out.getvalue()


def test_executors_of_an_earlier_query_process_are_not_shown(process: QueryProcessState) -> None:
    body = {"application": "app-7", "live": 1, "wanted": 2, "master_connected": False}
    assert process.incarnation == "node.1"
    assert _executors(process, FOUND) == body
    process.adopt("node.2")
    assert _executors(process, FOUND) is None
    assert _executors(process, None) is None


@pytest.mark.parametrize(("connected", "text"), [(True, "connected"), (False, "not connected")])
def test_the_table_has_a_row_on_a_cluster_only(connected: bool, text: str) -> None:
    body = {"application": "app-7", "live": 1, "wanted": 2, "master_connected": connected}
    process: dict[str, Any] = {"executors": body}
    assert f"1 of 2, master {text}, app-7" in shown(row(process)["executors"])
    assert row({"executors": None}) == row({}) == {}
