"""The legal transitions between roles. ``make diagram`` draws LEGAL for the docs."""

from __future__ import annotations

from ha_engine.errors import InvariantBroken
from ha_engine.types import Role

LEGAL: dict[Role, frozenset[Role]] = {
    Role.STARTING: frozenset({Role.JOINING, Role.STOPPED}),
    Role.JOINING: frozenset({Role.PASSIVE, Role.BACKUP, Role.PROMOTING, Role.STOPPED}),
    Role.PASSIVE: frozenset({Role.JOINING, Role.BACKUP, Role.PROMOTING, Role.STOPPED}),
    Role.BACKUP: frozenset({Role.JOINING, Role.PASSIVE, Role.PROMOTING, Role.STOPPED}),
    Role.PROMOTING: frozenset({Role.ACTIVE, Role.DEMOTING, Role.STOPPED}),
    Role.ACTIVE: frozenset({Role.DEMOTING}),
    Role.DEMOTING: frozenset({Role.JOINING, Role.STOPPED}),
    Role.STOPPED: frozenset(),
}


def check_transition(before: Role, after: Role) -> None:
    """Raises InvariantBroken when the role ``after`` may not follow the role ``before``."""
    if after not in LEGAL[before]:
        raise InvariantBroken(f"role {after.value} must not follow {before.value}")
