"""The HTTP side of a producer: which node is asked, what an answer means, when to ask again.

Not for gathering rows; that is in ``producer``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_chain,
    wait_random,
)

from ha_engine.client.payload import Payload
from ha_engine.errors import (
    DeliveryFailed,
    InvalidEvents,
    PayloadTooLarge,
    Rejected,
    SequenceConflict,
    SequenceForgotten,
    UnknownStream,
    UnsupportedFormat,
)
from ha_engine.types import Position

CONNECT_TIMEOUT_SECONDS = 2.0
ANSWER_TIMEOUT_SECONDS = 2.5
"""A frozen active answers nothing; a request that was only slow is known when it comes again.
Longer than an active waits for a passive that fell silent (``event_sync.sync_timeout``, 2 s)."""
SILENT_SECONDS = 1.0
"""For so long a node that did not answer is not asked again, though the other may still name it: if
it is frozen, the other is about to take over."""
SOON_TRIES, SOON_SECONDS = 10, (0.01, 0.05)
RETRY_WAIT_MAX_SECONDS = 0.5
"""What a wait is too long adds to the outage that a producer sees: a switchover takes some 0.1 s,
the loss of a host some seconds."""


@dataclass(frozen=True, slots=True)
class Stored:
    """``position`` None: only known to have been used long ago."""

    position: Position | None


@dataclass(frozen=True, slots=True)
class RemoteColumn:
    """A column of a stream as the node names it; ``type`` is Arrow's name."""

    name: str
    type: str
    nullable: bool


Outcome = Stored | Rejected | DeliveryFailed


class _Again(Exception):
    """Not now, or not from this node. ``after`` in seconds, as the node asked."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        self.after = after
        super().__init__(reason)


class Endpoints:
    """The nodes of a group, of which one is asked; safe for several threads.

    ``deadline`` in seconds for one request with all its retries.
    """

    def __init__(
        self, urls: Sequence[str], producer_id: str, deadline: float, *, repeats: bool, width: int
    ) -> None:
        if not urls:
            raise ValueError("a producer needs at least one endpoint, such as http://host:8080")
        self._urls = [url.rstrip("/") for url in urls]
        self._asked, self._lock = self._urls[0], threading.Lock()
        self._silent, self._silent_until = "", 0.0
        self._producer_id, self._deadline, self._repeats = producer_id, deadline, repeats
        self._stopping = threading.Event()
        self._backoff = wait_chain(
            *[wait_random(*SOON_SECONDS)] * SOON_TRIES,
            wait_random(0, RETRY_WAIT_MAX_SECONDS),
        )
        self._client = httpx.Client(
            timeout=httpx.Timeout(ANSWER_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS),
            limits=httpx.Limits(max_connections=width, max_keepalive_connections=width),
        )

    def post(self, stream: str, sequence: int, payload: Payload) -> Outcome:
        """One request, repeated unchanged until it is answered for good or the deadline passes."""
        headers = {
            "Content-Type": payload.form.value,
            "X-Producer-Id": self._producer_id,
            "X-Sequence": str(sequence),
        }
        path = f"/v1/streams/{quote(stream, safe='')}/events"
        try:
            answer = self._until_answered("POST", path, headers, payload.body)
        except DeliveryFailed as failed:
            return failed
        return self._outcome(answer)

    def columns(self, stream: str) -> list[RemoteColumn]:
        """Raises UnknownStream, DeliveryFailed."""
        answer = self._until_answered("GET", f"/v1/streams/{quote(stream, safe='')}", {}, b"")
        if answer.status_code != httpx.codes.OK:
            raise _rejection(answer)
        return [RemoteColumn(**column) for column in answer.json()["schema"]]

    def stop(self) -> None:
        """No retries from now on; requests that are under way still get their answer."""
        self._stopping.set()

    def close(self) -> None:
        self._client.close()

    # -- how ---------------------------------------------------------------------------------------

    def _until_answered(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> httpx.Response:
        retrying = Retrying(
            stop=stop_after_delay(self._deadline) | stop_when_event_set(self._stopping),
            wait=self._wait,
            sleep=sleep_using_event(self._stopping),
            retry=retry_if_exception_type(_Again),
        )
        try:
            return retrying(self._attempt, method, path, headers, body)
        except RetryError as last:
            reason = last.last_attempt.exception()
            raise DeliveryFailed(
                f"no node answered for {self._deadline:g} s; the last attempt: {reason}"
            ) from None

    def _wait(self, state: RetryCallState) -> float:
        asked = state.outcome.exception() if state.outcome is not None else None
        jitter = self._backoff(state)
        return asked.after + jitter if isinstance(asked, _Again) and asked.after else jitter

    def _attempt(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> httpx.Response:
        url = self._asked
        try:
            answer = self._client.request(method, url + path, headers=headers, content=body)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            if isinstance(error, httpx.TimeoutException):
                self._note_silent(url)
            self._ask_another(url, None)
            raise _Again(f"{url}: {error or type(error).__name__}") from None
        match answer.status_code:
            case 429:
                raise _Again(f"{url}: {_said(answer)['error']}", _retry_after(answer))
            case 503:
                self._ask_another(url, _said(answer).get("active"), answered=True)
                raise _Again(f"{url}: {_said(answer)['error']}")
            case 408 | 425 | 500 | 502 | 504:
                self._ask_another(url, None)
                raise _Again(f"{url}: {_said(answer)['error']}")
        return answer

    def _note_silent(self, url: str) -> None:
        with self._lock:
            self._silent, self._silent_until = url, time.monotonic() + SILENT_SECONDS

    def _ask_another(self, left: str, active: str | None, *, answered: bool = False) -> None:
        """``active`` if a node named it, else the next in the list; unless another thread moved, or
        ``left`` answers and that one does not."""
        with self._lock:
            if self._asked != left:
                return
            following = (self._urls.index(left) + 1) % len(self._urls) if left in self._urls else 0
            chosen = (active or "").rstrip("/") or self._urls[following]
            silent = chosen == self._silent and time.monotonic() < self._silent_until
            if not (answered and silent):
                self._asked = chosen

    def _outcome(self, answer: httpx.Response) -> Outcome:
        if answer.status_code == httpx.codes.OK:
            position = answer.json()["position"]
            return Stored(Position(position["epoch"], position["sequence"]))
        match _rejection(answer):
            case SequenceForgotten() if self._repeats:
                return Stored(None)
            case rejection:
                return rejection


def _rejection(answer: httpx.Response) -> Rejected:
    said = _said(answer)
    reason = said["error"]
    match answer.status_code:
        case 400:
            return InvalidEvents(said.get("reason", reason), said.get("row"))
        case 404:
            return UnknownStream(reason)
        case 409 if said.get("conflict") == "forgotten":
            return SequenceForgotten(reason)
        case 409:
            return SequenceConflict(reason)
        case 413:
            return PayloadTooLarge(reason)
        case 415:
            return UnsupportedFormat(reason)
        case status:
            return Rejected(f"{answer.url.host} answered {status}: {reason}")


def _said(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer; something between us and the node may have sent another."""
    try:
        said = answer.json()
    except ValueError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("error"), str):
        return said
    return {"error": f"status {answer.status_code} without an explanation"}


def _retry_after(answer: httpx.Response) -> float:
    said = _said(answer).get("retry_after_seconds", answer.headers.get("Retry-After", "1"))
    try:
        return max(0.0, float(said))
    except (TypeError, ValueError):
        return 1.0
