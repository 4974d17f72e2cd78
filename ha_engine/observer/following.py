"""Ask all nodes again and again, the active first, and get the published batches of each query
once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from ha_engine.errors import NodeUnreachable
from ha_engine.observer.asking import AskedNode
from ha_engine.observer.next_batch import NextBatch, Output
from ha_engine.observer.store import OutputStore, QueryProgress

log = structlog.get_logger(__name__)

SAVE_SECONDS = 5.0
"""How often the last state of the nodes is written to the disk."""


class Following:
    """Follows the ``nodes`` of one group, and keeps what they say and publish in ``store``."""

    def __init__(self, nodes: Sequence[AskedNode], store: OutputStore, interval: float) -> None:
        self.nodes, self.store, self._interval = nodes, store, interval
        self._warned = dict[str, str]()
        for node in nodes:
            saved = store.nodes.get(node.name, {})
            node.answers, node.answered_at = saved.get("answers", {}), saved.get("answered_at")

    @property
    def teller(self) -> AskedNode:
        """The node that knows most about the group."""
        return max(self.nodes, key=lambda node: node.rank)

    @property
    def reaches_a_node(self) -> bool:
        return any(node.is_fresh for node in self.nodes)

    async def run(self) -> None:
        """Follow until cancelled. Raises DiskFailed."""
        tasks = [asyncio.create_task(self._keep_asking(node)) for node in self.nodes]
        tasks += [asyncio.create_task(self._keep_following()), asyncio.create_task(self._save())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def save(self) -> None:
        """Write the last state to the disk. Raises DiskFailed."""
        told = {
            node.name: {"answers": node.answers, "answered_at": node.answered_at}
            for node in self.nodes
        }
        await asyncio.to_thread(self.store.save, told)

    async def _keep_asking(self, node: AskedNode) -> None:
        while True:
            await node.ask()
            await asyncio.sleep(self._interval)

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self.save()

    async def _keep_following(self) -> None:
        while True:
            queries = self.teller.answers.get("status", {}).get("queries", {})
            for query in queries if self.reaches_a_node else ():
                while await self._advance(query):
                    pass
            await asyncio.sleep(self._interval)

    async def _advance(self, query: str) -> bool:
        """Take the next batch of a query, or note that it is missed. Return False if there is no
        next batch now."""
        last = self.store.progress.get(query, QueryProgress()).last
        search = NextBatch(last)
        for node in sorted(self.nodes, key=lambda node: node.rank, reverse=True):
            if not node.is_fresh:
                continue
            try:
                answer = await node.output(query, search.after)
            except NodeUnreachable as error:
                self._warn(query, str(error))
                continue
            self._warned.pop(query, None)
            if found := search.found_in(answer):
                return await self._take(query, found)
        if search.passed is None:
            return False
        if last is None:
            # An observer that begins has missed nothing.
            self.store.progress[query] = QueryProgress(search.passed)
        else:
            self.store.miss(query, last + 1, search.passed)
        return True

    def _warn(self, query: str, reason: str) -> None:
        if self._warned.get(query) != reason:
            self._warned[query] = reason
            log.warning("no output", query=query, reason=reason)

    async def _take(self, query: str, found: Output) -> bool:
        if found.group_id != self.store.group_id:
            await asyncio.to_thread(self.store.begin_group, found.group_id)
        else:
            await asyncio.to_thread(self.store.put, query, found)
        return True
