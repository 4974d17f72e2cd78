"""The diagram of roles in the documents is what the core allows."""

from __future__ import annotations

import re

import pytest

from ha_engine.core.role import LEGAL
from tests.docs.diagram import PAGE, drawn, redrawn


def test_the_page_shows_the_transitions_that_the_core_allows() -> None:
    page = PAGE.read_text()
    assert redrawn(page) == page, "run 'make diagram' and commit"


def test_the_diagram_has_each_transition_once() -> None:
    arrows = re.findall(r"^    (\w+) --> (\w+)$", drawn(), flags=re.MULTILINE)
    legal = [(role.value, other.value) for role, following in LEGAL.items() for other in following]
    assert sorted(arrows) == sorted(legal)


def test_a_page_without_markers_is_left_alone() -> None:
    with pytest.raises(ValueError, match="no markers"):
        redrawn("nothing")
