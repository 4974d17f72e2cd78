"""The identity that a node presents to others, and the check whether two nodes can work together.

Both ends of a link call ``objection``, so both refuse for the same reason. Each end words the
reason from its own side.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from ha_engine.sync.codec import MalformedFrame
from ha_engine.v1 import sync_pb2 as pb

PROTOCOL_MIN, PROTOCOL_MAX = 1, 1
"""Versions of sync.proto that this engine speaks (RULES.md#r32)."""

_SHORT = 8
_TEXT_MAX = 300


@dataclass(frozen=True, slots=True)
class Hello:
    """The identity that a node sends first on a link.

    ``group_id`` is empty before the group has a lease row. ``runtime`` maps names of software
    components to versions. ``application`` and ``config`` are hex digests, and ``address`` is only
    for messages to people. ``archive`` is the id of the deployed archive that has the application,
    or empty if it is in a file on the host.
    """

    engine: str
    group: str
    group_id: str
    node: str
    process: str
    journal_id: str
    application: str
    config: str
    runtime: Mapping[str, str]
    address: str
    archive: str = ""
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX


def to_sync_frame(hello: Hello) -> pb.SyncFrame:
    frame = pb.Hello(
        protocol_min=hello.protocol_min,
        protocol_max=hello.protocol_max,
        engine=hello.engine,
        group=hello.group,
        group_id=hello.group_id,
        node=hello.node,
        process=hello.process,
        journal_id=hello.journal_id,
        application=hello.application,
        config=hello.config,
        runtime=hello.runtime,
        address=hello.address,
        archive=hello.archive,
    )
    return pb.SyncFrame(hello=frame)


def from_sync_frame(frame: pb.Hello) -> Hello:
    """Decode a Hello. Raises MalformedFrame when a text is longer than any name or digest."""
    hello = _from_frame(frame)
    texts = [hello.engine, hello.group, hello.group_id, hello.node, hello.process]
    texts += [hello.journal_id, hello.application, hello.config, hello.address, hello.archive]
    texts += [text for pair in hello.runtime.items() for text in pair]
    if any(len(text) > _TEXT_MAX for text in texts) or len(hello.runtime) > _TEXT_MAX:
        raise MalformedFrame("the peer's Hello is too long")
    return hello


def _from_frame(frame: pb.Hello) -> Hello:
    return Hello(
        frame.engine,
        frame.group,
        frame.group_id,
        frame.node,
        frame.process,
        frame.journal_id,
        frame.application,
        frame.config,
        dict(frame.runtime),
        frame.address,
        frame.archive,
        frame.protocol_min,
        frame.protocol_max,
    )


def objection(
    ours: Hello,
    theirs: Hello,
    *,
    welcome: Collection[str],
    certified: Collection[str] | None,
    connected: str | None = None,
) -> str | None:
    """Say why the two nodes must not work together, and what to do, or return None when they may.

    ``welcome`` are the names of the nodes that may be at the other end. ``certified`` are the names
    in the other node's certificate, or None for plain text. ``connected`` is the process of the
    other node that has a link already, or None.
    """
    return (
        _of_identity(ours, theirs, welcome, certified)
        or _of_process(theirs, connected)
        or _of_group(ours, theirs)
        or _of_batches(ours, theirs)
    )


class Speaks(Protocol):
    """The range of versions of the sync protocol that a node or a release speaks."""

    @property
    def protocol_min(self) -> int: ...
    @property
    def protocol_max(self) -> int: ...


def speak_alike(one: Speaks, other: Speaks) -> bool:
    """Whether both speak a common version of the sync protocol."""
    return max(one.protocol_min, other.protocol_min) <= min(one.protocol_max, other.protocol_max)


def _of_identity(
    ours: Hello, theirs: Hello, welcome: Collection[str], certified: Collection[str] | None
) -> str | None:
    if certified is not None and theirs.node not in certified:
        names = ", ".join(sorted(certified)) or "no node"
        return (
            f"a node that calls itself {theirs.node} shows a certificate for {names}; "
            "give it a certificate whose subject alternative names contain its node.id"
        )
    if not speak_alike(ours, theirs):
        return (
            f"{theirs.node} (engine {theirs.engine}) speaks versions {theirs.protocol_min} to "
            f"{theirs.protocol_max} of the sync protocol, but this node (engine {ours.engine}) "
            f"{ours.protocol_min} to {ours.protocol_max}; upgrade the older engine"
        )
    if theirs.node == ours.node:
        return (
            f"the node at {theirs.address} calls itself {ours.node}, like this one at "
            f"{ours.address}; give each node a node.id of its own"
        )
    if theirs.node not in welcome:
        wanted = ", ".join(sorted(welcome)) or "no peer"
        return (
            f"{ours.node} expects {wanted}, but {theirs.node} is at the other end; correct "
            "event_sync.peers on the node where it is wrong"
        )
    return None


def _of_process(theirs: Hello, connected: str | None) -> str | None:
    """Object to a second process of a node while the first one is connected.

    Without the refusal, each of the two would end the link of the other for ever. The link of a
    dead process ends soon, even if its host closes nothing.
    """
    if connected in (None, theirs.process):
        return None
    return (
        f"another process that calls itself {theirs.node} is connected, and this one is at "
        f"{theirs.address}; if two hosts use one node.id, give each node a node.id of its own"
    )


def _of_group(ours: Hello, theirs: Hello) -> str | None:
    if theirs.group != ours.group:
        return (
            f"{theirs.node} is in group {theirs.group}, but this node is in {ours.group}; set the "
            "same 'group' on both, or correct event_sync.peers"
        )
    if theirs.group_id and ours.group_id and theirs.group_id != ours.group_id:
        return (
            f"{theirs.node} has the id {_short(theirs.group_id)} for group {ours.group}, but this "
            f"node has {_short(ours.group_id)}, so they use two databases; set database.url to the "
            "same database on both"
        )
    if theirs.journal_id == ours.journal_id:
        return (
            f"{theirs.node} has the journal of this node ({_short(ours.journal_id)}), so one data "
            "directory is a copy of the other; run 'ha-engine reinit' on the copy"
        )
    return None


def _of_batches(ours: Hello, theirs: Hello) -> str | None:
    # RULES.md#r36: of two deployments, the older one is about to be replaced.
    if theirs.application != ours.application and theirs.archive == ours.archive:
        return (
            f"{theirs.node} runs the application {_short(theirs.application)}, but this node runs "
            f"{_short(ours.application)}; give both the same application file and restart them"
        )
    differing = sorted(
        name
        for name in {*ours.runtime, *theirs.runtime}
        if ours.runtime.get(name) != theirs.runtime.get(name)
    )
    if differing:
        return (
            f"{theirs.node} has {_versions(theirs, differing)}, but this node has "
            f"{_versions(ours, differing)}; install the same versions on both"
        )
    if theirs.config != ours.config:
        return (
            f"{theirs.node} has the group-wide settings {_short(theirs.config)}, but this node has "
            f"{_short(ours.config)}; make all settings equal that 'ha-engine config schema' calls "
            "group-wide"
        )
    return None


def _versions(hello: Hello, names: list[str]) -> str:
    return ", ".join(f"{name} {hello.runtime.get(name, 'none')}" for name in names)


def _short(digest: str) -> str:
    return digest[:_SHORT] or "none"
