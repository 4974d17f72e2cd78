"""Bad input over HTTP to a running node: a clear answer, no event stored, no crash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.node_under_test import NodeUnderTest, running
from tests.e2e.without_spark import no_spark

pytestmark = [pytest.mark.slow]

APPLICATION = """
name: bad_input
streams:
  events:
    schema: {id: int not null, value: double, text: string, at: timestamp}
queries:
  copies:
    sql: SELECT id, value, text FROM events
    sinks:
      - {name: table, type: postgres, table: copies, auto_create: true}
"""
JSON, LINES = "application/json", "application/x-ndjson"
MIB = 1 << 20
MAX_BODY_BYTES = 16 * MIB

BAD_EVENTS: dict[str, tuple[list[Any], int, str]] = {
    "wrong type": (
        [{"id": 1}, {"id": "x"}],
        1,
        "field 'id' is \"x\", expected a whole number of 32 bits",
    ),
    "wrong type of a timestamp": (
        [{"id": 1, "at": "noon"}],
        0,
        "field 'at' is \"noon\", expected a timestamp",
    ),
    "number out of range": (
        [{"id": 1 << 31}],
        0,
        "field 'id' is 2147483648, expected a whole number of 32 bits",
    ),
    "missing field": (
        [{"id": 1}, {"id": 2}, {"value": 1.5}],
        2,
        "field 'id' is missing, but the stream declares it not null",
    ),
    "extra field": (
        [{"id": 1, "colour": "red"}],
        0,
        "the stream has no field 'colour'; it has id, value, text, at",
    ),
    "null where none may be": (
        [{"id": None}],
        0,
        "field 'id' is null, but the stream declares it not null",
    ),
    "NaN": (
        [{"id": 1, "value": float("nan")}],
        0,
        "field 'value' is NaN, expected a finite number of 64 bits",
    ),
    "infinity": (
        [{"id": 1, "value": float("-inf")}],
        0,
        "field 'value' is -Infinity, expected a finite number of 64 bits",
    ),
    "no object": ([{"id": 1}, 7], 1, "object"),
}
"""Rows, the number of the first bad one, and a part of its reason."""

BROKEN_BODIES = {
    "2 MiB of nested arrays": (b'[{"id":1,"text":' + b"[" * MIB + b"]" * MIB + b"}]", JSON),
    "2 MiB of nested objects": (b'{"a":' * (2 * MIB // 6) + b"1" + b"}" * (2 * MIB // 6), LINES),
    "a body cut short": (b'[{"id": 1', JSON),
    "an empty body": (b"", LINES),
    "bytes that are no UTF-8": (b'{"id": 1, "text": "\xff\xfe"}', LINES),
    "two objects on a line": (b'{"id": 1} {"id": 2}', LINES),
}


@pytest.fixture(scope="module")
def node(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUnderTest]:
    """Start an active without Spark, since bad input must not reach Spark."""
    directory = tmp_path_factory.mktemp("bad-input")
    node = NodeUnderTest(
        directory, APPLICATION, module_database, http={"max_body": f"{MAX_BODY_BYTES // MIB}MiB"}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(no_spark(directory)))
        with running(node):
            node.wait_active()
            yield node


@pytest.fixture(autouse=True)
def stored(node: NodeUnderTest) -> Iterator[list[dict[str, Any]]]:
    """Yield a list for the events that a test stores; require that the node stored no others."""
    before = _life(node)
    meant: list[dict[str, Any]] = []
    yield meant
    assert _life(node) == (*before[:-1], before[-1] + len(meant))


def _life(node: NodeUnderTest) -> tuple[Any, ...]:
    status = node.status()
    assert status is not None
    accepted = status["receive"]["accepted_events"]
    return node.pid_of("node"), status["role"], status["epoch"], accepted


@pytest.mark.parametrize("name", BAD_EVENTS)
def test_bad_events_are_refused_with_row_and_reason(node: NodeUnderTest, name: str) -> None:
    events, row, reason = BAD_EVENTS[name]
    for body, form in _both_forms(events):
        answer = node.post("events", body, form)
        assert answer.status_code == 400
        told = answer.json()
        assert told["row"] == row
        assert reason in told["reason"]
        assert told["error"] == f"row {row}: {told['reason']}"


def _both_forms(events: list[Any]) -> list[tuple[bytes, str]]:
    lines = "\n".join(json.dumps(event) for event in events)
    return [(json.dumps(events).encode(), JSON), (lines.encode(), LINES)]


@pytest.mark.parametrize("name", BROKEN_BODIES)
def test_a_broken_body_is_refused_with_a_sentence(node: NodeUnderTest, name: str) -> None:
    body, form = BROKEN_BODIES[name]
    answer = node.post("events", body, form)
    assert answer.status_code == 400
    assert 10 < len(answer.json()["error"]) < 200


def test_deep_nesting_is_named_in_the_refusal(node: NodeUnderTest) -> None:
    body, form = BROKEN_BODIES["2 MiB of nested arrays"]
    assert node.post("events", body, form).json()["reason"] == "the event is nested too deep"


def test_a_request_is_stored_whole_or_not_at_all(node: NodeUnderTest) -> None:
    """The node also refuses the 999 good rows before a bad one."""
    events = [{"id": number} for number in range(999)] + [{"id": None}]
    refused = node.send("events", events)
    assert (refused.status_code, refused.json()["row"]) == (400, 999)


def test_wrong_content_type_is_answered_with_the_accepted_ones(node: NodeUnderTest) -> None:
    answer = node.post("events", b"<id>1</id>", "application/xml")
    assert answer.status_code == 415
    assert answer.json()["error"] == (
        "content type 'application/xml' is not supported; "
        "send application/x-ndjson, application/json or application/vnd.apache.arrow.stream"
    )


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
def test_a_body_of_100_mib_is_too_large(node: NodeUnderTest, announced: bool) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * MIB

    headers = {"Content-Type": JSON} | ({"Content-Length": str(100 * MIB)} if announced else {})
    answer = node.http.post("/v1/streams/events/events", content=chunks(), headers=headers)
    assert answer.status_code == 413
    assert answer.json()["error"] == (
        f"the body is larger than {MAX_BODY_BYTES} bytes; "
        "send several smaller requests, or raise http.max_body"
    )


def test_unknown_stream_is_named_with_the_existing_ones(node: NodeUnderTest) -> None:
    answer = node.post("evnts", b"[]", JSON)
    assert answer.status_code == 404
    assert answer.json()["error"] == "there is no stream 'evnts'; the application has events"


def test_a_used_sequence_with_another_payload_is_a_conflict(
    node: NodeUnderTest, stored: list[dict[str, Any]]
) -> None:
    stored.append({"id": 1})
    assert node.send("events", stored, ("press-1", 7)).status_code == 200
    refused = node.send("events", [{"id": 2}], ("press-1", 7))
    assert refused.status_code == 409
    assert refused.json()["error"] == (
        "sequence 7 of producer press-1 was used for another payload; give every request a "
        "new sequence, and repeat a request unchanged"
    )
    assert refused.json()["conflict"] == "payload"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (
            {"X-Producer-Id": "p"},
            "X-Producer-Id and X-Sequence belong together; send both or neither",
        ),
        ({"X-Producer-Id": "p", "X-Sequence": "-1"}, "X-Sequence must be a whole number from 0"),
        ({"X-Producer-Id": "a b", "X-Sequence": "1"}, "X-Producer-Id must be 1 to 128 visible"),
    ],
)
def test_a_bad_identity_is_refused(
    node: NodeUnderTest, headers: dict[str, str], reason: str
) -> None:
    answer = node.post("events", b'[{"id": 1}]', JSON, **headers)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]


def test_journal_has_only_the_accepted_events(node: NodeUnderTest) -> None:
    """Check from outside, after all tests above."""
    status = node.status()
    ended = node.command("journal", "inspect", str(node.data_dir), "--records", "1000", "--json")
    shown = json.loads(ended.out)["shown"]
    held = sum(one["body"]["rows"] for one in shown if one["kind"] == "Events")
    assert status is not None
    assert held == status["receive"]["accepted_events"]
