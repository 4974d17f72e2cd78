"""The lease's database stops under load, and then the active dies too (RULES.md#i12,
RULES.md#r16).

    python -m tests.faults.database_outage [--seconds 60] [--spark]

Two real nodes take flights. While the server is stopped, no node changes its role and producers
see no outage; then the active is killed too, and no node takes over until the server is back.
Without Spark, whose sink is in the same server, the run ends within seconds of the outage.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from ha_engine.demo.comparison import compare
from ha_engine.demo.flights import departures
from ha_engine.demo.nodes import sample_application
from ha_engine.demo.traffic import Traffic, longest_gap
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal, stored_events
from tests.e2e.without_spark import ROOM, NodeWithoutSpark
from tests.waiting import wait_until, watch

TTL_SECONDS = 2.0
PATIENCE_SECONDS = 60.0
FADE_SECONDS = 300.0


@dataclass
class Report:
    """The result of a run, in seconds; ``wrong`` is empty when all promises held.

    ``pause`` is the longest time without an ack while the database was away, ``takeover`` the time
    from its return to the first ack of the new active.
    """

    pause: float = 0.0
    takeover: float = 0.0
    acked: int = 0
    wrong: list[str] = field(default_factory=list)


def run_outage(directory: Path, seconds: float, node: type[NodeUnderTest]) -> Report:
    """Run once on a separate server below ``directory``, which is stopped for ``seconds``."""
    report = Report()
    with EmbeddedPostgres(directory / "postgres") as server:
        url = server.url
        upgrade(open_engine(url))
        pair = Pair(directory, sample_application("flights.yaml"), url, node, **ROOM)
        traffic = Traffic(pair.urls, "departures", departures(), max(FADE_SECONDS, 5 * seconds))
        with running_pair(pair):
            _wait_whole(pair)
            traffic.start()
            try:
                _stop_database(server, pair, traffic, seconds, report)
            finally:
                traffic.stop()
            traffic.require_well()
            _judge(pair, traffic, url, report)
        # Their processes have closed the files.
        _judge_journal(pair.a, traffic, report)
    return report


def _wait_whole(pair: Pair) -> None:
    if isinstance(pair.a, NodeWithoutSpark):
        wait_until(pair.is_protected, within=PATIENCE_SECONDS, every=0.1)
    else:
        pair.wait_protected()


def _stop_database(
    server: EmbeddedPostgres, pair: Pair, traffic: Traffic, seconds: float, report: Report
) -> None:
    active = pair.active()
    assert active is not None
    other, began = pair.other(active), time.time()
    wait_until(lambda: traffic.acked_since(began), within=PATIENCE_SECONDS)
    server.stop()
    away = time.time()
    watch(lambda: _judge_roles(pair, active, report), seconds=seconds)
    report.pause = longest_gap([*traffic.acks, (time.time(), 0)], away)
    active.kill_everything()
    killed = time.time()
    watch(lambda: _judge_other_role(other, report), seconds=3 * TTL_SECONDS)
    server.start()
    back = time.time()
    wait_until(lambda: traffic.acked_since(killed + TTL_SECONDS), within=PATIENCE_SECONDS)
    report.takeover = next(at for at, _ in traffic.acks if at > killed + TTL_SECONDS) - back
    active.start()
    _wait_whole(pair)
    if pair.active() is not other:
        report.wrong.append(f"{other.name} did not stay active")


def _judge_roles(pair: Pair, active: NodeUnderTest, report: Report) -> None:
    seen = active.status() or {}
    standing = (seen.get("role"), seen.get("suspended"), seen.get("protected"))
    if standing != ("active", False, True):
        report.wrong.append(f"without the database {active.name} is {standing}")
    _judge_other_role(pair.other(active), report)


def _judge_other_role(other: NodeUnderTest, report: Report) -> None:
    role = (other.status() or {}).get("role")
    if role != "passive":
        report.wrong.append(f"without the database {other.name} is {role}")


def _judge(pair: Pair, traffic: Traffic, url: str, report: Report) -> None:
    report.acked = traffic.sent
    if not same_journal(pair):
        report.wrong.append("the journals differ")
    active = pair.active()
    if active is None or isinstance(active, NodeWithoutSpark):
        return
    active.wait_settled()
    outcomes = compare(url, traffic.rows.slice(0, traffic.sent))
    report.wrong += [f"{one.query} differs: {one}" for one in outcomes if not one.equal]


def _judge_journal(node: NodeUnderTest, traffic: Traffic, report: Report) -> None:
    """Judge that every acked row is in the journal once: none lost, no repeated request doubled."""
    stored = sum(events.rows for events in stored_events(node))
    if stored != traffic.sent:
        report.wrong.append(f"{stored} rows are stored and {traffic.sent} were acked")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="the database is away")
    parser.add_argument("--spark", action="store_true", help="with queries, and compare the sink")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-database-outage-"))
    node = NodeUnderTest if given.spark else NodeWithoutSpark
    report = run_outage(directory, given.seconds, node)
    print(
        f"{report.acked} rows acked; longest pause without the database {report.pause:.2f} s; "
        f"first ack of the new active {report.takeover:.2f} s after its return"
    )
    print("\n".join(dict.fromkeys(report.wrong)) or "nothing lost, nothing twice, no role changed")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
