"""Answers to Spark's Kafka source over the Unix socket: offsets, skipped batches, refusals."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ha_engine.query.kafka_marks import KafkaMarks
from ha_engine.query.link import Address, NodeLink
from tests.query.local_node import LocalNode
from tests.waiting import wait_until

QUERY = {"query": "q", "lineage": "l", "stream": "s", "incarnation": "one"}
START = {"mark": "0", "sequence": "0"}


@pytest.fixture
def node() -> Iterator[LocalNode]:
    directory = Path(tempfile.mkdtemp(prefix="marks-"))
    local = LocalNode(directory)
    local.start()
    yield local
    local.stop()
    shutil.rmtree(directory)


@pytest.fixture
def marks(node: LocalNode) -> KafkaMarks:
    served = KafkaMarks(NodeLink(Address(str(node.socket), "one")))
    served.serve()
    served.serve()  # as for the second stream
    return served


def asking(marks: KafkaMarks, **question: Any) -> socket.socket:
    asker = socket.socket(socket.AF_UNIX)
    asker.connect(str(marks.socket))
    asker.sendall(json.dumps(QUERY | START | question).encode() + b"\n")
    return asker


def answer(asker: socket.socket) -> dict[str, Any]:
    with asker, asker.makefile() as lines:
        found: dict[str, Any] = json.loads(lines.readline())
        return found


def test_start_and_next_mark_have_the_offsets_at_their_records(
    node: LocalNode, marks: KafkaMarks
) -> None:
    node.log_ends[0] = '{"t": {"0": 5}}'
    assert answer(asking(marks)) == {"mark": 0, "sequence": 0, "at": {"t": {"0": 5}}}
    waiting = asking(marks, after=0)
    sequence = node.journal.last.sequence
    node.log_ends[sequence] = '{"t": {"0": 9}}'
    node.mark("q")
    assert answer(waiting) == {"mark": 1, "sequence": sequence, "at": {"t": {"0": 9}}}


def test_question_waits_until_the_log_has_begun(node: LocalNode, marks: KafkaMarks) -> None:
    waiting = asking(marks)
    node.log_ends[0] = '{"t": {}}'
    assert answer(waiting) == {"mark": 0, "sequence": 0, "at": {"t": {}}}


def test_mark_of_the_journal_is_completed_with_its_offsets(
    node: LocalNode, marks: KafkaMarks
) -> None:
    node.log_ends[17] = '{"t": {"0": 5}}'
    completed = {"mark": 4, "sequence": 17, "at": {"t": {"0": 5}}}
    assert answer(asking(marks, mark=4, sequence=17)) == completed


def test_skipped_batch_is_told(node: LocalNode, marks: KafkaMarks) -> None:
    node.skipped.add(("q", 2))
    assert [answer(asking(marks, skipped=n)) for n in (1, 2)] == [
        {"skipped": False},
        {"skipped": True},
    ]


def test_trimmed_mark_is_an_error_that_the_runner_knows(node: LocalNode, marks: KafkaMarks) -> None:
    node.trimmed_through = 3
    error = answer(asking(marks, after=2))["error"]
    assert error.startswith("ha_engine.errors.CheckpointTooOld: the checkpoint ends at batch 2")


def test_jvm_of_an_earlier_query_process_gets_no_mark(marks: KafkaMarks) -> None:
    assert "earlier query process" in answer(asking(marks, incarnation="zero"))["error"]


def test_question_of_a_stopped_query_ends(
    node: LocalNode, marks: KafkaMarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = list[dict[str, Any]]()
    answering = marks.answer

    def noted(question: Any, asker: socket.socket) -> dict[str, Any]:
        answered.append(found := answering(question, asker))
        return found

    monkeypatch.setattr(marks, "answer", noted)
    asking(marks, after=0).close()
    wait_until(lambda: answered, within=60)
    assert "the query was stopped" in answered[0]["error"]
