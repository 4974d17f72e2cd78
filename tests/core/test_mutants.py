"""The tests of the core are tested: each breakage of it is found by a scenario or a history."""

from __future__ import annotations

import pytest

from tests.core.mutants import MUTANTS, Mutant, killers, load
from tests.core.story import retell
from tests.core.test_scenarios import SCENARIOS


@pytest.mark.rotates
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_core_is_found_out(mutant: Mutant) -> None:
    assert next(killers(mutant), None) is not None


def test_a_copy_that_is_not_broken_passes() -> None:
    copy = load(None)
    told = {path.stem: path.read_text() for path in SCENARIOS}
    assert {stem: retell(text, copy) for stem, text in told.items()} == told
