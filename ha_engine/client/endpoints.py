"""Choose the node of a group that gets a request, and the time of a retry.

The module ``async_producer`` gathers the rows of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    RetryError,
    retry_if_exception_type,
    wait_chain,
    wait_random,
)

from ha_engine.client.over_http import OverHttp
from ha_engine.client.payload import Payload
from ha_engine.client.token import require_as_safe
from ha_engine.client.transport import (
    ANSWER_TIMEOUT_SECONDS,
    NoAnswer,
    RemoteColumn,
    Request,
    Transport,
)
from ha_engine.errors import (
    Backpressure,
    DeliveryFailed,
    EngineError,
    NotActive,
    SequenceForgotten,
)
from ha_engine.types import Position

SILENT_SECONDS = 1.0
"""How long the producer avoids a node that did not answer, even if the other node names it as the
active. If the silent node is frozen, the other node is about to take over."""
SILENT_ANSWER_SECONDS = 0.5
"""Time limit for the answer of a node that did not answer last time, because the other node may be
the active by now."""
SOON_TRIES, SOON_SECONDS = 10, (0.01, 0.05)
RETRY_WAIT_MAX_SECONDS = 0.5
"""The longest random wait before a retry. A longer wait would lengthen the outage that a producer
sees. A switchover takes about 0.1 s, and the loss of a host some seconds."""

Answer = TypeVar("Answer")
Ask = Callable[[Transport, str, float], Awaitable[Answer]]
"""Sends a request over a transport to the node at a URL, with a time limit in seconds for the
answer."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of a stored request. ``position`` is None if the nodes only know that its
    sequence is used."""

    position: Position | None


Outcome = Stored | EngineError


class _Again(Exception):
    """The request must be retried, later or at another node.

    ``after`` is the wait in seconds that the node asked for.
    """

    def __init__(self, reason: str, after: float = 0.0) -> None:
        self.after = after
        super().__init__(reason)


class Endpoints:
    """Sends requests to one node of a group at a time; for one event loop.

    The scheme of ``urls`` is http, https, grpc or grpcs. ``deadline`` limits one request with all
    its retries, in seconds. ``width`` is the largest number of requests in flight.
    """

    def __init__(
        self, urls: Sequence[str], producer_id: str, deadline: float, *, repeats: bool, width: int
    ) -> None:
        if not urls:
            raise ValueError("a producer needs at least one endpoint, such as http://host:8080")
        self._urls = [url.rstrip("/") for url in urls]
        self._asked = self._listed = self._urls[0]
        self._silent, self._silent_until = "", 0.0
        self._producer_id, self._deadline, self._repeats = producer_id, deadline, repeats
        self._width, self._transports = width, dict[str, Transport]()
        self._stopping = asyncio.Event()
        self._backoff = wait_chain(
            *[wait_random(*SOON_SECONDS)] * SOON_TRIES,
            wait_random(0, RETRY_WAIT_MAX_SECONDS),
        )

    async def post(self, stream: str, sequence: int, payload: Payload) -> Outcome:
        """Send one request, and repeat it unchanged until a final answer or the deadline."""
        request = Request(stream, self._producer_id, sequence, payload)
        try:
            position = await self._until_answered(
                lambda way, url, patience: way.post(url, request, patience)
            )
            return Stored(position)
        except SequenceForgotten as forgotten:
            return Stored(None) if self._repeats else forgotten
        except EngineError as refusal:
            return refusal

    async def columns(self, stream: str) -> list[RemoteColumn]:
        """The columns of ``stream``. Raises UnknownStream, DeliveryFailed."""
        return await self._until_answered(
            lambda way, url, patience: way.columns(url, stream, patience)
        )

    def stop(self) -> None:
        """Make no retries from now on. Requests in flight still get their answer."""
        self._stopping.set()

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.close()

    # -- internals ---------------------------------------------------------------------------------

    async def _until_answered(self, ask: Ask[Answer]) -> Answer:
        retrying = AsyncRetrying(
            stop=self._is_over,
            wait=self._wait,
            sleep=self._pause,
            retry=retry_if_exception_type(_Again),
        )
        try:
            return await retrying(self._attempt, ask)
        except RetryError as last:
            reason = last.last_attempt.exception()
            raise DeliveryFailed(
                f"no node answered for {self._deadline:g} s; the last attempt: {reason}"
            ) from None

    def _is_over(self, state: RetryCallState) -> bool:
        return self._stopping.is_set() or (state.seconds_since_start or 0.0) >= self._deadline

    def _wait(self, state: RetryCallState) -> float:
        asked = state.outcome.exception() if state.outcome is not None else None
        jitter = self._backoff(state)
        return asked.after + jitter if isinstance(asked, _Again) and asked.after else jitter

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    async def _attempt(self, ask: Ask[Answer]) -> Answer:
        url = self._asked
        try:
            return await self._response(ask, url)
        except Backpressure as refusal:
            raise _Again(f"{url}: {refusal}", refusal.retry_after_seconds) from None
        except NotActive as refusal:
            active = refusal.active and require_as_safe(url, refusal.active)
            self._ask_another(url, active, answered=True)
            raise _Again(f"{url}: {refusal}") from None
        except NoAnswer as lost:
            self._ask_another(url, None)
            raise _Again(f"{url}: {lost}") from None

    async def _response(self, ask: Ask[Answer], url: str) -> Answer:
        patience = SILENT_ANSWER_SECONDS if url == self._silent else ANSWER_TIMEOUT_SECONDS
        try:
            answer = await ask(self._transport(url), url, patience)
        except NoAnswer as lost:
            if lost.silent:
                self._silent, self._silent_until = url, monotonic() + SILENT_SECONDS
            raise
        except EngineError:
            self._has_answered(url)
            raise
        self._has_answered(url)
        return answer

    def _has_answered(self, url: str) -> None:
        if url == self._silent:
            self._silent = ""

    def _ask_another(self, left: str, active: str | None, *, answered: bool = False) -> None:
        """Send to ``active`` instead of ``left`` if a node named the active, else to the next node
        in the list.

        The next node is the one after the last listed target, because a named ``active`` may not be
        in the list. The target stays if another request has changed it already. The target also
        stays if ``left`` answers and the new target did not answer recently.
        """
        if self._asked != left:
            return
        following = (self._urls.index(self._listed) + 1) % len(self._urls)
        chosen = (active or "").rstrip("/") or self._urls[following]
        silent = chosen == self._silent and monotonic() < self._silent_until
        if answered and silent:
            return
        self._asked = chosen
        if chosen in self._urls:
            self._listed = chosen

    def _transport(self, url: str) -> Transport:
        scheme = "grpc" if url.startswith(("grpc://", "grpcs://")) else "http"
        if scheme not in self._transports:
            self._transports[scheme] = _opened(scheme, self._width)
        return self._transports[scheme]


def _opened(scheme: str, width: int) -> Transport:
    if scheme == "http":
        return OverHttp(width)
    from ha_engine.client.over_grpc import OverGrpc  # saves a command over HTTP 0.1 s

    return OverGrpc()
