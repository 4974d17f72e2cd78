"""Find the peer that is the active, and forward requests of producers to it."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from ha_engine.client.transport import NoAnswer
from ha_engine.errors import ConfigError, NotAllowed
from ha_engine.sync import EventSync, Forwarder
from ha_engine.types import Role
from ha_engine.v1 import ingest_pb2 as pb
from ha_engine.v1 import sync_pb2

log = structlog.get_logger(__name__)


class ActivePeer:
    """The peer that is the active, if one is. ``forwarder`` sends to the peers that have a link in
    ``peers``, and of which ``fits`` says that their streams have the same columns."""

    def __init__(self, peers: EventSync, forwarder: Forwarder, fits: Callable[[str], bool]) -> None:
        self._peers, self._forwarder, self._fits = peers, forwarder, fits
        self._failures: dict[str, str] = {}
        """By peer, why no request reached it, until one does."""

    async def forward(self, request: sync_pb2.ForwardRequest) -> pb.PublishAnswer | None:
        """See receive.forwarding.Active. A report may be a second old, so that each peer is asked,
        first the one that reported to be the active."""
        reports = self._peers.reports()
        for peer in sorted(
            filter(self._fits, reports), key=lambda one: reports[one][1].role != Role.ACTIVE.value
        ):
            try:
                answer = await self._forwarder.forward(peer, request)
            except (NoAnswer, NotAllowed, ConfigError) as error:
                self._note(peer, str(error))
                continue
            self._failures.pop(peer, None)
            if answer.refused.reason != pb.EventsRefused.NOT_ACTIVE:
                return answer
        return None

    def _note(self, peer: str, reason: str) -> None:
        """Log a new reason once, since each attempt may have it."""
        if self._failures.get(peer) != reason:
            log.warning("events cannot be forwarded, retrying", peer=peer, reason=reason)
        self._failures[peer] = reason
