"""The services from which the executors of a cluster read events, for the check of the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ha_engine.auth import token_of
from ha_engine.client.admin import fetch_cluster
from ha_engine.config import Config
from ha_engine.connectors.loop_thread import LoopThread
from ha_engine.doctor.peers import url_of
from ha_engine.errors import AddressInUse, EngineError
from ha_engine.journal import identity as identities
from ha_engine.node.range_server import RangeServer, RangeService
from ha_engine.types import Extent, Position

SECONDS = 10.0
"""The time in which the service must start or stop."""
_NO_GROUP = "unknown"
"""The id of the group while no node has one."""


@dataclass(frozen=True, slots=True)
class Services:
    """The nodes by the address at which executors read from them, and ``unasked``: the reason by
    node for each that has no known address. ``group_id`` is the id that the nodes expect."""

    names: dict[str, str]
    unasked: dict[str, str]
    group_id: str


def services_of(config: Config) -> Services:
    """Ask the peers for their addresses. Raises JournalDamaged, UnknownJournalVersion, OSError."""
    identity = identities.load(config.node.data_dir / "journal")
    group_id = identity.group_id if identity else None
    names, unasked = {config.execution.address: "this node"}, {}
    for peer in config.event_sync.peers:
        try:
            cluster = fetch_cluster(url_of(config, peer)[0])
        except EngineError as error:
            unasked[peer] = str(error).partition("; ")[0]
            continue
        if group_id is None and cluster["lease"]:
            group_id = cluster["lease"]["group_id"]
        if address := cluster["nodes"].get(peer, {}).get("executors_address"):
            names[address] = peer
        else:
            unasked[peer] = "it runs on no cluster"
    return Services(names, unasked, group_id or _NO_GROUP)


@contextmanager
def serving(config: Config, group_id: str) -> Iterator[bytes | None]:
    """Serve at ``execution.listen`` unless this host's node, or another program, serves there.

    Yield the certificates of the authority, or None for plain text. Raises ConfigError.
    """
    execution = config.execution
    service = RangeService(_NoRecords(group_id), token_of(execution.secret.get_secret_value()))
    server = RangeServer(service, execution.listen, execution.tls)
    loop = LoopThread("range service")
    try:
        with suppress(AddressInUse):  # The executors notice if it is not a node that listens.
            loop.call(server.start(), SECONDS)
        yield server.endpoints((), group_id, 0).ca
    finally:
        loop.call(server.stop(), SECONDS)
        loop.stop()


@dataclass(frozen=True, slots=True)
class _NoRecords:
    """A journal without records, from which nobody can read."""

    group_id: str | None

    def has(self, position: Position) -> bool:
        return False

    def lacks_records_from(self, first: int) -> bool:
        return False

    def locate(self, first: int, last: int) -> list[Extent]:
        return []
