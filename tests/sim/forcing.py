"""An operator forces a failover: switches off nodes that may act, forces, and switches them on.

The operator follows the documentation: a node confirmed as off is off.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ha_engine.core import inputs as on

if TYPE_CHECKING:
    from tests.sim.group import Group
    from tests.sim.node import SimNode

ASKS_EVERY, GIVES_UP_AFTER = 0.5, 12.0


def force(group: Group) -> None:
    """Force a failover to a node that lives and is not in sync, if there is one."""
    newest = group.facts.newest
    if newest is None or group.off:
        return
    nodes = [n for n in group.living if not n.paused and n.member not in newest.in_sync]
    if not nodes:
        return
    node = group.random.choice(nodes)
    listed = {member.node for member in newest.in_sync} | {newest.holder and newest.holder.node}
    group.tell("operator", f"switches {sorted(filter(None, listed))} off to force {node.node}")
    for other in group.nodes.values():
        if other is not node and other.node in listed:
            _switch_off(group, other)
    group.forces_until = group.now + GIVES_UP_AFTER
    _ask(group, node)


def _switch_on(group: Group) -> None:
    """Switch all nodes on again, whatever the result of the failover."""
    names, group.off = group.off, set()
    for name in sorted(names):
        group.restart(group.nodes[name])


def _switch_off(group: Group, node: SimNode) -> None:
    group.off.add(node.node)
    node.kill(query_process_dies=group.random.random() < 0.5)


def _ask(group: Group, node: SimNode) -> None:
    done = group.facts.newest is not None and group.facts.newest.in_sync == (node.member,)
    # A node that may still act on a request relies on what the operator has confirmed.
    pending = node.alive and node.core.forced_failover.is_asked
    if done or (group.now >= group.forces_until and not pending):
        _switch_on(group)
        return
    if node.alive and not node.paused and group.now < group.forces_until:
        _switch_off_unreachable_nodes(group, node)
        off = tuple(sorted(group.off))
        if node.core.why_no_forced_failover(off) is None:
            node.feed(on.FailoverForced("operator", off))
    group.agenda.after(ASKS_EVERY, partial(_ask, group, node))


def _switch_off_unreachable_nodes(group: Group, node: SimNode) -> None:
    for other in group.nodes.values():
        if other is not node and other.node not in node.core.role_machine.connected:
            _switch_off(group, other)
