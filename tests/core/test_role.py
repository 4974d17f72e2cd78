"""Role transitions are data: the legal ones happen, the others raise, no role is out of reach."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from ha_engine.core.role import LEGAL, check_transition
from ha_engine.errors import InvariantBroken
from ha_engine.types import Role
from tests.core.story import Story
from tests.core.test_scenarios import SCENARIOS
from tests.core.world import World


def transitions_of(path: Path) -> set[tuple[Role, Role]]:
    story = Story()
    for line in path.read_text().splitlines():
        if line.startswith(">"):
            story.play_line(line)
    return story.world.truth.transitions


def test_every_legal_transition_happens_in_a_scenario() -> None:
    legal = {(before, after) for before, nexts in LEGAL.items() for after in nexts}
    seen = set().union(*(transitions_of(path) for path in SCENARIOS))
    assert seen == legal


@pytest.mark.parametrize(
    ("before", "after"),
    [(b, a) for b, a in product(Role, Role) if a not in LEGAL[b]],
    ids=lambda role: role.value,
)
def test_any_other_transition_is_a_broken_invariant(before: Role, after: Role) -> None:
    with pytest.raises(InvariantBroken, match=f"{after.value} must not follow {before.value}"):
        check_transition(before, after)


def test_every_role_can_be_reached_and_only_stopped_is_final() -> None:
    reached = {Role.STARTING}
    while new := {after for before in reached for after in LEGAL[before]} - reached:
        reached |= new
    assert reached == set(Role)
    assert [role for role in Role if not LEGAL[role]] == [Role.STOPPED]


def test_suspended_active_says_that_it_takes_no_order() -> None:
    world = World()
    world.start()
    world.wait(1)
    world.ghost.link()
    world.wait(1)
    assert world.core.why_no_order() is None
    world.automatic.discard("lease")
    world.wait(6)
    assert "suspended" in (world.core.why_no_order() or "")
    world.crash()
    world.automatic.add("lease")
    world.start(ticks=False)
    assert "not active" in (world.core.why_no_order() or "")
