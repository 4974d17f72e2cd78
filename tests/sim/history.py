"""One history: a seed's faults under the judges, then everything heals and all must be
published."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import ha_engine.core
from ha_engine.core import inputs as on
from ha_engine.types import Events, Role
from tests.core.truth import require
from tests.sim.faults import FAULT_PHASE_SECONDS, Faults
from tests.sim.group import Group
from tests.sim.node import TIMING, StateIsLost, plans_of
from tests.sim.pulling import Way, require_each_once
from tests.sim.shadowing import unready
from tests.sim.transcript import told
from tests.sim.variants import Variant

HEALED_WITHIN = 60.0
OPERATOR_AFTER = 4 * TIMING.ttl


class Failed(AssertionError):
    """A history broke a rule; the message has its seed, the rule and the last of its transcript."""


def play(
    seed: int,
    engine: Any = ha_engine.core,
    *,
    variant: Variant = Variant.PLAIN,
    pulls: Way | None = None,
) -> Counter[str]:
    """Play the history of ``seed`` and return the counts of what it reached. A variant or a
    source makes it another history. Raises Failed."""
    return _played(Group(seed, engine, variant=variant, pulls=pulls)).counters


def tell(seed: int, *, variant: Variant = Variant.PLAIN) -> str:
    """Return the whole history of ``seed`` in readable form. Raises Failed."""
    return told(_played(Group(seed, variant=variant)))


def _played(group: Group) -> Group:
    try:
        _play(group)
    except StateIsLost:
        group.count("states lost")
    except Exception as error:
        reason = f"seed {group.seed}: {type(error).__name__}: {error}"
        raise Failed(f"{reason}\n{told(group)}\n{reason}") from error
    return group


def _play(group: Group) -> None:
    faults = Faults(group)
    group.start()
    faults.begin()
    group.agenda.run_until(group.random.uniform(0.6, 1.2) * FAULT_PHASE_SECONDS)
    faults.over = True
    heal(group)


def heal(group: Group) -> None:
    """End every fault; operators do what the documentation asks, and nothing more."""
    _end_faults(group)
    began = group.now
    while group.now < began + HEALED_WITHIN:
        group.agenda.run_until(group.now + 0.5)
        _act_as_operator(group, group.now - began)
        if group.now > began + 1.5:
            group.producers.sending = False
            if group.pulling:
                group.pulling.sending = False
        if _settled(group) is None:
            break
    reason = _settled(group)
    require(reason is None, "liveness", f"not healed: {reason}")
    _require_equal(group)
    group.count("histories")


def _end_faults(group: Group) -> None:
    group.tell("fault", "everything is healed")
    network, database = group.network, group.database
    network.drops = network.doubles = network.keeps = 0.0
    network.delay_max, group.restart_within = 0.02, 0.5
    network.unblock()
    database.up, database.slow, database.loses_replies, database.late = True, 0.0, 0.0, 0.0
    database.unreachable.clear()
    database.pause(False)
    group.sinks_away.clear()
    group.watching.deaf = 0.0
    group.forces_until = group.now
    group.sink_slow, group.producers.loses_acks = 0.0, 0.0
    for node in group.nodes.values():
        node.fsync_max = 0.02
        node.resume(node.processes)
        node.now_or_later(on.HeadroomChanged(True))


def _act_as_operator(group: Group, seconds: float) -> None:
    for node in group.living:
        for query, life in node.core.deployment.lives.items():
            if life.state.value == "failed":
                group.count("queries given up")
                node.feed(on.RetryAsked(query))
    row = group.around.table.row
    if row is not None and row.paused and any(n.core.rollout.is_due for n in group.living):
        # The database lost the end of the pause, during which no lease is handed over.
        group.database.pause(False)
    if group.facts.regressed and seconds > OPERATOR_AFTER:
        _repair_row(group)


def _repair_row(group: Group) -> None:
    """RULES.md#r5: no node may rewrite the row. Stop all nodes, then write the newest row by
    hand."""
    group.count("operator repairs")
    group.tell("operator", "stops all nodes and writes the newest row again")
    newest, table = group.facts.newest, group.around.table
    assert newest is not None
    for node in group.living:
        node.kill(query_process_dies=True)
    # Use a version above any that a node has read, perhaps of a lost branch: nodes compare.
    read = [node.disk.high_water.version for node in group.nodes.values() if node.disk.high_water]
    version = max(newest.version, table.row.version if table.row else 0, *read) + 1
    row = replace(newest, holder=None, successor=None, version=version, identity=table.identity,
                  paused=False)  # fmt: skip
    group.database.generation += 1
    group.database.put(row)
    group.facts.mended(row)


def _settled(group: Group) -> str | None:
    """Return the reason why the group is not settled, in one sentence."""
    if group.off:
        return f"an operator forces a failover, and {sorted(group.off)} are off"
    row = group.around.table.row
    active = [node.node for node in group.living if node.truth.role is Role.ACTIVE]
    if len(active) != 1 or row is None or row.holder is None or row.holder.node != active[0]:
        return f"active: {active}"
    former = [n.node for n in group.living if n.core.rollout.is_due]
    if former:
        return f"{former} run a former application"
    members = {
        (node.node, node.disk.journal_id)
        for node in group.nodes.values()
        if node.node != group.backup or node.node == active[0]
    }
    listed = {(member.node, member.journal_id) for member in row.in_sync}
    if members != listed:
        return f"in sync: {sorted(listed)} of {sorted(members)}"
    if not group.producers.all_acked:
        return "producers wait for acks"
    if reason := next(filter(None, map(unready, group.living)), None):
        return reason
    return _backup_lacks(group, active[0]) or _unpublished(group) or group.watching.lacks()


def _backup_lacks(group: Group, active: str) -> str | None:
    """RULES.md#r37: a backup that is not the active has every committed record and no Spark."""
    if group.backup in (None, active):
        return None
    backup, committed = group.nodes[group.backup], group.facts.committed
    durable = backup.disk.records[: backup.disk.durable]
    if [record.position for record in durable[: len(committed)]] != committed:
        return f"the backup lacks some of {len(committed)} committed records"
    if backup.truth.role is not Role.BACKUP or backup.spark is not None:
        return f"the backup is {backup.truth.role}, and its Spark is {backup.spark}"
    return None


