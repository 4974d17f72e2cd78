"""Faults of the active node of a real pair."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

import psutil

from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
from tests.e2e.pair import Pair
from tests.waiting import wait_until

FAULTS = ("switchover", "node", "query", "supervisor", "tree", "frozen")
"""Faults of the active: a planned handover; kill -9 of its node process, of its query process, of
its supervisor, of all its processes; SIGSTOP of all of them for longer than the ttl."""
LEAVES_A_DEAD_NODE = ("supervisor", "tree")


def in_random_order(count: int, seed: int, faults: Sequence[str] = FAULTS) -> list[str]:
    """Return the faults in random order, each as often as the others."""
    chance = random.Random(seed)
    rounds = [chance.sample(faults, len(faults)) for _ in range(-(-count // len(faults)))]
    return [fault for one in rounds for fault in one][:count]


def inflict(fault: str, active: NodeUnderTest) -> None:
    match fault:
        case "switchover":
            # The command is not used: its start takes a second of the CPU that the nodes need here.
            asked = partial(active.http.post, "/v1/switchover")
            wait_until(lambda: asked().is_success, within=60, every=0.1)
        case "tree":
            active.kill_everything()
        case "supervisor":
            active.kill_supervisor()
        case "frozen":
            _signal_all(active, signal.SIGSTOP)
        case part:
            active.kill(part)


def fail_over(fault: str, pair: Pair) -> None:
    """Inflict a fault on the active of a protected pair, wait for its effect, and end the fault."""
    active = pair.wait_protected()
    before = active.require_status()
    inflict(fault, active)
    wait_until(lambda: has_changed(pair, before), within=SPARK_SECONDS)
    heal(fault, pair, active)


def has_changed(pair: Pair, before: dict[str, Any]) -> bool:
    """Return whether there is a new epoch, or the same active has another query process."""
    seen = [status for node in (pair.a, pair.b) if (status := node.status()) is not None]
    return any(
        status["epoch"] > before["epoch"]
        or (
            status["node"] == before["node"]
            and status["query_process"]["incarnation"] != before["query_process"]["incarnation"]
        )
        for status in seen
    )


def heal(fault: str, pair: Pair, active: NodeUnderTest) -> None:
    """End the fault of the former ``active``: thaw it once the other node is active, start it
    again."""
    if fault == "frozen":
        wait_until(lambda: pair.other(active).is_active(), within=60)
        _signal_all(active, signal.SIGCONT)
    if fault in LEAVES_A_DEAD_NODE:
        active.start()


def _signal_all(node: NodeUnderTest, number: signal.Signals) -> None:
    assert node.process is not None
    supervisor = psutil.Process(node.process.pid)
    for process in [supervisor, *supervisor.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
