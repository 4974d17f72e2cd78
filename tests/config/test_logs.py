"""The lines on stderr: those of the engine and of libraries, in one form, without secrets."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from ha_engine.config import LogConfig
from ha_engine.logs import configure

pytestmark = pytest.mark.usefixtures("logging_as_before")


def json_lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_json_line_names_node_and_process() -> None:
    out = io.StringIO()
    configure(LogConfig(format="json"), node="node-a", process="query", stream=out)
    structlog.get_logger("ha_engine.core").info("became active", epoch=7)
    [line] = json_lines(out)
    assert (line["event"], line["epoch"], line["level"]) == ("became active", 7, "info")
    assert (line["node"], line["process"], line["logger"]) == ("node-a", "query", "ha_engine.core")


def test_lines_below_the_level_are_dropped() -> None:
    out = io.StringIO()
    configure(LogConfig(format="json", level="warning"), node="a", process="node", stream=out)
    structlog.get_logger("x").info("quiet")
    logging.getLogger("uvicorn.error").info("quiet")
    structlog.get_logger("x").warning("loud")
    assert [line["event"] for line in json_lines(out)] == ["loud"]


def test_changed_level_applies_to_existing_loggers() -> None:
    out, log = io.StringIO(), structlog.get_logger("x")
    for level in ("info", "debug", "warning"):
        form = LogConfig.model_validate({"format": "json", "level": level})
        configure(form, node="a", process="node", stream=out)
        log.debug(f"debug at {level}")
        log.info(f"info at {level}")
    assert [line["event"] for line in json_lines(out)] == [
        "info at info",
        "debug at debug",
        "info at debug",
    ]


def test_lines_of_libraries_have_the_same_form() -> None:
    logging.getLogger("uvicorn.access").setLevel(
        logging.CRITICAL
    )  # the level that an earlier server has set
    out = io.StringIO()
    configure(LogConfig(format="json"), node="a", process="node", stream=out)
    logging.getLogger("uvicorn.access").warning("request %d", 3)
    [line] = json_lines(out)
    assert (line["event"], line["node"]) == ("request 3", "a")


def test_lines_that_every_malformed_request_would_write_are_dropped() -> None:
    out = io.StringIO()
    configure(LogConfig(format="json"), node="a", process="node", stream=out)
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("uvicorn.error").error("Exception in ASGI application")
    assert [line["event"] for line in json_lines(out)] == ["Exception in ASGI application"]


@pytest.mark.parametrize("form", ["human", "json"])
def test_secrets_are_masked_in_values_messages_and_tracebacks(form: str) -> None:
    out = io.StringIO()
    configure(LogConfig.model_validate({"format": form}), node="a", process="node", stream=out)
    log = structlog.get_logger("x")
    log.info("to postgresql://engine:hunter2@db/f", password="hunter2", dsn="password=hunter2 x=1")
    try:
        raise OSError("postgresql://engine:hunter2@db/f is gone")
    except OSError:
        log.exception("failed")
    assert "hunter2" not in out.getvalue()
    assert "**redacted**" in out.getvalue()
    assert "Traceback" in out.getvalue()


def test_plain_lines_have_no_colours_outside_a_terminal() -> None:
    out = io.StringIO()
    configure(LogConfig(), node="a", process="node", stream=out)
    structlog.get_logger("x").info("hello")
    assert "hello" in out.getvalue()
    assert "\x1b[" not in out.getvalue()
