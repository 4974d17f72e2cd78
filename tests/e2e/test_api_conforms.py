"""Requests that schemathesis generates from /openapi.json, against a real node: no 5xx but the
documented 503s, and every answer conforms to the document. Without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.node_under_test import NodeUnderTest, running
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark

pytestmark = [pytest.mark.slow, pytest.mark.rotates("files")]

EXAMPLES = 8
"""Random requests of each operation, beside those at the edges of its schemas."""
SETTINGS = Path(__file__).with_name("schemathesis.toml")


@pytest.fixture
def node(node_database: str, tmp_path: Path) -> Iterator[NodeUnderTest]:
    node = NodeWithoutSpark(tmp_path, APPLICATION, node_database, **ROOM)
    with running(node):
        node.wait_active()
        yield node


def test_node_answers_every_request_as_its_openapi_document_says(node: NodeUnderTest) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(SETTINGS)]
    command += ["run", f"{node.url}/openapi.json", "--max-examples", str(EXAMPLES)]
    command += ["--phases", "examples,coverage,fuzzing", "--seed", "1", "--no-color"]
    ended = subprocess.run(
        command,
        cwd=node.directory,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.e2e.conformance"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    status = node.status()
    assert status is not None
    assert (status["role"], status["epoch"]) == ("active", 1)
    assert node.http.post("/v1/resume").json()["paused"] is False
    assert node.send("events", [{"id": 1, "text": "as before"}]).status_code == 200
