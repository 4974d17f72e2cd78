"""A pair at work with its database and its network, which faults change and which heals."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ha_engine.journal.segment import segment_paths
from tests.e2e.lan import Lan
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import NAMES, Pair, running_pair
from tests.e2e.without_spark import APPLICATION
from tests.faults.matrix.clocks import Clock
from tests.faults.matrix.credentials import Credentials
from tests.faults.matrix.database import Database
from tests.faults.matrix.disks import Disk, Part
from tests.faults.matrix.history import Outage
from tests.faults.matrix.hosts import SYNC_PORT, HostedNode, SparkNode, holds
from tests.faults.matrix.lines import HostLines, Line
from tests.faults.matrix.needs import (
    CLOCKS,
    DATABASE_DISK,
    DISKS,
    LINES,
    LOGIN,
    PART_NAMES,
    PARTS,
    SECURE,
    SEGMENTS,
    STANDBY,
)

SINK_PORT = 5442
BETWEEN_NODES = "between the nodes"
LINE_PORT, DATABASE_LINE_PORT = 9993, 5433
WHOLE_SECONDS = {1: 120.0, 2: 240.0}
"""The limit until both nodes are warm and in sync, by tier, while no query catches up."""
SECTIONS: dict[str, dict[str, Any]] = {
    "query": {"min_batch_interval": "200ms"},
    "snapshot": {"interval": "0s"},
    "receive": {"max_backlog_events": 1 << 30},
}


@dataclass
class World:
    """A pair at work. ``database`` has the lease, ``sink`` the output; it may be the same server.
    ``undo`` has what ``heal`` does first, and once.

    ``outages`` are the times in which no node reached the database. ``disks`` and ``clocks`` are
    those of the hosts by name, if the world was made with them.
    """

    directory: Path
    lan: Lan
    database: Database
    sink: Database
    addresses: dict[str, str]
    pair: Pair
    tier: int
    disks: dict[str, Disk] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    parts: dict[tuple[str, str], Part] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)
    credentials: Credentials | None = None
    standby: Database | None = None
    trims: bool = False
    """Whether the nodes trim their journals in some seconds."""
    undo: list[Callable[[], object]] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    _lost_leases: list[Any] = field(default_factory=list)
    _leases_after: int = 0

    @property
    def nodes(self) -> list[HostedNode]:
        return [node for node in self.pair.nodes.values() if isinstance(node, HostedNode)]

    def other(self, node: HostedNode) -> HostedNode:
        return next(one for one in self.nodes if one is not node)

    def heal(self) -> None:
        """End every fault, and start what has ended."""
        while self.undo:
            self.undo.pop()()
        for line in self.lines.values():
            line.repair()
        self.lan.heal()
        self.database.require()
        self.sink.require()
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.require()

    def whole(self, within: float | None = None) -> HostedNode:
        """Return the active, once both nodes are warm and in sync."""
        found: list[HostedNode] = []

        def is_whole() -> bool:
            for node in self.nodes:
                node.require()
            active = self._whole_now()
            found.extend([active] if active else [])
            return bool(found)

        within = within or WHOLE_SECONDS[self.tier]
        whole = holds(is_whole, within, progress=self._batch_of_the_slowest)
        assert whole, f"the pair was not whole within {within:g} s"
        return found[-1]

    def _batch_of_the_slowest(self) -> int:
        """Return how far the slowest query is. It may have to make all batches again."""
        found = [
            query["batch"]
            for node in self.nodes
            if (status := node.status()) is not None
            for query in status["queries"].values()
        ]
        return min(found, default=0)

    def _whole_now(self) -> HostedNode | None:
        """Return the active if both nodes say so: the active may not miss the other one yet."""
        active = self.pair.whole()
        if not isinstance(active, HostedNode):
            return None
        passive = self.other(active).status()
        is_passive = passive is not None and passive["role"] == "passive" and passive["warm"]
        return active if is_passive else None

    def rest(self) -> HostedNode:
        """Return the active, once every sink has all output and both journals end alike."""

        def settled() -> bool:
            active = self._whole_now()
            statuses = [node.status() for node in self.nodes]
            ends = {(one or {"journal": {"last": one}})["journal"]["last"] for one in statuses}
            return active is not None and len(ends) == 1 and active.settled()

        within = WHOLE_SECONDS[self.tier]
        assert holds(settled, within), f"the pair did not come to rest within {within:g} s"
        return self.whole()

    def fail_over(self) -> None:
        """Lose the database of the lease, and promote its standby."""
        assert self.standby is not None
        self._lost_leases = self.database.leases()
        self.database.kill()
        self._leases_after = self.standby.promote()
        self.database, self.standby = self.standby, None

    def leases(self) -> list[Any]:
        """Return every version of the lease row, also those that a failover has lost."""
        return self._lost_leases + self.database.leases(self._leases_after)

    def keep_segments(self, node: NodeUnderTest) -> None:
        """Keep the records of a journal, which the node may trim, for the checker."""
        self.kept.mkdir(exist_ok=True)
        for path in segment_paths(node.data_dir / "journal"):
            with contextlib.suppress(FileNotFoundError, FileExistsError):  # trimmed, or kept
                link = self.kept / f"{path.stem}-{path.stat().st_ino}{path.suffix}"
                link.hardlink_to(path)

    @property
    def kept(self) -> Path:
        return self.directory / "kept"

    @contextlib.contextmanager
    def without_database(self) -> Iterator[None]:
        """Note the time in which no node reaches the database."""
        began = time.monotonic()
        yield
        self.outages.append(Outage(began, time.monotonic()))


@contextlib.contextmanager
def new_world(directory: Path, tier: int, needs: Collection[str] = ()) -> Iterator[World]:
    """Start a pair below ``directory`` with what ``needs`` names, and wait until it is whole."""
    directory.chmod(0o755)  # the server's user must reach its files
    network = f"172.31.{os.getpid() % 250}"
    addresses = {name: f"{network}.{last}" for last, name in enumerate((*NAMES, "db"), 1)}
    clocks = {name: Clock(directory, name) for name in addresses if CLOCKS in needs}
    with contextlib.ExitStack() as stack:
        lan = stack.enter_context(Lan(addresses, own=f"{network}.250"))
        launchers = {
            name: lan.on(name, *(clocks[name].launcher if clocks else ())) for name in addresses
        }
        disks = {"db": stack.enter_context(_disk(directory))} if DATABASE_DISK in needs else {}
        place = disks["db"].mount_point if disks else directory
        database = Database(place / "postgres", launchers["db"], addresses["db"])
        database.create()
        stack.callback(database.stop)
        url = database.create_role() if LOGIN in needs else database.url
        sink, standby, sink_url = database, None, url
        if STANDBY in needs:
            sink = Database(directory / "sink", launchers["db"], addresses["db"], SINK_PORT)
            sink.create()
            stack.callback(sink.stop)
            standby = database.standby(directory / "standby")
            stack.callback(standby.stop)
            url, sink_url = database.url_with(standby), sink.url
        application = APPLICATION.replace("auto_create", f"url: '{sink_url}', auto_create")
        make = partial(HostedNode if tier == 1 else SparkNode, launchers, addresses)
        segments = {"journal": {"segment_size": "64KiB"}} if SEGMENTS in needs else {}
        pair = Pair(directory, application, url, make, **SECTIONS, **segments)
        world = World(
            directory, lan, database, sink, addresses, pair, tier, disks, clocks, standby=standby
        )
        world.trims = SEGMENTS in needs
        _equip(world, needs, stack)
        stack.enter_context(running_pair(pair))
        world.whole()
        stack.callback(world.heal)
        yield world


def _equip(world: World, needs: Collection[str], stack: contextlib.ExitStack) -> None:
    """Give the nodes, which are not started yet, what ``needs`` names."""
    if SECURE in needs:
        world.credentials = Credentials(world.directory / "credentials")
        stack.enter_context(world.credentials.in_use())
        for node in world.nodes:
            node.prove_itself(world.credentials)
    if LINES in needs:
        world.lines = stack.enter_context(_lines(world))
    if DISKS in needs:
        for node in world.nodes:
            world.disks[node.name] = stack.enter_context(_disk(node.directory))
            node.put_on(world.disks[node.name])
    if PARTS in needs:
        for node, name in itertools.product(world.nodes, PART_NAMES):
            part = Part(node.data_dir / name)
            part.create()
            stack.callback(part.unmount)
            world.parts[node.name, name] = part


@contextlib.contextmanager
def _disk(directory: Path) -> Iterator[Disk]:
    disk = Disk(directory)
    disk.create()
    try:
        yield disk
    finally:
        disk.unmount()


@contextlib.contextmanager
def _lines(world: World) -> Iterator[dict[str, Line]]:
    """Lead the nodes, which are not started yet, over lines to each other and to the database."""
    lines = {}
    database = world.database
    near = database.url_at("127.0.0.1", DATABASE_LINE_PORT)
    with contextlib.ExitStack() as stack:
        for node in world.nodes:
            host = stack.enter_context(HostLines.on(world.lan.path(node.name)))
            to_database = host.add(DATABASE_LINE_PORT, (database.address, database.port))
            lines[f"{node.name} to database"] = to_database
            application = node.application_path.read_text()
            node.application_path.write_text(application.replace(database.url, near))
            node.reconfigure(database={"url": near})
            if node.name == NAMES[0]:  # the node with the smaller id dials
                far = (world.addresses[NAMES[1]], SYNC_PORT)
                lines[BETWEEN_NODES] = host.add(LINE_PORT, far)
                node.reconfigure(event_sync={"peers": {NAMES[1]: f"127.0.0.1:{LINE_PORT}"}})
        yield lines
