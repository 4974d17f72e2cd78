"""From the ack of the event that closes a match to the match's row in PostgreSQL.

    python -m benchmarks.pattern_latency [--matches 60] [--nodes 2]

A match is an absence, which is complete when the watermark reaches its end. Its row can only come
in the batch after the one that carries the closing event. For comparison, a filter on the same
nodes yields a row for the closing event itself. Each closing event comes once all events before it
have been published.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.database import Database, database
from benchmarks.engine_side import merged
from benchmarks.waiting import wait_until
from tests.e2e.node_under_test import NodeUnderTest, running
from tests.e2e.pair import Pair, running_pair

START = datetime(2026, 1, 1, tzinfo=UTC)
WARM_UP = 10
APPLICATION = """
name: latency
streams:
  events:
    schema: {id: bigint not null, at: timestamp not null, kind: string not null}
    watermark: {column: at, delay: 0s}
queries:
  forgotten:
    pattern:
      from: events
      by: [id]
      sequence: [begun: kind = 'begun', not ended: kind = 'ended']
      within: 1 minute
      yield: {id: id}
    sinks: [{name: table, type: postgres, table: forgotten, mode: insert, auto_create: true}]
  closing:
    sql: SELECT id FROM events WHERE kind = 'closing'
    sinks: [{name: table, type: postgres, table: closing, mode: insert, auto_create: true}]
"""


def seconds(node: NodeUnderTest, stored: Database, one: int) -> dict[str, float]:
    """The seconds from the ack of the closing event of match ``one`` to its row of each query."""
    at = START + timedelta(hours=one)
    send(node, one, at, "begun")
    node.wait_settled()
    acked = send(node, one, at + timedelta(minutes=30), "closing")
    found = {}
    for query in ("closing", "forgotten"):
        wait_until(lambda query=query: stored.committed_at(query, [one]), within=120, every=0.02)  # type: ignore[misc]
        found[query] = stored.committed_at(query, [one])[one] - acked
    return found


def send(node: NodeUnderTest, one: int, at: datetime, kind: str) -> float:
    """Send one event, and return the time of its ack."""
    node.send("events", [{"id": one, "at": at.isoformat(), "kind": kind}]).raise_for_status()
    return time.time()


@contextmanager
def active_of(nodes: int, directory: Path, stored: Database) -> Iterator[NodeUnderTest]:
    """The active of so many nodes, one or two, whose queries run."""
    settings = merged({"query": {"min_batch_interval": "0s"}})
    if nodes == 1:
        with running(
            NodeUnderTest(directory, APPLICATION, stored.url, "node-a", **settings)
        ) as node:
            node.wait_running()
            yield node
    else:
        pair = Pair(directory, APPLICATION, stored.url, **settings)
        with running_pair(pair):
            yield pair.wait_protected()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matches", type=int, default=60)
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1)
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="ha-engine-latency-") as directory,
        database(Path(directory)) as stored,
        active_of(given.nodes, Path(directory), stored) as node,
    ):
        stored.wait_for_tables(["forgotten", "closing"])
        every = [seconds(node, stored, one) for one in range(WARM_UP + given.matches)][WARM_UP:]
    shown = Table("query", "p50 ms", "p95 ms", "of the filter's p50")
    halves = {query: statistics.median(one[query] for one in every) for query in every[0]}
    for query, half in halves.items():
        last = statistics.quantiles([one[query] for one in every], n=20)[-1]
        ratio = f"{half / halves['closing']:.2f}"
        shown.add_row(query, f"{half * 1_000:,.0f}", f"{last * 1_000:,.0f}", ratio)
    Console().print(shown)


if __name__ == "__main__":
    main()
