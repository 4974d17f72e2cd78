"""A join's two sources poll for marks one after the other; marks arrive as a poll times out
(RULES.md#r18).

In Spark, one source of a batch may return a new mark and the other the old one, if the mark arrives
between the two polls. Then one node cuts a batch where the other does not, and batches of a join
with the same number have different rows.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ha_engine.node.local_service import SLICE_SECONDS
from ha_engine.query.offsets import mark_of_batch
from tests.e2e.databases import rows
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal
from tests.waiting import wait_until

APPLICATION = """
name: pairs
streams:
  left:
    schema: {id: int not null, text: string}
  right:
    schema: {id: int not null, text: string}
queries:
  pairs:
    sql: SELECT l.id, l.text, r.text AS other FROM left l JOIN right r ON l.id = r.id
    sinks:
      - {name: table, type: postgres, table: pairs, auto_create: true}
"""
MOMENTS = [offset / 1000 for offset in range(-105, 106, 30)]
"""Seconds from the end of a poll's slice to that of the events, and with them of a mark."""


@pytest.mark.nightly("test_source has it for one node")
@pytest.mark.spark
def test_every_batch_of_a_join_has_both_sources_at_one_mark_on_both_nodes(
    node_database: str, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, APPLICATION, node_database, query={"min_batch_interval": "0s"})
    with running_pair(pair):
        active = pair.wait_protected()
        for number, moment in enumerate(MOMENTS):
            _send(active, number)
            wait_until(lambda: _level(pair), within=SPARK_SECONDS)
            time.sleep(SLICE_SECONDS + moment)  # no wait: the moment is the input
        active.wait_settled()
        wait_until(lambda: _level(pair), within=SPARK_SECONDS)
        marks = [_marks(node) for node in (pair.a, pair.b)]
        assert marks[0] == marks[1]
        assert len(marks[0]) >= len(MOMENTS)
        found = rows(node_database, "SELECT id FROM pairs ORDER BY id")
        assert found == [(number,) for number in range(len(MOMENTS))]
        assert same_journal(pair)
    for node in (pair.a, pair.b):
        assert "a batch differs" not in node.log_text()


def _send(active: NodeUnderTest, number: int) -> None:
    for stream in ("left", "right"):
        answer = active.send(stream, [{"id": number, "text": stream}])
        assert answer.status_code == 200, answer.text


def _level(pair: Pair) -> bool:
    """Return whether both nodes have run every mark, so that both begin to poll for the next
    one."""
    seen = [(node.status() or {"queries": {}})["queries"].get("pairs") for node in (pair.a, pair.b)]
    return all(one and one["batch"] == one["mark"] and not one["backlog_events"] for one in seen)


def _marks(node: NodeUnderTest) -> dict[int, int]:
    """Return the one mark that all sources of a batch name, by Spark's number of the batch."""
    checkpoint = node.data_dir / "checkpoints" / "pairs"
    batches = (int(log.name) for log in (checkpoint / "offsets").glob("[0-9]*"))
    return {batch: mark_of_batch(checkpoint, batch) for batch in sorted(batches)}
