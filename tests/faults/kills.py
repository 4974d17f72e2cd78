"""kill -9 at random moments of the year: the sink must end as without kills.

    python -m tests.faults.kills --kills 20 [--seed N]

One real node with real Spark and PostgreSQL takes the year of flights while parts of it are killed
and started again. The test in this folder runs the same with a few kills.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from sqlalchemy import text

from ha_engine.client import Producer
from ha_engine.demo.comparison import Outcome, compare
from ha_engine.demo.flights import departures
from ha_engine.demo.nodes import sample_application
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.waiting import wait_until

TARGETS = ("query", "jvm", "node", "supervisor", "everything")
"""The targets, each hit equally often, in random order; ``supervisor`` is that process alone."""
ROWS_PER_SEND = 500
PART_SECONDS = 8.0
"""The seconds in which a part of the year is sent; its kill comes at a random one of them."""
ACK_SECONDS_MAX = 240.0

AUDIT = """
CREATE TABLE IF NOT EXISTS ledger_audit (
    id bigserial, at timestamptz DEFAULT clock_timestamp(), tx bigint DEFAULT txid_current(),
    client inet DEFAULT inet_client_addr(), query text, sink text, epoch bigint, batch bigint
);
CREATE OR REPLACE FUNCTION audit_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ledger_audit (query, sink, epoch, batch)
    VALUES (NEW.query, NEW.sink, NEW.epoch, NEW.batch);
    RETURN NEW;
