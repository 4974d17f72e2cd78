"""Mutants test the tests of the core: a scenario or a history detects each of them."""

from __future__ import annotations

import pytest

from tests.core.mutants import MUTANTS, Mutant, killers, load
from tests.core.story import retell
from tests.core.test_scenarios import SCENARIOS


@pytest.mark.rotates
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_of_the_core_is_detected(mutant: Mutant) -> None:
    assert next(killers(mutant), None) is not None


def test_unmutated_copy_of_the_core_passes() -> None:
    copy = load(None)
    told = {path.stem: path.read_text() for path in SCENARIOS}
    assert {stem: retell(text, copy) for stem, text in told.items()} == told
