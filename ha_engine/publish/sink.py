"""The interface of a sink, the authority to publish to it, and the deadline of a call
(RULES.md#r17)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from ha_engine.outbox.outbox import OutboxBatch

Remaining = Callable[[], float]
"""Returns the seconds that are left; the value may grow meanwhile."""


class Authority(Protocol):
    """The authority of this node to publish; ``node.Node`` implements it."""

    def remaining_seconds(self) -> float:
        """The seconds of authority left; zero or less when suspended. A renewal adds to them."""
        ...

    def highest_planned(self, query: str) -> float:
        """The highest batch that a ledger of this journal's history can have.

        This is the newest planned batch, even if its output is not here yet. It is higher while the
        end of a history that an operator gave up is unknown (RULES.md#r26).
        """
        ...


class Deadline:
    """The end of one call: after ``timeout`` seconds, without authority, or when cancelled."""

    def __init__(self, authority: Authority, timeout: float) -> None:
        self._authority, self._until = authority, time.monotonic() + timeout
        self._cancelled = False

    def remaining_seconds(self) -> float:
        """The seconds left. Call it repeatedly: a renewal during the call adds time
        (RULES.md#r17)."""
        if self._cancelled:
            return 0.0
        return min(self._until - time.monotonic(), self._authority.remaining_seconds())

    def cancel(self) -> None:
        """Let the call end now."""
        self._cancelled = True


class Sink(Protocol):
    """A destination that takes each batch once. Methods block; all but ``prepare`` use one thread.

    They raise SinkUnavailable (retry, or the outcome is unknown), SinkRefused (an operator must
    act) and Fenced (a higher epoch owns the ledger). They end at the deadline (RULES.md#r17).
    """

    name: str

    @property
    def dead_letters(self) -> int:
        """The number of rows that this process put aside because the sink will never take them."""
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """Create or check the destination for rows of ``schema``."""
        ...

    def claim(self, epoch: int, start_after: int, group_id: str, deadline: Deadline) -> int:
        """Raise the ledger's epoch durably, then return the last published batch.

        A ledger of another group with the same name is refused.

        A sink without a ledger row starts one at ``start_after``. So a sink that is added to a
        query later gets only the batches after that.
        """
        ...

    def publish(self, number: int, batch: OutboxBatch, epoch: int, deadline: Deadline) -> None:
        """Deliver batch ``number`` and move the ledger to it; do nothing if both are done."""
        ...

    def close(self) -> None:
        """Close all connections; a later call opens another."""
        ...
