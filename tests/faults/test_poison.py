"""A poisoned row: its query stops with the reason, and an operator resumes it.

The tests of this module are one story with one node, in its order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.e2e.databases import fresh_database, rows
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly("the core's scenarios fail queries; test_batches fails a batch"),
]

APPLICATION = """
name: poison
streams:
  events:
    schema: {{key: string not null, text: string}}
queries:
  totals:
    sql: >
      SELECT key, count(*) AS n, {total} AS total, {shares} AS shares FROM events GROUP BY key
    output_mode: update
    {on_change}
    sinks:
      - {{name: table, type: postgres, table: totals, mode: upsert, key: [key], auto_create: true}}
  copies:
    sql: SELECT key, text FROM events
    sinks:
      - {{name: table, type: postgres, table: copies, auto_create: true}}
"""
FRAGILE = {"total": "sum(CAST(text AS INT))", "shares": "sum(12 / CAST(text AS INT))"}
FIXED = {
    "total": "sum(try_cast(text AS INT))",
    "shares": "sum(try_divide(12, try_cast(text AS INT)))",
}
CHANGED = {**FIXED, "total": "sum(10 * try_cast(text AS INT))"}


def application(parts: dict[str, str], on_change: str | None = None) -> str:
    return APPLICATION.format(**parts, on_change=f"on_change: {on_change}" if on_change else "")


class Story:
    """The node, and the published rows of its two queries."""

    def __init__(self, node: NodeUnderTest, url: str) -> None:
        self.node, self._url = node, url

    def send(self, *pairs: tuple[str, str]) -> None:
        events = [{"key": key, "text": text} for key, text in pairs]
        assert self.node.send("events", events).status_code == 200

    def totals(self) -> dict[str, list[Any]]:
        found = rows(self._url, "SELECT key, n, total, shares FROM totals")
        return {key: values for key, *values in found}

    def copies(self) -> list[tuple[Any, ...]]:
        return rows(self._url, "SELECT key, text FROM copies")

    def query(self, name: str) -> dict[str, Any]:
        status = self.node.status()
        found: dict[str, Any] = status["queries"][name] if status else {"state": "unknown"}
        return found

    def wait_for(self, name: str, state: str) -> dict[str, Any]:
        wait_until(lambda: self.query(name)["state"] == state, within=SPARK_SECONDS, every=0.1)
        return self.query(name)

    def wait_totals(self, **expected: list[Any]) -> None:
        wait_until(lambda: self.totals() == expected, within=SPARK_SECONDS, every=0.5)

    def wait_copied(self, count: int) -> None:
        wait_until(lambda: len(self.copies()) == count, within=SPARK_SECONDS, every=0.5)

    def restart_with(self, text: str) -> None:
        assert self.node.stop() == 0
        self.node.application_path.write_text(text)
        self.node.start()
        self.node.wait_active()
        self.wait_for("copies", "running")


@pytest.fixture(scope="module")
def story(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with fresh_database(postgres, "poison") as url:
        node = NodeUnderTest(tmp_path_factory.mktemp("poison"), application(FRAGILE), url)
        with running(node):
            node.wait_running()
            yield Story(node, url)


def test_a_poisoned_row_fails_its_query_with_batch_and_reason(story: Story) -> None:
    story.send(("a", "1"), ("a", "2"))
    story.wait_totals(a=[2, 3, 18.0])
    story.send(("b", "x"))
    failed = story.wait_for("totals", "failed")
    assert failed["failed_batch"] == failed["mark"] == failed["batch"] + 1
    assert "CAST_INVALID_INPUT" in failed["reason"]
    assert "'x'" in failed["reason"]
    assert story.node.http.get("/health").status_code == 503


def test_other_query_and_ingest_continue_beside_a_failed_query(story: Story) -> None:
    story.send(("a", "4"))
    story.wait_copied(4)
    assert story.query("copies")["state"] == "running"
    assert story.totals() == {"a": [2, 3, 18.0]}
    assert story.query("totals")["state"] == "failed"
    assert story.node.http.get("/active").status_code == 200


def test_the_status_command_shows_the_failed_query_and_its_reason(story: Story) -> None:
    printed = story.node.command("status", environ={"COLUMNS": "200"})
    assert printed.code == 0
    assert "failed" in printed.out
    assert "CAST_INVALID_INPUT" in printed.out


def test_skip_resumes_the_query_behind_the_batch_and_is_recorded(story: Story) -> None:
    number = story.query("totals")["failed_batch"]
    skipped = story.node.command("query", "skip", "totals", "--by", "alice")
    assert (skipped.code, skipped.err) == (0, "")
    story.wait_totals(a=[3, 7, 21.0])
    assert story.query("totals")["state"] == "running"
    story.node.wait_settled()
    inspected = story.node.command(
        "journal", "inspect", str(story.node.data_dir), "--records", "100", "--json"
    )
    skips = [one for one in json.loads(inspected.out)["shown"] if "alice" in json.dumps(one)]
    assert len(skips) == 1
    assert (skips[0]["body"]["query"], skips[0]["body"]["number"]) == ("totals", number)


def test_skip_of_a_running_query_is_refused(story: Story) -> None:
    refused = story.node.command("query", "skip", "totals")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == "ha-engine: query totals has not failed; there is nothing to skip\n"
    unknown = story.node.command("query", "skip", "total")
    assert (unknown.code, unknown.err) == (1, "ha-engine: no query named total\n")


def test_change_without_on_change_is_refused_with_advice(story: Story) -> None:
    story.send(("c", "0"))
    assert "DIVIDE_BY_ZERO" in story.wait_for("totals", "failed")["reason"]
    story.restart_with(application(FIXED))
    reason = story.wait_for("totals", "failed")["reason"]
    assert "the definition of this query changed since it last ran" in reason
    assert "set on_change to keep" in reason
    assert "reset (" in reason
    assert "or backfill" in reason
    refused = story.node.command("query", "skip", "totals")
    assert refused.code == 1
    assert "set on_change" in refused.err
    story.send(("a", "6"))
    story.wait_copied(6)


def test_a_fixed_application_that_keeps_the_state_resumes_the_query(story: Story) -> None:
    """The query runs the poisoned batch now, and its earlier state still counts."""
    story.restart_with(application(FIXED, "keep"))
    story.wait_totals(a=[4, 13, 23.0], c=[1, 0, None])
    assert story.query("totals")["state"] == "running"


def test_a_changed_application_that_resets_the_state_starts_empty(story: Story) -> None:
    story.restart_with(application(CHANGED, "reset"))
    story.send(("a", "2"))
    story.wait_totals(a=[1, 20, 6.0], c=[1, 0, None])
    story.wait_copied(7)
    story.node.wait_settled()
    assert len(story.copies()) == 7
