"""Two real nodes and their PostgreSQL, each on a host that is a network namespace."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import httpx
import psutil

from tests.e2e.lan import Lan
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import NAMES, Pair, running_pair
from tests.e2e.without_spark import APPLICATION
from tests.faults.matrix.clocks import Clock
from tests.faults.matrix.database import Database
from tests.faults.matrix.disks import MIN_FREE_BYTES, Disk
from tests.faults.matrix.history import Outage

TTL_SECONDS = 2.0
DISKS, CLOCKS, STANDBY, SPARK = "disks", "clocks", "standby", "spark"
"""What a world may have besides a network: disks that can fail, clocks that can jump, a standby of
the lease's PostgreSQL, with which the sink has a server of its own, and in tier 2 Spark."""
HTTP_PORT, SYNC_PORT, SINK_PORT = 8080, 9893, 5442
WHOLE_SECONDS = {1: 60.0, 2: 240.0}
"""The limit until both nodes are warm and in sync, by tier."""
REFUSAL_SECONDS = 30.0
SECTIONS: dict[str, dict[str, Any]] = {
    "query": {"min_batch_interval": "200ms"},
    "snapshot": {"interval": "0s"},
    "receive": {"max_backlog_events": 1 << 30},
}


class HostedNode(NodeUnderTest):
    """A node on the host ``name``, whose query process is the stand-in."""

    program: tuple[str, ...] = ("-m", "tests.faults.matrix.supervised")
    signs: ClassVar[Mapping[str, str]] = {
        **NodeUnderTest.signs,
        "query": r"tests\.faults\.matrix\.stand_in",
    }

    def __init__(
        self,
        launchers: Mapping[str, Sequence[str]],
        addresses: Mapping[str, str],
        directory: Path,
        application: str,
        database_url: str,
        name: str,
        **sections: dict[str, Any],
    ) -> None:
        super().__init__(directory, application, database_url, name, **sections)
        self.address = addresses[name]
        self.launcher = tuple(launchers[name])
        listen = f"{self.address}:{HTTP_PORT}"
        peers = {other: f"{addresses[other]}:{SYNC_PORT}" for other in NAMES if other != name}
        self.url = f"http://{listen}"
        self.http = httpx.Client(base_url=self.url, timeout=30.0)
        self.reconfigure(
            http={"listen": listen, "insecure": True},
            event_sync={"listen": f"{self.address}:{SYNC_PORT}", "peers": peers},
        )

    def tree(self) -> list[psutil.Process]:
        """Return the supervisor and all processes below it."""
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor = psutil.Process(self.process.pid)
            return [supervisor, *supervisor.children(recursive=True)]
        return []

    def put_on(self, disk: Disk) -> None:
        """Let the data directory be on ``disk``, before the first start."""
        self.data_dir = disk.mount_point / self.name
        self.reconfigure(
            node={"data_dir": str(self.data_dir)}, journal={"min_free": f"{MIN_FREE_BYTES}B"}
        )

    def signal(self, number: signal.Signals, what: str | None = None) -> None:
        """Send a signal to the process ``what``, or to all processes of the node."""
        pids = [self.pid_of(what)] if what else [process.pid for process in self.tree()]
        for pid in filter(None, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def require(self) -> None:
        """Start the node unless it runs, as a service manager does."""
        assert self.process is not None
        if self.process.poll() is not None:
            self.start()

    def refuses(self, reason: str) -> None:
        """Start the node, and wait until it ends with this reason in its log."""
        before = len(self.log_text())
        self.start()
        assert self.process is not None
        process = self.process
        assert holds(lambda: process.poll() is not None, REFUSAL_SECONDS), f"{self.name} runs"
        assert reason in self.log_text()[before:], f"{self.name} did not say '{reason}'"

    def reinit(self) -> None:
        """Delete the node's data, as an operator does."""
        ended = self.command("reinit", self.name, "--yes", "-c", str(self.config_path))
        assert ended.code == 0, ended.err


class SparkNode(HostedNode):
    """A node of tier 2."""

    program = NodeUnderTest.program
    signs = NodeUnderTest.signs


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
    standby: Database | None = None
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
        assert holds(is_whole, within), f"the pair was not whole within {within:g} s"
        return found[-1]

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

    @contextlib.contextmanager
    def without_database(self) -> Iterator[None]:
        """Note the time in which no node reaches the database."""
        began = time.monotonic()
        yield
        self.outages.append(Outage(began, time.monotonic()))


@contextlib.contextmanager
def new_world(directory: Path, tier: int, needs: Collection[str] = ()) -> Iterator[World]:
    """Start a pair below ``directory``, and wait until it is whole. ``needs`` are DISKS, CLOCKS."""
    directory.chmod(0o755)  # the server's user must reach its files
    network = f"172.31.{os.getpid() % 250}"
    addresses = {name: f"{network}.{last}" for last, name in enumerate((*NAMES, "db"), 1)}
    clocks = {name: Clock(directory, name) for name in addresses if CLOCKS in needs}
    with contextlib.ExitStack() as stack:
        lan = stack.enter_context(Lan(addresses, own=f"{network}.250"))
        launchers = {
            name: lan.on(name, *(clocks[name].launcher if clocks else ())) for name in addresses
        }
        database = Database(directory / "postgres", launchers["db"], addresses["db"])
        database.create()
        stack.callback(database.stop)
        sink, standby, url = database, None, database.url
        if STANDBY in needs:
            sink = Database(directory / "sink", launchers["db"], addresses["db"], SINK_PORT)
            sink.create()
            stack.callback(sink.stop)
            standby = database.standby(directory / "standby")
            stack.callback(standby.stop)
            url = database.url_with(standby)
        application = APPLICATION.replace("auto_create", f"url: '{sink.url}', auto_create")
        make = partial(HostedNode if tier == 1 else SparkNode, launchers, addresses)
        pair = Pair(directory, application, url, make, **SECTIONS)
        world = World(
            directory, lan, database, sink, addresses, pair, tier, clocks=clocks, standby=standby
        )
        for node in world.nodes if DISKS in needs else ():
            disk = Disk(node.directory)
            disk.create()
            stack.callback(disk.unmount)
            node.put_on(disk)
            world.disks[node.name] = disk
        stack.enter_context(running_pair(pair))
        world.whole()
        stack.callback(world.heal)
        yield world


def holds(condition: Callable[[], object], within: float, every: float = 0.1) -> bool:
    """Return whether the condition becomes true in ``within`` seconds, on a slow host too."""
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(every)
    return True
