"""Each scenario still goes as it is written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.story import retell

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_core_does_what_the_scenario_tells(path: Path, rewrite: bool) -> None:
    told = path.read_text()
    if rewrite:
        path.write_text(retell(told))
    else:
        assert retell(told) == told


def test_every_scenario_says_why() -> None:
    assert [path.stem for path in SCENARIOS if not path.read_text().startswith("#")] == []
