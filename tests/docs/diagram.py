"""Draw the diagrams of the documents into docs/diagrams: the packages and their imports, roles, a
pair, the timing of a takeover.

python -m tests.docs.diagram
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import grimp

from ha_engine.config import Config
from ha_engine.core.role import LEGAL
from ha_engine.types import Role
from tests.docs.svg import Box, Point, arrow, document, line, text

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "docs" / "diagrams"

PLACES = {
    Role.STARTING: Point(75, 90),
    Role.JOINING: Point(245, 90),
    Role.PASSIVE: Point(415, 90),
    Role.BACKUP: Point(110, 215),
    Role.PROMOTING: Point(585, 90),
    Role.ACTIVE: Point(755, 90),
    Role.DEMOTING: Point(670, 200),
    Role.STOPPED: Point(330, 290),
}
BENT = {(Role.JOINING, Role.PROMOTING): 90.0, (Role.DEMOTING, Role.JOINING): 36.0}
"""The bends of arrows that must pass the boxes between their ends."""


def roles() -> str:
    """Draw one arrow for each transition that the core allows."""
    boxes = {role: Box(PLACES[role], 100, 36, (role.value,)) for role in LEGAL}
    arrows = [
        arrow(
            boxes[role],
            boxes[other],
            bend=BENT.get((role, other), 14.0 if role in LEGAL[other] else 0.0),
            named=f' data-from="{role.value}" data-to="{other.value}"',
        )
        for role, other in transitions()
    ]
    frames = [box.drawn() for box in boxes.values()]
    return document(830, 330, "Roles of a node, and which may follow which", [*arrows, *frames])


def transitions() -> Iterator[tuple[Role, Role]]:
    """Yield the transitions in the order of the data."""
    for role, following in LEGAL.items():
        yield from ((role, other) for other in Role if other in following)


def pair() -> str:
    """Draw two hosts and a database, with the traffic between them."""
    producers = Box(Point(410, 34), 150, 36, ("producers",))
    hosts = [
        Box(Point(180, 208), 300, 236, ("host of node-a: active",)),
        Box(Point(640, 208), 300, 236, ("host of node-b: passive",)),
    ]
    nodes = [_process(host, -44, "node process", "lease, journal, sync, outbox") for host in hosts]
    sparks = [_process(host, 54, "query process", "Spark: the same batches") for host in hosts]
    database = Box(Point(410, 380), 190, 52, ("PostgreSQL", "lease, snapshots, sinks"))
    arrows = [
        arrow(producers, nodes[0]),
        arrow(nodes[0], nodes[1], both=True),
        *(arrow(node, spark, both=True) for node, spark in zip(nodes, sparks, strict=True)),
        arrow(hosts[0], database, both=True),
        arrow(hosts[1], database, both=True),
    ]
    words = [
        text(Point(410, 148), "event sync"),
        text(Point(410, 182), "records, acks", small=True),
        text(Point(255, 84), "events", small=True, anchor="end"),
        text(Point(262, 368), "publishes, renews", small=True, anchor="end"),
        text(Point(558, 368), "watches, stores snapshots", small=True, anchor="start"),
    ]
    frames = [host.drawn("host") for host in hosts]
    boxes = [box.drawn() for box in (producers, *nodes, *sparks, database)]
    return document(820, 420, "A pair of nodes", [*frames, *arrows, *boxes, *words])


def _process(host: Box, down: float, *words: str) -> Box:
    return Box(Point(host.at.x, host.at.y + down), 240, 62, words)


def takeover() -> str:
    """Draw the end of each authority with the defaults: the active's host dies after a renewal."""
    lease = Config().lease
    left, scale = 150.0, 95.0

    def at(seconds: float, row: float) -> Point:
        return Point(left + seconds * scale, row)

    authority = lease.ttl - lease.margin
    spans = [
        line("span", at(0, 62), at(authority, 62)),
        line("gap", at(authority, 122), at(lease.ttl, 122)),
        line("span", at(lease.ttl, 182), at(lease.ttl + 1, 182)),
    ]
    labels = [
        text(Point(left - 12, 66), "A may act", anchor="end"),
        text(Point(left - 12, 126), "nobody may", anchor="end"),
        text(Point(left - 12, 186), "B may act", anchor="end"),
        text(at(authority / 2, 50), f"safe_until = sent + ttl - margin = {authority:g} s"),
        text(at(lease.ttl - 1.5, 112), f"margin {lease.margin:g} s, at the least", small=True),
        text(at(lease.ttl - 1.6, 180), "B saw no change of the row for a ttl", small=True),
    ]
    axis = [line("axis", at(0, 220), at(lease.ttl + 1, 220))]
    for second in range(int(lease.ttl) + 2):
        axis += [line("axis", at(second, 215), at(second, 225))]
        axis += [text(at(second, 242), f"{second} s", small=True)]
    title = "The last renewal of A is sent at 0 s; B takes over a ttl after it at the earliest"
    return document(780, 260, title, [*axis, *spans, *labels])


def packages() -> str:
    """Draw one row for each layer of the import contract, and the imports that no others imply."""
    rows, width, down = layers(), 860.0, 62.0
    boxes = {
        name: Box(Point(x, 30 + down * number), 104, 30, (name,))
        for number, row in enumerate(rows)
        for x, name in zip(_spread(width, row, number), row, strict=True)
    }
    arrows = [arrow(boxes[one], boxes[other]) for one, other in needed_imports(boxes)]
    frames = [box.drawn() for box in boxes.values()]
    title = "The packages of ha_engine; each imports only from rows below its own"
    return document(int(width), int(60 + down * (len(rows) - 1)), title, [*arrows, *frames])


def _spread(width: float, row: list[str], number: int) -> list[float]:
    """Place boxes side by side; rows of one alternate, so that no arrow passes behind a box."""
    if len(row) == 1:
        return [width / 2 + (70 if number % 2 else -70)]
    return [width * (place + 1) / (len(row) + 1) for place in range(len(row))]


def layers() -> list[list[str]]:
    """Return the packages of each layer, the highest first."""
    contract = configparser.ConfigParser()
    contract.read(ROOT / ".importlinter")
    text_of_layers = contract["importlinter:contract:layers"]["layers"]
    rows = [re.split(r" *[|:] *", row) for row in text_of_layers.strip().splitlines()]
    packages_only = [[name for name in row if (ROOT / "ha_engine" / name).is_dir()] for row in rows]
    return [row for row in packages_only if row]


def needed_imports(names: Mapping[str, Box]) -> list[tuple[str, str]]:
    """Return pairs of packages, the first importing the second, without those another path
    shows."""
    graph = grimp.build_graph("ha_engine", exclude_type_checking_imports=True, cache_dir=None)
    imports = {
        one: {other for other in names if other != one and _imports(graph, one, other)}
        for one in names
    }
    return sorted(
        (one, other)
        for one, others in imports.items()
        for other in others
        if not any(other in _below(imports, third) for third in others - {other})
    )


def _imports(graph: grimp.ImportGraph, one: str, other: str) -> bool:
    return graph.direct_import_exists(
        importer=f"ha_engine.{one}", imported=f"ha_engine.{other}", as_packages=True
    )


def _below(imports: Mapping[str, set[str]], name: str) -> set[str]:
    found = set(imports[name])
    for other in imports[name]:
        found |= _below(imports, other)
    return found


DRAWINGS: Mapping[str, Callable[[], str]] = {
    "roles.svg": roles,
    "packages.svg": packages,
    "pair.svg": pair,
    "takeover.svg": takeover,
}


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for name, drawn in DRAWINGS.items():
        (DIRECTORY / name).write_text(drawn())
