"""A few strokes of SVG for the diagrams of the documents: boxes, arrows, words.

It does no layout: the caller gives all positions. A drawing has its own background, so that it is
legible on a light and on a dark page.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import hypot

LINE_HEIGHT = 16
_STYLE = (
    "text{font:13px sans-serif;fill:#1f2937}.small{font-size:11px;fill:#4b5563}"
    ".box{fill:#eef2ff;stroke:#4338ca}.host{fill:#f9fafb;stroke:#9ca3af;stroke-dasharray:4 3}"
    ".line{fill:none;stroke:#374151;stroke-width:1.3;marker-end:url(#tip)}"
    ".both{marker-start:url(#tip)}.span{stroke:#4338ca;stroke-width:6}"
    ".gap{stroke:#dc2626;stroke-width:6}.axis{stroke:#9ca3af}"
)
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="#374151"/></marker></defs>'
)


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Box:
    """``at`` is its centre. The first line of ``words`` is its name, the others are small."""

    at: Point
    width: float
    height: float
    words: tuple[str, ...]

    def drawn(self, kind: str = "box") -> str:
        left, top = self.at.x - self.width / 2, self.at.y - self.height / 2
        frame = (
            f'<rect class="{kind}" x="{left:g}" y="{top:g}" width="{self.width:g}" '
            f'height="{self.height:g}" rx="6"/>'
        )
        first = self.at.y + 5 - (len(self.words) - 1) * LINE_HEIGHT / 2
        if kind == "host":
            first = top + LINE_HEIGHT + 3
        lines = [
            text(Point(self.at.x, first + row * LINE_HEIGHT), words, small=row > 0)
            for row, words in enumerate(self.words)
        ]
        return "\n".join([frame, *lines])

    def edge_towards(self, target: Point) -> Point:
        """Return the point where a line from the centre to ``target`` leaves the frame."""
        across, down = target.x - self.at.x, target.y - self.at.y
        ratios = [self.width / 2 / abs(across)] if across else []
        ratios += [self.height / 2 / abs(down)] if down else []
        part = min(ratios)
        return Point(self.at.x + across * part, self.at.y + down * part)


def text(at: Point, words: str, *, small: bool = False, anchor: str = "middle") -> str:
    kind = ' class="small"' if small else ""
    return f'<text{kind} x="{at.x:g}" y="{at.y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def arrow(start: Box, end: Box, *, bend: float = 0, both: bool = False, named: str = "") -> str:
    """Draw from frame to frame; ``bend`` pixels to the left, so that opposite arrows separate."""
    across, down = end.at.x - start.at.x, end.at.y - start.at.y
    length = hypot(across, down)
    aside = Point(bend * down / length, -bend * across / length)
    middle = _middle(start.at, end.at, aside)
    first, last = start.edge_towards(middle), end.edge_towards(middle)
    control = _middle(first, last, aside)
    kind = "line both" if both else "line"
    return (
        f'<path class="{kind}"{named} d="M{first.x:.1f} {first.y:.1f}'
        f'Q{control.x:.1f} {control.y:.1f} {last.x:.1f} {last.y:.1f}"/>'
    )


def _middle(one: Point, other: Point, aside: Point) -> Point:
    return Point((one.x + other.x) / 2 + aside.x, (one.y + other.y) / 2 + aside.y)


def line(kind: str, start: Point, end: Point) -> str:
    return f'<path class="{kind}" d="M{start.x:g} {start.y:g}L{end.x:g} {end.y:g}"/>'


def document(width: int, height: int, title: str, parts: list[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            _TIP,
            f'<rect width="{width}" height="{height}" fill="#ffffff" rx="8"/>',
            *parts,
            "</svg>",
            "",
        ]
    )
