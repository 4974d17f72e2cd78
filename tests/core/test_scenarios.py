"""The core still produces each recorded scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.story import retell

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_core_acts_as_the_scenario_says(path: Path, rewrite: bool) -> None:
    told = path.read_text()
    if rewrite:
        path.write_text(retell(told))
    else:
        assert retell(told) == told


def test_every_scenario_has_a_reason() -> None:
    assert [path.stem for path in SCENARIOS if not path.read_text().startswith("#")] == []
