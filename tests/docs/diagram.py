"""Draws the legal role transitions into docs/PROTOCOL.md, between its two markers.

python -m tests.docs.diagram
"""

from __future__ import annotations

import re
from pathlib import Path

from ha_engine.core.role import LEGAL
from ha_engine.types import Role

PAGE = Path(__file__).parents[2] / "docs" / "PROTOCOL.md"
_BETWEEN = re.compile(
    r"(?<=<!-- roles: drawn by make diagram -->\n).*(?=<!-- roles: end -->)", re.S
)


def drawn() -> str:
    """A Mermaid block with one line for each transition, in the order of the data."""
    lines = [f"    [*] --> {Role.STARTING.value}"]
    for role, following in LEGAL.items():
        targets = [other.value for other in Role if other in following] or ["[*]"]
        lines += [f"    {role.value} --> {target}" for target in targets]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def redrawn(page: str) -> str:
    """``page`` with the diagram between the markers. Raises ValueError when it has none."""
    if not _BETWEEN.search(page):
        raise ValueError(f"{PAGE} has no markers for the roles")
    return _BETWEEN.sub(lambda _: drawn(), page)


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text()))
