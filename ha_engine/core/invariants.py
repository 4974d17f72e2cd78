"""Check the invariants after every step, in production too. Numbers are those of docs/RULES.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ha_engine.errors import InvariantBroken
from ha_engine.types import Role

if TYPE_CHECKING:
    from ha_engine.core.core import Core
    from ha_engine.core.marks import QueryMarks


def check(core: Core) -> None:
    """Check the invariants that one node can see.

    Raises InvariantBroken, which names the first that does not hold.
    """
    for number, said in _broken(core):
        raise InvariantBroken(f"{number} of docs/RULES.md does not hold: {said}")


def _broken(core: Core) -> Iterator[tuple[str, str]]:
    yield from _broken_roles(core)
    yield from _broken_journal(core)
    for name, marks in core.deployment.marks.items():
        yield from _broken_marks(core, name, marks)


def _broken_roles(core: Core) -> Iterator[tuple[str, str]]:
    if core.receiving and core.role is not Role.ACTIVE:
        yield "I4", "receivers are open, not active"
    if core.receiving and not core.may_act():
        yield "I2", "receivers are open without authority"
    if core.role not in (Role.PROMOTING, Role.ACTIVE):
        return
    if core.epoch <= 0:
        yield "I1", "a node acts without an epoch"
    if core.journal.last.epoch > core.epoch:
        yield "I8", "the journal's epoch is above ours"
    if core.follower.epoch:
        yield "I8", "a node acts and follows another"


def _broken_journal(core: Core) -> Iterator[tuple[str, str]]:
    committed, durable, last = core.journal.committed, core.journal.durable, core.journal.last
    if committed > durable:
        yield "I3", f"committed {committed} over {durable}"
    if durable > last.sequence:
        yield "I8", f"durable {durable} over {last}"
    # RULES.md#r5: a regressed row may still list a member that left before the newest commits.
    if core.term is None or core.lease.regressed:
        return
    if not core.term.replication.all_have(committed, core.lease.possible):
        yield "I3", f"{committed} is not on every in-sync member"


def _broken_marks(core: Core, name: str, marks: QueryMarks) -> Iterator[tuple[str, str]]:
    if marks.last.through > core.journal.last.sequence:
        yield "I5", f"{name}'s mark is past the journal"
    if marks.admitted > marks.last.number:
        yield "I6", f"{name} admitted a batch without a mark"
    if marks.published_through > marks.last.number:
        yield "I7", f"{name} published a batch without a mark"
