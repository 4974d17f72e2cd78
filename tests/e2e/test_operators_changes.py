"""Changes of an operator to a node with a history: correct, add, rename, lose the lease row.

The tests of this module are one story with one node, in its order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from ha_engine.postgres.engine import open_engine
from tests.e2e.databases import rows
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly(
        "the core's scenarios, test_lost_lease_row and test_added_sink have each change"
    ),
]

Table = list[tuple[int, ...]]


def application(column: str, *sinks: str) -> str:
    """Return one query that copies ``n`` into one table for each of its sinks, under the sink's
    name."""
    query = {
        "sql": f"SELECT {column} AS n FROM events",
        "sinks": [
            {"name": sink, "type": "postgres", "table": sink, "auto_create": True} for sink in sinks
        ],
    }
    streams = {"events": {"schema": {"n": "bigint not null"}}}
    return json.dumps({"name": "changes", "streams": streams, "queries": {"copies": query}})


class Story:
    """The node, and the rows of its sinks."""

    def __init__(self, node: NodeUnderTest, url: str) -> None:
        self.node, self.url = node, url

    def send(self, *numbers: int) -> None:
        assert self.node.send("events", [{"n": n} for n in numbers]).status_code == 200

    def wait_table(self, table: str, *numbers: int) -> None:
        wanted = [(n,) for n in numbers]
        wait_until(lambda: self.table(table) == wanted, within=SPARK_SECONDS, every=0.2)

    def table(self, name: str) -> Table:
        return rows(self.url, f"SELECT n FROM {name} ORDER BY n")

    def query(self) -> dict[str, Any]:
        status = self.node.status()
        return status["queries"]["copies"] if status else {"state": "unknown", "sinks": {}}

    def restart_with(self, text: str) -> None:
        self.node.wait_settled()
        self.stop_and_start(text)

    def stop_and_start(self, text: str) -> None:
        assert self.node.stop() == 0
        self.node.application_path.write_text(text)
        self.node.start()
        self.node.wait_active()


@pytest.fixture(scope="module")
def story(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("changes")
    node = NodeUnderTest(directory, application("m", "first"), module_database)
    with running(node):
        node.wait_active()
        yield Story(node, module_database)


def test_corrected_query_that_never_ran_misses_no_event(story: Story) -> None:
    wait_until(lambda: story.query()["state"] == "failed", within=SPARK_SECONDS)
    story.send(1)
    story.stop_and_start(application("n", "first"))
    story.wait_table("first", 1)


def test_added_sink_gets_the_batches_behind_its_record(story: Story) -> None:
    story.restart_with(application("n", "first", "second"))
    story.send(2)
    story.wait_table("first", 1, 2)
    story.wait_table("second", 2)


def test_renamed_sink_continues_where_the_old_one_ended(story: Story) -> None:
    story.restart_with(application("n", "third"))
    story.send(3)
    story.wait_table("third", 3)


def test_returning_sink_that_is_behind_is_shown_as_refused(story: Story) -> None:
    story.restart_with(application("n", "third", "second"))
    story.send(4)
    story.wait_table("third", 3, 4)
    wait_until(lambda: story.query()["sinks"]["second"]["state"] == "refused", within=SPARK_SECONDS)
    assert "give the sink a new name" in story.query()["sinks"]["second"]["error"]
    assert story.table("second") == [(2,)]
    story.stop_and_start(application("n", "third"))


def test_deleted_lease_row_is_written_again_and_no_event_is_lost(story: Story) -> None:
    before = story.node.status()
    assert before is not None
    with open_engine(story.url).begin() as connection:
        connection.execute(text("DELETE FROM ha_engine.lease"))

    def goes_on() -> bool:
        status = story.node.status()
        return status is not None and status["epoch"] > before["epoch"] and story.node.is_active()

    wait_until(goes_on, within=SPARK_SECONDS)
    wait_until(lambda: story.query()["state"] == "running", within=SPARK_SECONDS)
    story.send(5)
    story.wait_table("third", 3, 4, 5)
    [(epoch, holder)] = rows(story.url, "SELECT epoch, holder_node FROM ha_engine.lease")
    assert (epoch, holder) == (story.node.status()["epoch"], "node-a")  # type: ignore[index]
