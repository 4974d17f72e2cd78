"""The diagrams in the documents agree with the code."""

from __future__ import annotations

import re

import pytest

from ha_engine.core.role import LEGAL
from tests.docs.diagram import DIRECTORY, DRAWINGS, roles


@pytest.mark.parametrize("name", DRAWINGS)
def test_diagram_agrees_with_the_code(name: str) -> None:
    drawn = DRAWINGS[name]()
    assert (DIRECTORY / name).read_text() == drawn, "run 'make diagram' and commit"


def test_diagram_of_the_roles_has_each_transition_once() -> None:
    arrows = re.findall(r'data-from="(\w+)" data-to="(\w+)"', roles())
    legal = [(role.value, other.value) for role, following in LEGAL.items() for other in following]
    assert sorted(arrows) == sorted(legal)


def test_each_diagram_is_in_a_document() -> None:
    pages = "".join(page.read_text() for page in DIRECTORY.parent.rglob("*.md"))
    shown = set(re.findall(r"\(diagrams/([\w.-]+)\)", pages))
    assert shown == set(DRAWINGS) == {path.name for path in DIRECTORY.iterdir()}
