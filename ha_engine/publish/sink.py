"""What a sink is, what lets this node publish to it, and how long a call of it may take
(RULES.md#r17)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from ha_engine.outbox.outbox import OutboxBatch

Remaining = Callable[[], float]
"""Seconds that are left; may grow meanwhile."""


class Authority(Protocol):
    """What lets this node publish."""

    def remaining_seconds(self) -> float:
        """Until safe_until; zero or less when suspended. Grows with each renewal."""
        ...

    def last_mark(self, query: str) -> float:
        """The highest batch that a ledger of this journal's history can have.

        The newest that is planned, though it may not have come out here; more, while nobody knows
        how far a history went that an operator gave up (RULES.md#r26).
        """
        ...


class Deadline:
    """The end of one call: after ``timeout`` seconds, at safe_until, or when cancelled."""

    def __init__(self, authority: Authority, timeout: float) -> None:
        self._authority, self._until = authority, time.monotonic() + timeout
        self._cancelled = False

    def remaining_seconds(self) -> float:
        """Asked again and again: a renewal during the call gives it more time (RULES.md#r17)."""
        if self._cancelled:
            return 0.0
        return min(self._until - time.monotonic(), self._authority.remaining_seconds())

    def cancel(self) -> None:
        """The call is to end now."""
        self._cancelled = True


class Sink(Protocol):
    """A place that takes batches once each. Methods block, in one thread but for ``prepare``.

    They raise SinkUnavailable (come again, or outcome unknown), SinkRefused (an operator must act)
    and Fenced (a higher epoch owns the ledger), and end when the deadline does (RULES.md#r17).
    """

    name: str

    @property
    def dead_letters(self) -> int:
        """Rows that this process put aside, since the sink will never take them."""
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """Make or check the place for rows of ``schema``."""
        ...

    def claim(self, epoch: int, start_after: int, group_id: str, deadline: Deadline) -> int:
        """Raise the ledger's epoch durably, then answer the last batch published.

        A ledger that another group made, under the same name, is refused.

        A sink without a ledger row starts one at ``start_after``: one that is added to a query
        later gets the batches from then on.
        """
        ...

    def publish(self, number: int, batch: OutboxBatch, epoch: int, deadline: Deadline) -> None:
        """Deliver batch ``number`` and move the ledger to it, together; done before is done."""
        ...

    def close(self) -> None:
        """Hold no connection any more; a later call opens another."""
        ...
