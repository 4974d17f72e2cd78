"""Shadows of a simulated group: what an operator orders, and what a node does with its outboxes.

The id and the archive of an application here are the digest of its query ``delays``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ha_engine.core import ShadowLimits
from ha_engine.core import inputs as on
from ha_engine.core.shadow import BEHIND_MAX
from ha_engine.types import SHADOW_SIGN, Deployed
from tests.core.surroundings import Disk

if TYPE_CHECKING:
    from tests.sim.group import Group
    from tests.sim.node import SimNode

QUERY = "delays"
LIMITS = ShadowLimits(behind_max=600, batches_max=4, bytes_max=20_000)
BYTES_OF_ROW = 100


def plans_with(deployed: Deployed | None, plans: tuple[Any, ...]) -> tuple[Any, ...]:
    """The plans of a node that runs this deployment."""
    if deployed is None:
        return plans
    return tuple(
        replace(one, digest=deployed.archive) if one.name == QUERY else one for one in plans
    )


def order(group: Group) -> str | None:
    """Let an operator begin a shadow, promote it or discard it, as the node would allow. Return the
    order."""
    holder = group.holder()
    if holder is None or holder.core.rollout.is_due or holder.core.deployment.promoting:
        return None
    deployed = holder.core.deployment.versions.deployed
    live = "v1" if deployed is None else deployed.id
    if deployed is None or deployed.shadow is None:
        changed = f"v{group.counters['shadows'] + 2}"
        group.count("shadows")
        _ask(holder, live, shadow=(QUERY, changed, changed))
        return f"run {changed} in shadow"
    shadow = deployed.shadow
    if group.random.random() < 0.25:
        _ask(holder, live)
        group.count("shadows discarded")
        return f"discard {shadow.archive}"
    if not all(_keeps_up(node, shadow.name) for node in group.nodes.values()):
        return None
    before = holder.core.journal.last
    _ask(holder, shadow.id, promotes=shadow.name)
    if holder.alive and holder.core.journal.last != before:
        group.count("shadows promoted")
    return f"promote {shadow.archive}"


def _ask(holder: SimNode, wanted: str, **more: Any) -> None:
    holder.now_or_later(on.DeployAsked(wanted, "application", "operator", 0, wanted, **more))


def _keeps_up(node: SimNode, name: str) -> bool:
    shadow = node.core.deployment.shadow if node.alive else None
    if shadow is None or shadow.name != name:
        return False
    return shadow.life.state.value == "running" and shadow.behind <= BEHIND_MAX


def unready(node: SimNode) -> str | None:
    """Why the shadows of a healed node are not settled, in one sentence."""
    deployment = node.core.deployment
    if deployment.promoting is not None:
        return f"{node.node} waits for a promotion"
    shadow = deployment.shadow
    if shadow is not None and shadow.life.state.value != "failed" and shadow.behind:
        return f"{shadow.name} is {shadow.behind} batches behind on {node.node}"
    return None


@dataclass(frozen=True)
class _Batch:
    bytes: int


class Outboxes:
    """The outboxes on a disk, with the part of the interface of ``Outbox`` that shadows need."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def shadows(self) -> list[str]:
        return [name for name in self.disk.outbox if SHADOW_SIGN in name]

    def first(self, query: str) -> int | None:
        return min(self.disk.outbox.get(query, {}), default=None)

    def trimmed_through(self, query: str) -> int:
        return self.disk.trimmed.get(query, 0)

    def last_admitted(self, query: str) -> int:
        return self.disk.admitted.get(query, 0)

    def batch(self, query: str, number: int) -> _Batch | None:
        if number not in self.disk.outbox.get(query, {}):
            return None
        return _Batch(BYTES_OF_ROW * self.disk.outbox_rows[(query, number)])

    def begin_shadow(self, shadow: str) -> None:
        self.disk.outbox.setdefault(shadow, {})

    def set_outbox_floor(self, query: str, floor: int) -> None:
        self.disk.trimmed[query] = max(floor, self.trimmed_through(query))
        self.disk.admitted[query] = max(floor, self.last_admitted(query))

    def drop(self, query: str) -> None:
        for kept in (self.disk.outbox, self.disk.admitted, self.disk.trimmed):
            kept.pop(query, None)

    def continue_with(self, query: str, shadow: str, after: int) -> None:
        """Do what ``QueryOutbox.continue_with`` does."""
        disk = self.disk
        if shadow not in disk.outbox:
            return
        made, last = disk.outbox[shadow], self.last_admitted(shadow)
        base = max(self.trimmed_through(query), min(after, self.last_admitted(query)))
        if last > base:
            base = max(base, self.trimmed_through(shadow))
        disk.trimmed[query] = max(base, self.trimmed_through(query))
        disk.outbox[query] = {n: made[n] for n in made if n > base}
        disk.admitted[query] = max(base, last)
        for number in disk.outbox[query]:
            disk.outbox_rows[(query, number)] = disk.outbox_rows[(shadow, number)]
            disk.made_by[(query, number)] = disk.made_by[(shadow, number)]
        self.drop(shadow)
