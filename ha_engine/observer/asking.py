"""Ask one node over HTTP, and remember its last answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import structlog
from google_crc32c import value as crc32c

from ha_engine.api.output import BATCH, CRC32C, GROUP_ID, ROWS
from ha_engine.client.answers import body_of
from ha_engine.errors import NodeUnreachable
from ha_engine.observer.next_batch import Gone, Output

log = structlog.get_logger(__name__)

FRESH_SECONDS = 3.5
"""A node whose last answer is older than this does not answer, as on the page."""
HISTORY_SECONDS = 15.0
"""How often the observer asks for the changes of the active, which the node reads from its
database, and for the deployments, which it reads from its disk."""
PAGES = ("status", "cluster", "history", "application")
"""The last parts of the paths that the observer asks, and shows of each node."""


@dataclass
class AskedNode:
    """One node as the observer last saw it.

    ``answers`` has the last body of each page. ``answered_at`` is the Unix time of the last
    complete answer, or None. ``problem`` is the reason why the node did not answer the last
    request, or empty.
    """

    name: str
    url: str
    client: httpx.AsyncClient
    timeout: float
    answers: dict[str, Any] = field(default_factory=dict)
    answered_at: float | None = None
    problem: str = "it was not asked yet"
    _history_at: float = -HISTORY_SECONDS

    @property
    def age(self) -> float | None:
        """The seconds since the last answer, or None if the node never answered."""
        return None if self.answered_at is None else max(0.0, time.time() - self.answered_at)

    @property
    def is_fresh(self) -> bool:
        """Whether the node answered just now."""
        return not self.problem and (self.age or 0.0) < FRESH_SECONDS

    @property
    def rank(self) -> tuple[bool, bool, int, float]:
        """The order in which nodes are trusted; the highest knows most: a node that answers, the
        active, the highest epoch, the newest answer."""
        status: Mapping[str, Any] = self.answers.get("status", {})
        acts = status.get("role") in ("active", "promoting")
        return self.is_fresh, acts, status.get("epoch") or 0, self.answered_at or 0.0

    async def ask(self) -> None:
        """Ask for the state of the node. A node that does not answer keeps its last state."""
        try:
            status, cluster = await asyncio.gather(self._page("status"), self._page("cluster"))
            self.answers |= {"status": status, "cluster": cluster}
            self.answered_at = time.time()
            self._become("")
        except NodeUnreachable as error:
            self._become(str(error))
        else:
            await self._ask_history()

    async def _ask_history(self) -> None:
        if time.monotonic() - self._history_at < HISTORY_SECONDS:
            return
        self._history_at = time.monotonic()
        # A node without its database has no history, and answers all the same.
        for page, path in (("history", "history?limit=20"), ("application", "application")):
            with suppress(NodeUnreachable):
                self.answers[page] = await self._page(path)

    async def output(self, query: str, after: int) -> Output | Gone | None:
        """The published batch of ``query`` that follows ``after``, or None if there is none yet.
        Raises NodeUnreachable."""
        answer = await self._get(f"/v1/queries/{quote(query, safe='')}/output?after={after}")
        if answer.status_code == httpx.codes.NO_CONTENT:
            return None
        body = {} if answer.is_success else body_of(answer)
        if answer.status_code == httpx.codes.GONE and isinstance(body.get("oldest"), int):
            return Gone(body["oldest"])
        if not answer.is_success:
            raise NodeUnreachable(f"{self.name} gave no output of {query}: {body['error']}")
        try:
            told = {name: answer.headers[name] for name in (GROUP_ID, BATCH, ROWS)}
            if int(answer.headers.get(CRC32C, crc32c(answer.content))) != crc32c(answer.content):
                raise ValueError("its checksum is wrong")
            if int(told[BATCH]) != after + 1:
                raise ValueError(f"it is batch {told[BATCH]}, and not {after + 1}")
            return Output(told[GROUP_ID], int(told[BATCH]), int(told[ROWS]), answer.content)
        except (KeyError, ValueError) as error:
            reason = f"{self.name} sent a wrong batch of {query}: {error}"
            raise NodeUnreachable(reason) from error

    async def _page(self, path: str) -> dict[str, Any]:
        answer = await self._get(f"/v1/{path}")
        if not answer.is_success:
            raise NodeUnreachable(f"{self.name} refused: {body_of(answer)['error']}")
        try:
            body = answer.json()
        except json.JSONDecodeError:
            body = None
        if not isinstance(body, dict):
            raise NodeUnreachable(f"{self.url} answered, but is not a node; correct watch.nodes")
        return body

    async def _get(self, path: str) -> httpx.Response:
        try:
            async with asyncio.timeout(self.timeout):
                return await self.client.get(self.url + path)
        except TimeoutError:
            raise NodeUnreachable(f"{self.name} did not answer in {self.timeout:g} s") from None
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise NodeUnreachable(f"{self.name} does not answer: {reason}") from error

    def _become(self, problem: str) -> None:
        if problem and not self.problem:
            log.warning("a node does not answer", node=self.name, reason=problem)
        elif self.problem and not problem:
            log.info("a node answers", node=self.name)
        self.problem = problem
