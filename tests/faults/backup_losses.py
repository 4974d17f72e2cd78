"""Two nodes and their backup under load, and every pair of losses: nothing lost, nothing twice.

    python -m tests.faults.backup_losses --rounds 5

All processes of two of the three nodes are killed, in each combination, and the nodes return
(RULES.md#r37). The query process is the stand-in of the matrix, so a round takes a minute. The run
prints how long producers got no ack after each loss, and which time is promised. A failover by an
operator gives up what the backup lacks, so before that loss the producers wait for the backup.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table

from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.databases import rows
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.trio import BACKUP, SYNC_TIMEOUT_SECONDS, Trio, running_trio
from tests.e2e.without_spark import APPLICATION
from tests.faults.matrix.hosts import TTL_SECONDS, HostedNode
from tests.faults.matrix.load import FailoverClient, Log
from tests.waiting import wait_until

PATIENCE = 120.0
PRODUCERS = 4
TOLERANCE_SECONDS = 1.0
SECTIONS: dict[str, dict[str, Any]] = {
    "query": {"min_batch_interval": "200ms"},
    "snapshot": {"interval": "5s"},
    "receive": {"max_backlog_events": 1 << 30},
}


class StandInNode(NodeUnderTest):
    """A node whose query process is the stand-in."""

    program: tuple[str, ...] = HostedNode.program
    signs: ClassVar = HostedNode.signs


class Scene:
    """A trio under load."""

    def __init__(self, trio: Trio, log: Log) -> None:
        self.trio, self.log = trio, log

    def deliver(self) -> None:
        """Return once events that were sent from now on are acked."""
        since = time.monotonic()
        wait_until(lambda: self._acked_since(since) >= 5, within=PATIENCE, every=0.05)

    def _acked_since(self, since: float) -> int:
        return sum(one.acked_at is not None and one.sent_at > since for one in self.log.requests)

    def wait_all_acked(self) -> None:
        """Return once no event waits for its ack, while nobody sends new ones."""
        wait_until(
            lambda: all(one.acked_at is not None for one in self.log.requests),
            within=PATIENCE,
            every=0.05,
        )

    def hand_back(self) -> None:
        """Let the lost nodes follow the backup, which is the active, and one of them take over."""
        backup = self.trio.backup
        self.trio.wait_in_sync(*self.trio.names)
        assert self.trio.require_active() is backup
        wait_until(
            lambda: backup.http.post("/v1/switchover").is_success, within=PATIENCE, every=0.2
        )
        wait_until(lambda: self.trio.require_active() is not backup, within=PATIENCE, every=0.1)


def lose_member_and_backup(scene: Scene) -> None:
    """The active continues alone."""
    trio = scene.trio
    member, active = trio.member(), trio.require_active()
    trio.lose(member, trio.backup)
    scene.deliver()
    trio.wait_in_sync(active.name)
    member.start()
    trio.backup.start()


def lose_active_and_backup(scene: Scene) -> None:
    """The member takes over by itself."""
    trio = scene.trio
    member, active = trio.member(), trio.require_active()
    trio.lose(active, trio.backup)
    scene.deliver()
    assert trio.require_active() is member
    active.start()
    trio.backup.start()


def lose_member_for_long_and_then_the_active(scene: Scene) -> None:
    """The backup is the second disk by then, and takes over by itself."""
    trio = scene.trio
    assert trio.backup.pid_of("query") is None
    member, active = trio.member(), trio.require_active()
    trio.lose(member)
    trio.wait_in_sync(active.name, BACKUP)
    scene.deliver()
    trio.lose(active)
    scene.deliver()
    assert trio.require_active() is trio.backup
    member.start()
    active.start()
    scene.hand_back()


def lose_active_and_member_at_once(scene: Scene) -> None:
    """The backup is not in sync, so an operator decides."""
    trio, backup = scene.trio, scene.trio.backup
    scene.log.quiet.set()
    scene.wait_all_acked()
    trio.wait_settled()
    trio.wait_regular()
    member, active = trio.member(), trio.require_active()
    trio.lose(active, member)
    words = ("failover", "--force", "--yes", "--url", backup.url)
    refused = backup.command(*words)
    assert refused.code == 1
    assert "a failover would give up" in refused.err
    assert not backup.is_active()
    confirmed = (*words, "--confirm-fenced", active.name, "--confirm-fenced", member.name)
    wait_until(lambda: backup.command(*confirmed).code == 0, within=PATIENCE, every=0.5)
    scene.log.quiet.clear()
    scene.deliver()
    assert backup.is_active()
    member.start()
    active.start()
    scene.hand_back()


LOSSES: dict[Callable[[Scene], None], float] = {
    lose_member_and_backup: SYNC_TIMEOUT_SECONDS,
    lose_active_and_backup: TTL_SECONDS,
    lose_member_for_long_and_then_the_active: TTL_SECONDS,
    lose_active_and_member_at_once: math.inf,
}
"""The losses, and for how many seconds each may stop the acks."""


@dataclass
class Report:
    """The result of a run; ``wrong`` is empty if nothing is lost and nothing is there twice.

    ``stalls`` has for each loss the longest time without an ack until the trio was whole again, in
    seconds.
    """

    wrong: list[str] = field(default_factory=list)
    stalls: dict[str, list[float]] = field(default_factory=dict)
    acked: int = 0


def run_losses(directory: Path, url: str, rounds: int = 1) -> Report:
    """Run once against the database at ``url``, which must have the engine's schema."""
    report, log = Report(), Log()
    trio = Trio(directory, APPLICATION, url, StandInNode, **SECTIONS)
    scene = Scene(trio, log)
    with running_trio(trio):
        with _load(trio, log):
            for _ in range(rounds):
                for loss in LOSSES:
                    scene.deliver()
                    at = time.monotonic()
                    loss(scene)
                    trio.wait_regular()
                    scene.deliver()
                    stall = _longest_without_ack(log, at)
                    report.stalls.setdefault(loss.__name__, []).append(stall)
                    print(f"{loss.__name__}: {stall:.2f} s", flush=True)
            log.quiet.set()
            scene.wait_all_acked()
        trio.wait_settled()
        _judge(url, log, report)
    return report


