"""Publish while this node is the active: one watched task per (query, sink).

The core decides when it starts and stops. ``delivery`` is the work of a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import structlog

from ha_engine.errors import Fenced
from ha_engine.publish.delivery import AdmittedBatches, Delivery, SinkStatus, Timing
from ha_engine.publish.sink import Authority, Sink

log = structlog.get_logger(__name__)

QuerySink = tuple[str, str]


class Publisher:
    """Publishes on the node's event loop; callbacks run there too.

    ``on_published(query, sink, batch)``: the ledger has every batch up to this one.
    ``on_fenced(epoch)``: a ledger has that higher epoch, and its task has ended.
    ``on_state``: the state or error of a sink changed; not called for every batch.
    ``start_after``: the batch after which a sink without a ledger row begins; called at each claim.
    ``group_id``: the group's UUID, known once a node is promoted; called at each claim.
    ``failed`` gets the exception of a task that died of any other error.
    """

    def __init__(
        self,
        outbox: AdmittedBatches,
        sinks: Mapping[QuerySink, Sink],
        authority: Authority,
        *,
        on_published: Callable[[str, str, int], None],
        on_fenced: Callable[[int], None],
        group_id: Callable[[], str],
        on_state: Callable[[SinkStatus], None] = lambda status: None,
        timing: Timing | None = None,
        start_after: Callable[[str, str], int] = lambda query, sink: 0,
    ) -> None:
        self._on_published, self._on_fenced = on_published, on_fenced
        timing = timing or Timing()
        self._deliveries = {
            (query, name): Delivery(
                query,
                sink,
                outbox,
                authority,
                timing,
                partial(start_after, query, name),
                group_id,
                on_state,
            )
            for (query, name), sink in sinks.items()
        }
        self._latest: dict[QuerySink, asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, epoch: int) -> None:
        """Claim every ledger under ``epoch`` and publish from its last batch on (RULES.md#r24)."""
        for key, delivery in self._deliveries.items():
            before = self._latest.get(key)
            if before is not None:
                before.cancel()
            task = asyncio.create_task(
                self._deliver(delivery, epoch, before), name=f"publish {'/'.join(key)}"
            )
            task.add_done_callback(partial(self._ended, key))
            self._latest[key] = task
            self._running.add(task)

    def stop(self) -> Coroutine[Any, Any, None]:
        """End every call in flight now; the returned coroutine waits until the calls are over."""
        for task in self._running:
            task.cancel()
        return _all_over(set(self._running))

    def admitted(self, query: str, number: int) -> None:
        """Note that the outbox has batch ``number`` of ``query``."""
        for (of, _), delivery in self._deliveries.items():
            if of == query:
                delivery.wake()

    def status(self) -> list[SinkStatus]:
        """The present status of each sink."""
        return [delivery.status() for delivery in self._deliveries.values()]

    async def close(self) -> None:
        """Stop finally and end the threads."""
        await self.stop()
        for delivery in self._deliveries.values():
            delivery.end()

    # ------------------------------------------------------------------------------------------

    async def _deliver(
        self, delivery: Delivery, epoch: int, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait({before})  # a connection never serves two epochs at once
        await delivery.run(epoch, partial(self._on_published, delivery.query, delivery.sink.name))

    def _ended(self, key: QuerySink, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        match None if task.cancelled() else task.exception():
            case None:
                pass
            case Fenced() as fenced:
                log.warning("fenced", query=key[0], sink=key[1], by_epoch=fenced.epoch)
                self._on_fenced(fenced.epoch)
            case error:
                if not self.failed.done():
                    self.failed.set_exception(error)


async def _all_over(tasks: set[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
