"""The calls of a peer besides the stream of the cores' messages, and who may make them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from ha_engine.v1 import sync_pb2 as pb
from ha_engine.v1.ingest_pb2 import PublishAnswer

_NODE, _PROCESS = "ha-engine-node", "ha-engine-process"


@dataclass(frozen=True, slots=True)
class PeerCalls:
    """The answers of a node to the calls of its peers.

    ``admits`` says of the name and the process of a node whether they have a link to this one.
    ``check`` answers whether this node could run an application. ``store`` stores a forwarded
    request, or is None if the node takes none. ``may_forward`` says of the name of a node whether
    its streams have the columns of this node's.
    """

    admits: Callable[[str, str], bool]
    check: Callable[[pb.CheckApplicationRequest], Awaitable[pb.CheckApplicationReply]]
    store: Callable[[pb.ForwardRequest], Awaitable[PublishAnswer]] | None = None
    may_forward: Callable[[str], bool] = lambda node: True


def naming(node: str, process: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """The metadata of a call from a process of ``node``."""
    return ((_NODE, node), (_PROCESS, process))


def caller_of(context: grpc.aio.ServicerContext[Any, Any]) -> tuple[str, str]:
    """The name and the process of the node that calls."""
    said = dict(context.invocation_metadata() or ())
    return str(said.get(_NODE, "")), str(said.get(_PROCESS, ""))
