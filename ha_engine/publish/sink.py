"""The interface of a sink, the authority to publish to it, and the deadline of each call
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
    """The authority of this node to publish; ``node.Node`` implements the protocol."""

    def remaining_seconds(self) -> float:
        """The seconds of authority that are left; zero or less while the node is suspended.

        A renewal of the lease raises the remaining seconds.
        """
        ...

    def highest_planned(self, query: str) -> float:
        """The highest batch that a ledger can name if it belongs to this journal's history.

        ``highest_planned`` counts a planned batch even if its output is not on this node yet.
        ``highest_planned`` also counts batches that an operator gave up, and is infinite while a
        ledger has not answered (RULES.md#r26).
        """
        ...


class Deadline:
    """The deadline of one call of a sink.

    A deadline passes after ``timeout`` seconds, at the end of the authority, or by ``cancel``.
    """

    def __init__(self, authority: Authority, timeout: float) -> None:
        self._authority, self._until = authority, time.monotonic() + timeout
        self._cancelled = False

    def remaining_seconds(self) -> float:
        """The seconds that are left for the call.

        Read the remaining seconds repeatedly, because a renewal of the lease adds time
        (RULES.md#r17).
        """
        if self._cancelled:
            return 0.0
        return min(self._until - time.monotonic(), self._authority.remaining_seconds())

    def cancel(self) -> None:
        """Make the deadline pass now."""
        self._cancelled = True


class Sink(Protocol):
    """A destination that takes each batch once.

    All methods of a sink block, and all but ``prepare`` run in one thread.

    A method raises SinkUnavailable for a temporary failure or an unknown outcome. SinkRefused means
    that an operator must act, and Fenced that the ledger has a higher epoch. Each call ends at its
    deadline (RULES.md#r17).
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

        The sink refuses a ledger of the same name that belongs to another group.

        A sink without a ledger row creates the row at batch ``start_after``. A sink that is added
        to a query later gets only the batches after ``start_after``.
        """
        ...

    def publish(self, number: int, batch: OutboxBatch, epoch: int, deadline: Deadline) -> None:
        """Deliver batch ``number`` and move the ledger to it; do nothing if both are done."""
        ...

    def close(self) -> None:
        """Close all connections. A later call opens a new connection."""
        ...
