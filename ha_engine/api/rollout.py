"""The application that each node runs, and the progress of a deployment in words (RULES.md#r36)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from ha_engine.api.bodies import DeploymentBody, RunningApplication
from ha_engine.api.cluster_body import ClusterNode, Rollout
from ha_engine.core import Core
from ha_engine.deploy.store import described
from ha_engine.sync import Hello

State = Literal["moving", "waiting", "done"]
RESTART_SECONDS = 60.0
"""A node that has not come back with a deployment so many seconds after its begin is missing, and
no longer shown as restarting. Nothing but the words depends on it."""


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


def rollout_of(core: Core, nodes: Mapping[str, ClusterNode], active: str | None) -> Rollout | None:
    """The newest deployment and its progress, from what is known of ``nodes``. ``active`` is the
    name of the active, or None."""
    deployed = core.deployment.versions.deployed
    if deployed is None:
        return None
    body = DeploymentBody(**described(deployed))  # type: ignore[typeddict-item]
    seconds = time.time() - deployed.at_us / 1e6
    state, progress = _Progress(core, nodes, active, seconds).told()
    return {"deployment": body, "state": state, "progress": progress}


class _Progress:
    """The progress of a deployment that began ``seconds`` ago. The backup is never a node that
    could take over."""

    def __init__(
        self, core: Core, nodes: Mapping[str, ClusterNode], active: str | None, seconds: float
    ) -> None:
        self._core, self._nodes, self._active = core, nodes, active
        self._former = [name for name in nodes if self._is_former(name)]
        silent = [name for name, node in nodes.items() if not node["answers"]]
        may_restart = seconds < RESTART_SECONDS
        self._returning = [name for name in silent if may_restart and self._has_yet_to_move(name)]
        self._silent = [name for name in silent if name not in self._returning]
        self._moved = [n for n in nodes if n not in silent and n not in self._former]

    def told(self) -> tuple[State, str]:
        """The state, and the progress in words."""
        deployed = self._core.deployment.versions.deployed
        if deployed is None or deployed.id != _wanted(self._core, None):
            return "moving", "It waits until each node in sync has its record."
        why_not = self._why_not()
        parts = self._those_that_run_it(), self._restarts(), self._handover(why_not)
        text = "; ".join(part for some in (*parts, self._absent(why_not)) for part in some)
        is_done = not self._former and not self._returning and self._active is not None
        return "waiting" if why_not else "done" if is_done else "moving", f"{text}."

    def _has_yet_to_move(self, silent: str) -> bool:
        """Whether a node ran the former application when it last answered. A process that has just
        restarted itself does not know, and expects it."""
        core = self._core
        is_new = core.identity.node not in self._former
        return not core.rollout.fits(silent) or (is_new and silent not in core.rollout.archives)

    def _is_former(self, name: str) -> bool:
        application = self._nodes[name]["application"]
        return application is not None and application["is_former"]

    def _those_that_run_it(self) -> Iterator[str]:
        if len(self._moved) == len(self._nodes) > 1:
            yield "every node runs it"
        elif self._moved:
            yield f"{_several(self._moved, 'runs', 'run')} it"

    def _restarts(self) -> Iterator[str]:
        followers = [name for name in self._former if name != self._active] + self._returning
        if followers:
            yield f"{_several(sorted(followers), 'restarts', 'restart')} with it"

    def _handover(self, why_not: str | None) -> Iterator[str]:
        """Say what the active waits for, before it can run the deployment itself."""
        active = self._active
        if active not in self._former:
            if active is None:
                yield "no node is active at this moment"
            return
        goes_on = f"{active} takes events with the former application"
        ready = [name for name in self._able(self._moved) if self._nodes[name]["in_sync"]]
        restarting = sorted(self._able([*self._former, *self._returning]))
        if why_not:
            yield f"{goes_on}, and waits: {why_not}"
        elif ready:
            yield f"{active} hands over to {ready[0]}, and then restarts with it"
        elif joining := self._able(self._moved):
            yield f"{goes_on} until {_several(joining, 'is', 'are')} in sync, and then hands over"
        elif restarting:
            has = _several(restarting, "has", "have")
            yield f"{goes_on} until {has} restarted, and then hands over"
        else:
            yield f"{active} restarts with it, since no other node can take over"

    def _why_not(self) -> str | None:
        """Why the active keeps the former application until somebody acts, or None."""
        if self._active not in self._former:
            return None
        row, silent = self._core.lease.row, self._able(self._silent)
        if row is not None and row.paused:
            return "failover is paused, until an operator resumes it"
        others = self._able(list(self._nodes))
        if self._core.rollout.awaits_follower and silent and silent == others:
            verb = _several(silent, "does", "do")
            return f"{verb} not answer, perhaps because the application does not start there"
        return None

    def _absent(self, why_not: str | None) -> Iterator[str]:
        if why_not and self._able(self._silent):
            return
        rollout = self._core.rollout
        has = [name for name in self._silent if name in rollout.archives and rollout.fits(name)]
        lacks = [name for name in self._silent if name not in has]
        if has:
            yield f"{_several(has, 'does', 'do')} not answer"
        if lacks:
            yield f"{_several(lacks, 'does', 'do')} not answer, and will get it at the next start"

    def _able(self, names: Sequence[str]) -> list[str]:
        """Those of ``names`` that could become the active."""
        backup = self._core.identity.backup
        return [name for name in names if name not in (self._active, backup)]


def _several(names: Sequence[str], one: str, many: str) -> str:
    """The names, with the verb for one name or for several: a runs; a and b run."""
    *first, last = names
    return f"{', '.join(first)} and {last} {many}" if first else f"{last} {one}"