@contextlib.contextmanager
def _load(trio: Trio, log: Log) -> Iterator[None]:
    clients = [FailoverClient(trio.urls, f"producer-{n}", log) for n in range(PRODUCERS)]
    with contextlib.ExitStack() as stack:
        for client in clients:
            client.start()
            stack.callback(client.stop)
        yield


def _longest_without_ack(log: Log, since: float) -> float:
    moments = [since, *(at for at in log.acks() if at > since)]
    return max(later - at for at, later in itertools.pairwise(moments))


def _judge(url: str, log: Log, report: Report) -> None:
    stored = Counter(number for (number,) in rows(url, "SELECT id FROM copies"))
    acked = {one.event for one in log.requests if one.acked_at is not None}
    report.acked = len(acked)
    lost, twice = sorted(acked - stored.keys()), [n for n, times in stored.items() if times > 1]
    report.wrong += [f"lost: {lost[:10]}, {len(lost)} in all"] if lost else []
    report.wrong += [f"twice: {twice[:10]}, {len(twice)} in all"] if twice else []


def table_of(report: Report) -> Table:
    table = Table(title="seconds without an ack")
    for name in ("loss", "runs", "median", "longest", "promised", "later"):
        table.add_column(name, justify="left" if name == "loss" else "right")
    for loss, seconds in LOSSES.items():
        stalls, promised = report.stalls.get(loss.__name__, []), seconds + TOLERANCE_SECONDS
        if stalls:
            later = sum(stall > promised for stall in stalls)
            cells = (f"{median(stalls):.2f}", f"{max(stalls):.2f}", f"{promised:g}", str(later))
            table.add_row(loss.__name__.replace("_", " "), str(len(stalls)), *cells)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-backup-"))
    with EmbeddedPostgres(directory / "postgres") as server:
        upgrade(open_engine(server.url))
        report = run_losses(directory, server.url, given.rounds)
    Console().print(table_of(report))
    print("\n".join(report.wrong) or f"equal: {report.acked} acked events, none lost, none twice")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