END $$;
"""
"""A trigger that writes a line for every move of the ledger, in the same transaction."""
MOVED = "NEW.batch <> OLD.batch"
MOVED_OR_CLAIMED = f"{MOVED} OR NEW.epoch <> OLD.epoch"


@dataclass
class Report:
    """The result of a run; ``wrong`` is empty when all promises held."""

    kills: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    ledger_moves: int = 0
    wrong: list[str] = field(default_factory=list)


class Year(threading.Thread):
    """Sends the flights through every failure, in as many parts as there are kills.

    A part begins when it is released and takes ``PART_SECONDS``, so that every kill hits a node
    that takes events.
    """

    def __init__(self, url: str, flights: pa.Table, parts: int) -> None:
        super().__init__(name="year", daemon=True)
        self._url = url
        self._batches = flights.to_batches(max_chunksize=ROWS_PER_SEND)
        self._of_a_part = -(-len(self._batches) // parts)
        self._released = threading.Semaphore(0)
        self.error: BaseException | None = None

    def release(self) -> None:
        """Allow the next part to be sent."""
        self._released.release()

    def run(self) -> None:
        try:
            # One at a time: requests repeated side by side change their order, and an event that is
            # later than the watermark's delay is correctly no part of an alert.
            with Producer([self._url], deadline=ACK_SECONDS_MAX) as producer:
                for number, batch in enumerate(self._batches):
                    if number % self._of_a_part == 0:
                        self._released.acquire()
                    producer.send("departures", batch)
                    time.sleep(PART_SECONDS / self._of_a_part)
        except BaseException as error:
            self.error = error


def run_kills(directory: Path, url: str, kills: int, seed: int) -> Report:
    """Run once against the database at ``url``, which must be empty."""
    chance, report = random.Random(seed), Report()
    engine = open_engine(url)
    upgrade(engine)
    flights = departures()
    node = NodeUnderTest(directory, sample_application("flights.yaml"), url)
    with running(node):
        node.wait_running()
        audit(url)
        year = Year(node.url, flights, kills)
        year.start()
        for target in _targets(chance, kills):
            year.release()
            _kill_once(node, target, chance.uniform(0.0, PART_SECONDS), report)
        year.join(timeout=600)
        if year.is_alive() or year.error:
            report.wrong.append(f"the producer did not finish: {year.error}")
        node.wait_settled()
        report.outcomes = compare(url, flights)
        report.wrong += [f"{o.query} differs: {o}" for o in report.outcomes if not o.equal]
        report.ledger_moves = len(_ledger_moves(url))
        report.wrong += ledger_faults(url, node.status() or {})
    if node.left_over():
        report.wrong.append(f"processes left over: {node.left_over()}")
    return report


def _targets(chance: random.Random, kills: int) -> list[str]:
    """Return every target as often as the others, in random order."""
    rounds = [chance.sample(TARGETS, len(TARGETS)) for _ in range(-(-kills // len(TARGETS)))]
    return [target for one in rounds for target in one][:kills]


def _kill_once(node: NodeUnderTest, target: str, after: float, report: Report) -> None:
    time.sleep(after)
    before = node.status()
    began = time.monotonic()
    match target:
        case "everything":
            node.kill_everything()
            node.start()
        case "supervisor":
            node.kill_supervisor()
            node.start()
        case part:
            node.kill(part)
    wait_until(lambda: _recovered(node, target, before), within=SPARK_SECONDS, every=0.1)
    seconds = time.monotonic() - began
    report.kills.append(target)
    report.recoveries.append(seconds)
    print(f"kill {len(report.kills)}: {target}, output again after {seconds:.1f} s", flush=True)


def _recovered(node: NodeUnderTest, target: str, before: dict[str, Any] | None) -> bool:
    """Return whether a new process replaced the killed one, and a later batch was published."""
    now = node.status()
    if now is None or before is None:
        return now is not None
    failed = {name: q["reason"] for name, q in now["queries"].items() if q["state"] == "failed"}
    assert not failed, f"a kill failed a query: {failed}"
    if _is_unchanged(target, before, now):
        return False
    return node.queries_run() and (_published(now) > _published(before) or node.settled())


def _is_unchanged(target: str, before: dict[str, Any], now: dict[str, Any]) -> bool:
    if target == "node":
        return bool(now["epoch"] == before["epoch"])
    return bool(now["query_process"]["incarnation"] == before["query_process"]["incarnation"])


def _published(status: dict[str, Any]) -> int:
    return sum(
        batch for query in status["queries"].values() for batch in query["published"].values()
    )


def audit(url: str, when: str = MOVED) -> None:
    """Install the trigger on the ledger, which must exist."""
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(text(AUDIT))
        connection.execute(
            text(
                "CREATE OR REPLACE TRIGGER audit AFTER UPDATE ON ha_engine_ledger "
                f"FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION audit_ledger()"
            )
        )


def ledger_faults(url: str, status: dict[str, Any]) -> list[str]:
    """Return the faults of the ledger: a gap or repeat of batches, or a falling epoch."""
    rows, faults = _ledger_moves(url), []
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for query, sink, epoch, batch in rows:
        before = last.get((query, sink))
        if before is not None and (batch != before[1] + 1 or epoch < before[0]):
            faults.append(f"ledger of {query}/{sink}: {before} was followed by {(epoch, batch)}")
        last[(query, sink)] = (epoch, batch)
    for (query, sink), (_, batch) in last.items():
        if batch != status["queries"][query]["mark"]:
            faults.append(f"ledger of {query}/{sink} ends at {batch}, not at the last mark")
    return faults if rows else ["the ledger never moved"]


def _ledger_moves(url: str) -> list[Any]:
    with open_engine(url).execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        moves = text("SELECT query, sink, epoch, batch FROM ledger_audit ORDER BY at, batch")
        return list(connection.execute(moves).all())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-kills-"))
    with EmbeddedPostgres(directory / "postgres") as server:
        report = run_kills(directory, server.url, given.kills, given.seed)
    for outcome in report.outcomes:
        print(f"{outcome.query}: {outcome.found} rows, {outcome.differing} differ")
    for target in TARGETS:
        took = [
            s for kind, s in zip(report.kills, report.recoveries, strict=True) if kind == target
        ]
        if took:
            print(
                f"{target}: {len(took)} kills, output again after median {median(took):.1f} s, "
                f"at most {max(took):.1f} s"
            )
    print(f"{len(report.kills)} kills, {report.ledger_moves} moves of the ledger")
    print("\n".join(report.wrong) or "equal: nothing lost, nothing twice, ledger contiguous")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
