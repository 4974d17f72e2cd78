"""What must be true after every step, in production too. Numbers are those of the design."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha_engine.errors import InvariantBroken
from ha_engine.types import Role

if TYPE_CHECKING:
    from ha_engine.core.core import Core


def check(core: Core) -> None:
    """Raises InvariantBroken naming the first one that is not true."""
    for number, holds, said in _facts(core):
        if not holds:
            raise InvariantBroken(f"{number} does not hold: {said}")


def _facts(core: Core) -> list[tuple[str, bool, str]]:
    acting = core.role in (Role.PROMOTING, Role.ACTIVE)
    facts = [
        ("I1", not acting or core.epoch > 0, "a node acts without an epoch"),
        (
            "I3",
            core.journal.committed <= core.journal.durable,
            f"committed {core.journal.committed} over {core.journal.durable}",
        ),
        (
            "I8",
            core.journal.durable <= core.journal.last.sequence,
            f"durable {core.journal.durable} over {core.journal.last}",
        ),
        (
            "I8",
            not acting or core.journal.last.epoch <= core.epoch,
            "the journal's epoch is above ours",
        ),
        ("I4", not core.receiving or core.role is Role.ACTIVE, "receivers are open, not active"),
        ("I2", not core.receiving or core.may_act(), "receivers are open past safe_until"),
        ("I8", not (acting and core.following.epoch), "a node acts and follows another"),
    ]
    # R5: a regressed row may list who had left before what was committed since.
    if core.tenure is not None and not core.lease.regressed:
        everywhere = core.tenure.leading.all_have(core.journal.committed, core.lease.possible)
        facts.append(("I3", everywhere, f"{core.journal.committed} is not on every in-sync member"))
    for name, marks in core.deployment.marks.items():
        facts += [
            (
                "I5",
                marks.last.through <= core.journal.last.sequence,
                f"{name}'s mark is past the journal",
            ),
            ("I6", marks.admitted <= marks.last.number, f"{name} admitted a batch without a mark"),
            (
                "I7",
                marks.published_through <= marks.last.number,
                f"{name} published a batch without a mark",
            ),
        ]
    return facts
