"""Detect whether the demo makes progress, however slowly.

No wait of the demo has a deadline, since a slow host may need any time. A wait ends with an error
only when no sign of progress has changed for ``PATIENCE_SECONDS``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

Status = dict[str, Any]
Usage = Mapping[tuple[int, float], float]
"""Seconds of CPU by process, identified by its pid and its start."""

PATIENCE_SECONDS = 300.0
CPU_SECONDS = 10.0
"""The use of this much CPU by all nodes is a sign of progress. Two idle nodes need longer than
``PATIENCE_SECONDS`` to use it."""
CPU_LOOK_SECONDS = 15.0
"""Interval of measurements of the CPU while no other sign changes. A measurement reads every
process of the machine, which costs CPU."""


class Movement:
    """Remembers the time of the last sign of progress.

    ``usage`` measures the CPU that the processes of the demo have used.
    """

    def __init__(
        self, usage: Callable[[], Usage], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._usage, self._clock = usage, clock
        self._signs: object = None
        self._progress_at = self._looked_at = clock()
        self._before: Usage = {}

    def look(self, signs: object) -> None:
        """Note whether ``signs``, a value that changes with each step, has changed."""
        now = self._clock()
        if signs != self._signs:
            self._signs, self._progress_at, self._looked_at, self._before = signs, now, now, {}
        elif now - self._looked_at >= CPU_LOOK_SECONDS:
            self._looked_at = now
            self._look_at_cpu(now)

    def _look_at_cpu(self, now: float) -> None:
        usage = self._usage()
        if not self._before:
            self._before = usage
        elif used_since(self._before, usage) >= CPU_SECONDS:
            self._progress_at, self._before = now, usage

    @property
    def still_seconds(self) -> float:
        return self._clock() - self._progress_at

    @property
    def stopped(self) -> bool:
        return self.still_seconds >= PATIENCE_SECONDS


def used_since(before: Usage, now: Usage) -> float:
    """The seconds of CPU used between the measurements ``before`` and ``now``.

    All CPU of a process that is only in ``now`` counts. The CPU of a process that ended in between
    does not count.
    """
    return sum(max(seconds - before.get(process, 0.0), 0.0) for process, seconds in now.items())


def signs_of(status: Status | None) -> object:
    """The values in a node's status that change only when the node makes progress."""
    if status is None:
        return None
    process, lease = status["query_process"], status["lease"]
    return (
        status["role"],
        status["warm"],
        status["protected"],
        lease["epoch"],
        status["journal"]["last"],
        (process["incarnation"], process.get("step"), process.get("starts")),
        [
            (name, query["state"], query["mark"], query["batch"], query["published"])
            for name, query in status["queries"].items()
        ],
    )


def waits_for(status: Status | None) -> str:
    """The work that a node must finish before it is ready, in a few words; empty when ready."""
    if status is None:
        return "no answer yet"
    process = status["query_process"]
    found = []
    if status["role"] not in ("active", "passive"):
        found.append(str(status["role"]))
    if not status["warm"]:
        found.append(_step(process) or _behind(status))
        if process.get("last_death"):
            found.append(f"the last process ended: {process['last_death']}")
    return ", ".join(found)


def _step(process: Mapping[str, Any]) -> str:
    step = process.get("step")
    if not step:
        return "" if process["connected"] else "starting Spark"
    if step == "ready":
        return ""
    seconds = process.get("step_seconds")
    return str(step) if seconds is None else f"{step} ({seconds:.0f} s)"


def _behind(status: Status) -> str:
    behind = [
        f"{name} at batch {query['batch']} of {query['mark']}"
        for name, query in status["queries"].items()
        if query["batch"] < query["mark"]
    ]
    return "; ".join(behind) or "starting queries"
