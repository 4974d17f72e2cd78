"""Check the invariants of the core after every step, in production too.

Each invariant has its number in docs/RULES.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ha_engine.core.queries import QueryState
from ha_engine.errors import InvariantBroken
from ha_engine.types import Role

if TYPE_CHECKING:
    from ha_engine.core.core import Core
    from ha_engine.core.marks import QueryMarks


def check(core: Core) -> None:
    """Check the invariants that one node can see.

    Raises InvariantBroken, which names the first invariant that does not hold.
    """
    for number, sentence in _broken(core):
        raise InvariantBroken(f"{number} of docs/RULES.md does not hold: {sentence}")


def _broken(core: Core) -> Iterator[tuple[str, str]]:
    yield from _broken_roles(core)
    yield from _broken_journal(core)
    for name, marks in core.deployment.marks.items():
        yield from _broken_marks(core, name, marks)
        life = core.deployment.lives[name]
        if life.state is QueryState.RUNNING and life.lineage != core.deployment.lineage(name):
            yield "I6", f"query {name} runs a state that is not the one in the journal"


def _broken_roles(core: Core) -> Iterator[tuple[str, str]]:
    if core.receiving and core.role is not Role.ACTIVE:
        yield "I4", "the receivers of a node that is not active are open"
    if core.receiving and not core.may_act():
        yield "I2", "the receivers of a node without authority are open"
    if core.role not in (Role.PROMOTING, Role.ACTIVE):
        return
    if core.epoch <= 0:
        yield "I1", "a node is active without an epoch"
    if core.journal.last.epoch > core.epoch:
        yield "I8", "the journal has a higher epoch than its active node"
    if core.follower.epoch:
        yield "I8", "an active node follows another holder"


def _broken_journal(core: Core) -> Iterator[tuple[str, str]]:
    committed, durable, last = core.journal.committed, core.journal.durable, core.journal.last
    if committed > durable:
        yield "I3", f"record {committed} is committed, but only {durable} is durable"
    if durable > last.sequence:
        yield "I8", f"record {durable} is durable, but the journal ends at {last}"
    # RULES.md#r5: a regressed lease row may still list a member that left before the newest
    # commits.
    if core.term is None or core.lease.regressed:
        return
    if not core.term.replication.all_had(committed, core.lease.possible):
        yield "I3", f"committed record {committed} is not on every in-sync member"


def _broken_marks(core: Core, name: str, marks: QueryMarks) -> Iterator[tuple[str, str]]:
    if marks.last.through > core.journal.last.sequence:
        yield "I5", f"a mark of query {name} is past the end of the journal"
    if marks.admitted > marks.last.number:
        yield "I6", f"query {name} admitted a batch without a mark"
    if marks.published_through > marks.last.number:
        yield "I7", f"query {name} published a batch without a mark"
