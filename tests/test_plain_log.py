"""The supervisor's log lines have the form of those of the other processes."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator

import pytest
import structlog

from ha_engine import logs
from ha_engine.config import LogConfig
from ha_engine.supervisor.plain_log import PlainLog, configure

LINES = [
    ("info", "query process ended", {"reason": "killed by SIGKILL", "code": 3}),
    ("warning", "node process ended", {"code": -9, "restart_in_seconds": 0.5, "quoted": 'a "b"'}),
    ("error", "no lease", {"reason": "postgresql://user:secret@host/x refused", "known": True}),
    ("debug", "node process started", {"pid": 17}),
    ("info", "an event with more letters than the column has", {"empty": None}),
]
WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.fixture(autouse=True)
def plain_log_as_before(logging_as_before: None) -> Iterator[None]:
    yield
    configure(node="", process="", format="human", level="info")


def written(form: str, level: str) -> tuple[list[str], list[str]]:
    """Return lines written by PlainLog and by structlog, without the time of day."""
    plain, usual = io.StringIO(), io.StringIO()
    log = PlainLog("ha_engine.supervisor")
    configure(node="a", process="supervisor", format=form, level=level, stream=plain)
    config = LogConfig.model_validate({"format": form, "level": level})
    logs.configure(config, node="a", process="supervisor", stream=usual)
    other = structlog.get_logger("ha_engine.supervisor")
    for name, event, fields in LINES:
        getattr(log, name)(event, **fields)
        getattr(other, name)(event, **fields)
    first, second = (WHEN.sub("T", out.getvalue()).splitlines() for out in (plain, usual))
    return first, second


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_plain_line_equals_that_of_structlog(level: str) -> None:
    plain, usual = written("human", level)
    assert plain == usual
    assert plain


@pytest.mark.parametrize("level", ["debug", "error"])
def test_json_line_has_the_fields_of_structlog(level: str) -> None:
    plain, usual = written("json", level)
    assert [json.loads(line) for line in plain] == [json.loads(line) for line in usual]
    assert plain
