"""The application that each node runs, and the progress of a deployment in words (RULES.md#r36)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ha_engine.api.bodies import DeploymentBody, RunningApplication
from ha_engine.api.cluster_body import ClusterNode, Rollout, RolloutState
from ha_engine.core import Core
from ha_engine.deploy.store import described
from ha_engine.sync import Hello

RESTART_SECONDS = 60.0
"""A node that ran the former application and has been away for less than this is restarting.
Nothing but the words depends on it."""


def running_application(core: Core, hello: Hello) -> RunningApplication:
    """The application of the node that sent ``hello``, compared with the deployment that this
    node's journal has."""
    archive, deployed = hello.archive or None, core.deployment.versions.deployed
    newest = deployed is not None and archive == deployed.id
    return {
        "digest": hello.application,
        "archive": archive,
        "deployment": deployed.number if deployed is not None and newest else None,
        "is_former": archive != _wanted(core, archive),
    }


def _wanted(core: Core, otherwise: str | None) -> str | None:
    """The archive that every node should run. Without a deployment, a node is right with any."""
    if core.deployment.versions.deployed is None:
        return otherwise
    return core.deployment.archive_at(core.journal.committed)


def rollout_of(
    core: Core,
    nodes: Mapping[str, ClusterNode],
    active: str | None,
    silent_seconds: Mapping[str, float],
) -> Rollout | None:
    """The newest deployment and its progress, from what is known of ``nodes``. ``active`` is the
    name of the active, or None. ``silent_seconds`` has the time without a link for each peer that
    has none."""
    deployed = core.deployment.versions.deployed
    if deployed is None:
        return None
    body = DeploymentBody(**described(deployed))  # type: ignore[typeddict-item]
    if deployed.id != _wanted(core, None):
        words = "It waits until each node in sync has its record."
        return {"deployment": body, "state": "moving", "restarting": [], "progress": words}
    seconds = time.time() - deployed.at_us / 1e6
    progress = _Progress(core, nodes, active, silent_seconds, seconds)
    return {
        "deployment": body,
        "state": progress.state,
        "restarting": progress.restarting,
        "progress": progress.words,
    }


class _Progress:
    """The progress of a committed deployment that began ``seconds`` ago. The backup is never a node
    that could take over (RULES.md#r37)."""

    def __init__(
        self,
        core: Core,
        nodes: Mapping[str, ClusterNode],
        active: str | None,
        silent_seconds: Mapping[str, float],
        seconds: float,
    ) -> None:
        self._core, self._nodes, self._active = core, nodes, active
        self._silent_seconds, self._seconds = silent_seconds, seconds
        self._former = [name for name in nodes if self._is_former(name)]
        silent = [name for name, node in nodes.items() if not node["answers"]]
        returning = [name for name in silent if self._is_returning(name)]
        self.restarting = sorted({*self._former, *returning} - {active})
        """The nodes that restart with the deployment before the active does."""
        self._absent = [name for name in silent if name not in returning]
        self._moved = [n for n in nodes if n not in silent and n not in self._former]
        row = core.lease.row
        self._is_paused = active in self._former and row is not None and row.paused
        self._missing = [] if self._is_paused else self._followers_missed()

    @property
    def state(self) -> RolloutState:
        if self._obstacle:
            return "waiting"
        return "moving" if self._former or self.restarting else "done"

    @property
    def words(self) -> str:
        """Which nodes run the deployment, and who waits for what."""
        parts = (self._those_that_run_it, self._restarts, self._handover, self._absentees)
        return f"{'; '.join(words for part in parts for words in part())}."

    def _is_former(self, name: str) -> bool:
        application = self._nodes[name]["application"]
        return application is not None and application["is_former"]

    def _is_returning(self, silent: str) -> bool:
        rollout = self._core.rollout
        if silent in rollout.archives:
            away = self._silent_seconds.get(silent, 0.0)
            return not rollout.fits(silent) and away < RESTART_SECONDS
        # A process that has just restarted with the deployment has not met the other nodes yet.
        return self._core.identity.node not in self._former and self._seconds < RESTART_SECONDS

    def _followers_missed(self) -> list[str]:
        """The nodes for which the active waits without a limit, if none of them answers."""
        waits = self._active in self._former and self._core.rollout.awaits_follower
        others = self._able(self._nodes)
        return others if waits and set(others) <= set(self._absent) else []

    @property
    def _obstacle(self) -> str | None:
        """Why the active keeps the former application until somebody acts, or None."""
        if self._is_paused:
            return "failover is paused, until an operator resumes it"
        if self._missing:
            verb = _several(self._missing, "does", "do")
            return f"{verb} not answer, perhaps because the application does not start there"
        return None

    def _those_that_run_it(self) -> Iterator[str]:
        if len(self._moved) == len(self._nodes) > 1:
            yield "Every node runs it"
        elif self._moved:
            yield f"{_several(self._moved, 'runs', 'run')} it"

    def _restarts(self) -> Iterator[str]:
        if self.restarting:
            yield f"{_several(self.restarting, 'restarts', 'restart')} with it"

    def _handover(self) -> Iterator[str]:
        """Say what the active waits for, before it can run the deployment itself."""
        active, core = self._active, self._core
        if active not in self._former:
            return
        meanwhile = f"{active} takes events with the former application"
        joining, restarting = self._able(self._moved), self._able(self.restarting)
        ready = [name for name in joining if self._nodes[name]["in_sync"]]
        waits_for_nobody = active == core.identity.node and not core.rollout.awaits_follower
        if self._obstacle:
            yield f"{meanwhile}, and waits: {self._obstacle}"
        elif ready:
            yield f"{active} hands over to {ready[0]}, and then restarts with it"
        elif waits_for_nobody or not (joining or restarting):
            yield f"{active} restarts with it, since no other node can take over"
        elif joining:
            yield f"{meanwhile} until {_several(joining, 'is', 'are')} in sync, and then hands over"
        else:
            has = _several(restarting, "has", "have")
            yield f"{meanwhile} until {has} restarted, and then hands over"

    def _absentees(self) -> Iterator[str]:
        rollout = self._core.rollout
        absent = [name for name in self._absent if name not in self._missing]
        has = [name for name in absent if name in rollout.archives and rollout.fits(name)]
        lacks = [name for name in absent if name not in has]
        if has:
            yield f"{_several(has, 'does', 'do')} not answer"
        if lacks:
            yield f"{_several(lacks, 'does', 'do')} not answer, and will get it at the next start"

    def _able(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that could become the active."""
        backup = self._core.identity.backup
        return [name for name in names if name not in (self._active, backup)]


def _several(names: Sequence[str], one: str, many: str) -> str:
    """The names, with the verb for one name or for several: a runs; a and b run."""
    *first, last = names
    return f"{', '.join(first)} and {last} {many}" if first else f"{last} {one}"