def _unpublished(group: Group) -> str | None:
    disk = next(iter(group.nodes.values())).disk
    for plan in plans_of(group.variant):
        batches = group.around.batches.get(plan.name, {})
        seen = [position for number in sorted(batches) for position in batches[number]]
        events = list(disk.content(plan.streams, 0, len(disk.records)))
        if seen != events:
            return f"{plan.name} has {len(seen)} of {len(events)} events"
        for sink in plan.sinks:
            if group.around.ledgers[(plan.name, sink)].batch != len(batches):
                return f"{plan.name} is behind in {sink}"
        for node in group.nodes.values():
            runs = not node.plans[plan.name].warm or node.truth.role is Role.ACTIVE
            if runs and node.disk.admitted.get(plan.name, 0) < len(batches):
                return f"{plan.name} is behind on {node.node}"
    return None


def _require_equal(group: Group) -> None:
    """Require C8, P1 and C1: one journal on all nodes, with every committed record and each request
    once."""
    disks = [node.disk for node in group.nodes.values()]
    shortest = min(disk.durable for disk in disks)
    first = disks[0].records[:shortest]
    for disk in disks:
        require(disk.records[:shortest] == first, "C8", "journals differ after healing")
    committed = [position for position in group.facts.committed if position.sequence <= shortest]
    require_each_once(first)
    require(committed == [r.position for r in first][: len(committed)], "P1", "records are gone")
    requests = [one for r in first if isinstance(r.body, Events) for one in r.body.submissions]
    names = [(one.producer, one.sequence) for one in requests]
    require(len(names) == len(set(names)), "C1", "a request is stored twice")
    sent = sum(one.sequence for one in group.producers.all)
    stored = len(set(names) | group.facts.requests_given_up)
    require(stored == sent, "C1", f"{stored} of {sent} requests are stored or given up")
