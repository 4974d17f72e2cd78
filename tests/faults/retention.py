"""Disk and restart time of one node over many snapshots, with small segments, while events come.

    python -m tests.faults.retention --minutes 12 --interval 5s

The run takes as many snapshots as a node with the default interval in ``minutes * 60 s / interval``
minutes. In the second half the disk usage must hardly exceed that of the first, and the node
process must start as soon as after the first minute.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ha_engine.demo.comparison import compare
from ha_engine.demo.nodes import sample_application
from ha_engine.demo.traffic import Traffic
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.faults.failovers import years_of_flights
from tests.waiting import wait_until

YEARS = 3
LOOK_EVERY_SECONDS = 2.0
RESTARTS = 5
GROWTH_MAX = 1.2
MIB = 1 << 20


@dataclass
class Report:
    """``disk`` has the MiB of the journal, and of the rest of the data directory, at each look."""

    disk: list[tuple[float, float]] = field(default_factory=list)
    restarts: list[list[float]] = field(default_factory=list)
    snapshots: int = 0
    wrong: list[str] = field(default_factory=list)

    def halves(self, part: int) -> tuple[float, float]:
        """Return the maximum of a part in each half."""
        sizes = [look[part] for look in self.disk]
        middle = len(sizes) // 2
        return max(sizes[:middle]), max(sizes[middle:])


def run_retention(directory: Path, url: str, minutes: float, interval: str) -> Report:
    upgrade(open_engine(url))
    report = Report()
    node = NodeUnderTest(
        directory,
        sample_application("flights.yaml"),
        url,
        journal={"segment_size": "256KiB"},
        snapshot={"interval": interval},
    )
    with running(node):
        node.wait_running()
        flights = years_of_flights(YEARS)
        traffic = Traffic([node.url], "departures", flights, fade=90 * minutes)
        traffic.start()
        try:
            _look_for(60, node, traffic, report)
            report.restarts.append(_restarts(node))
            _look_for(60 * minutes - 60, node, traffic, report)
            report.restarts.append(_restarts(node))
        finally:
            traffic.stop()
        traffic.require_well()
        node.wait_settled()
        report.snapshots = (node.status() or {})["snapshot"]["newest"]["id"]
        outcomes = compare(url, flights.slice(0, traffic.sent))
        report.wrong += [f"{o.query} differs: {o}" for o in outcomes if not o.equal]
    _judge(report)
    return report


def _look_for(seconds: float, node: NodeUnderTest, traffic: Traffic, report: Report) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        traffic.require_well()
        report.disk.append(_disk(node.data_dir))
        time.sleep(LOOK_EVERY_SECONDS)


def _disk(home: Path) -> tuple[float, float]:
    """Return the MiB in the journal and elsewhere; files deleted meanwhile do not count."""
    sizes = {True: 0, False: 0}
    for directory, _, names in os.walk(home):
        in_journal = Path(directory).is_relative_to(home / "journal")
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes[in_journal] += os.lstat(Path(directory, name)).st_size
    return sizes[True] / MIB, sizes[False] / MIB


def _restarts(node: NodeUnderTest) -> list[float]:
    """Return the seconds from each kill of the node process until the next one is active."""
    return [_restart(node) for _ in range(RESTARTS)]


def _restart(node: NodeUnderTest) -> float:
    before = node.pid_of("node")
    began = time.monotonic()
    node.kill("node")
    wait_until(lambda: node.pid_of("node") not in (before, None), within=60, every=0.02)
    wait_until(node.is_active, within=60, every=0.02)
    seconds = time.monotonic() - began
    wait_until(node.queries_run, within=SPARK_SECONDS, every=0.1)
    return seconds


def _judge(report: Report) -> None:
    for name, part in (("the journal", 0), ("everything else", 1)):
        first, second = report.halves(part)
        if second > GROWTH_MAX * first + 1:
            report.wrong.append(f"{name} grew from {first:.1f} to {second:.1f} MiB")
    first, last = map(median, report.restarts)
    if last > GROWTH_MAX * first:
        report.wrong.append(f"a restart takes {last:.2f} s and took {first:.2f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--interval", default="5s")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-retention-"))
    try:
        with EmbeddedPostgres(directory / "postgres") as server:
            report = run_retention(directory, server.url, given.minutes, given.interval)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name, part in (("journal", 0), ("everything else", 1)):
        first, second = report.halves(part)
        print(f"{name}: at most {first:.1f} MiB in the first half, {second:.1f} in the second")
    for when, seconds in zip(("after a minute", "at the end"), report.restarts, strict=True):
        print(f"restart {when}: {median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")
    print(f"{report.snapshots} snapshots")
    print("\n".join(report.wrong) or "equal, and nothing grew")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
