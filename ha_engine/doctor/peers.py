"""Check the connections between this host's node and a peer, and whether the two fit together."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

from ha_engine.client.admin import fetch_cluster
from ha_engine.client.token import require_as_safe
from ha_engine.config import Config
from ha_engine.config.quantities import format_duration, split_address
from ha_engine.deploy import application_of
from ha_engine.doctor.finding import Finding, failed, ok, skipped, warning
from ha_engine.errors import EngineError, NodeUnreachable, NotAllowed
from ha_engine.journal import identity as identities
from ha_engine.journal.identity import JournalIdentity
from ha_engine.node.build import hello_of
from ha_engine.sync.codec import MalformedFrame
from ha_engine.sync.dialling import read_hello
from ha_engine.sync.grpc_transport import GrpcTransport
from ha_engine.sync.hello import Hello, objection
from ha_engine.sync.transport import Refused
from ha_engine.sync.wire import WireBroken
from ha_engine.system.file_lock import NODE_LOCK, holder_of

CONNECT_SECONDS = 4.0
_NOBODY_LISTENS = "Connection refused"


def event_sync(config: Config, peer: str, seconds: float = CONNECT_SECONDS) -> Finding:
    """Connect to the peer's event sync, and compare the two nodes as they do themselves.

    The comparison has certificates, versions of Python, Java and Spark, the application, the
    group-wide settings and the database. The peer keeps its present link. Raises ConfigError.
    """
    address = config.event_sync.peers[peer]
    try:
        theirs = asyncio.run(read_hello(peer, GrpcTransport(config.event_sync), seconds))
    except Refused as error:
        text, _, remedy = error.reason.partition("; ")
        return failed(text, remedy)
    except WireBroken as error:
        if _NOBODY_LISTENS in str(error):
            return warning(
                f"the host of {peer} answers, but no node listens on {address}",
                f"start {peer}, or correct event_sync.peers",
            )
        return _unreachable(peer, address, str(error))
    except MalformedFrame as error:
        return failed(f"{address} does not answer like a node: {error}", "correct event_sync.peers")
    except TimeoutError:
        return _unreachable(peer, address, f"no answer within {format_duration(seconds)}")
    welcome = (peer,)
    certified = welcome if config.event_sync.tls.given else None
    refusal = objection(_hello(config), theirs, welcome=welcome, certified=certified)
    if refusal is not None:
        text, _, remedy = refusal.partition("; ")
        return failed(text, remedy)
    return ok(f"{peer} at {address} runs ha-engine {theirs.engine} and fits this node")


def http(config: Config, peer: str) -> Finding:
    """Whether the HTTP interface of the peer answers this host."""
    url, is_certain = url_of(config, peer)
    if url == config.http.url:
        return skipped(f"no node has reported the HTTP address of {peer}")
    try:
        cluster = fetch_cluster(url)
    except NotAllowed as error:
        return _without_token(error)
    except NodeUnreachable as error:
        reason = str(error).partition("; ")[0]
        if is_certain:
            return failed(
                reason,
                f"start {peer}, or open its port; for https:// set SSL_CERT_FILE to its authority",
            )
        return warning(
            f"{reason}; the URL is derived from event_sync.peers, since no node has reported one",
            f"start {peer} and this node, and run this command again",
        )
    if cluster.get("node") != peer:
        return failed(
            f"{cluster.get('node')} of group {cluster.get('group')} answers at {url} instead of "
            f"{peer}",
            "correct http.advertise or event_sync.peers on the node where it is wrong",
        )
    return ok(f"{peer} answers at {url}")


def reaches_us(config: Config, peer: str) -> Finding:
    """Whether the peer has a link to this host's node, as the peer's HTTP interface reports."""
    url, _ = url_of(config, peer)
    try:
        ours = fetch_cluster(url)["nodes"].get(config.node.id)
    except NotAllowed as error:
        return _without_token(error)
    except NodeUnreachable:
        return skipped(f"{peer} does not answer over HTTP")
    if ours is None:
        return failed(
            f"{peer} has no peer {config.node.id}",
            f"add {config.node.id} to event_sync.peers in the config of {peer}",
        )
    if ours["answers"]:
        return ok(f"{peer} gets reports from this node")
    if holder_of(config.node.data_dir / NODE_LOCK) is None:
        return skipped("this host's node does not run, so no peer can reach it")
    reason = ours["refused"] or ours["unreachable"] or "no report arrives"
    text, _, remedy = f"{peer} does not reach this node: {reason}".partition("; ")
    port = split_address(config.event_sync.listen)[1]
    return failed(text, remedy or f"open port {port} of this host for {peer}")


def _unreachable(peer: str, address: str, reason: str) -> Finding:
    return failed(
        f"this host does not reach {peer} at {address}: {reason}",
        f"start the host of {peer}, open the port in the firewalls, or correct event_sync.peers",
    )


def _without_token(error: NotAllowed) -> Finding:
    text, _, remedy = str(error).partition("; ")
    return warning(f"the answer needs a token: {text}", remedy)


def url_of(config: Config, peer: str) -> tuple[str, bool]:
    """The URL of the peer, and whether the peer itself has reported this URL.

    Raises NodeUnreachable if the operator's token would go to the URL in plain text.
    """
    own = _own_cluster(config)
    if own is not None and (url := own["nodes"].get(peer, {}).get("url")):
        return require_as_safe(config.http.url, url), True
    host = split_address(config.event_sync.peers[peer])[0]
    ours = urlsplit(config.http.url)
    shown = f"[{host}]" if ":" in host else host
    return f"{ours.scheme}://{shown}:{ours.port or 80}", False


def _own_cluster(config: Config) -> dict[str, Any] | None:
    """The answer of this host's node to GET /v1/cluster, or None if the node does not answer."""
    try:
        cluster = fetch_cluster(config.http.url)
    except EngineError:
        return None
    return cluster if cluster.get("node") == config.node.id else None


def _hello(config: Config) -> Hello:
    """The Hello of this host's node, without the id of its process."""
    nothing = JournalIdentity(config.group, None, "")
    identity = identities.load(config.node.data_dir / "journal") or nothing
    return hello_of(config, application_of(config), identity, "")
