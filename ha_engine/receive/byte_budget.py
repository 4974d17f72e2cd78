"""Limit the bytes that wait in the receive stage: bodies being read, and rows not committed."""

from __future__ import annotations

from ha_engine.errors import Backpressure

RETRY_AFTER_SECONDS = 0.2
"""Short, because the bytes of this stage wait for one fsync and one round trip, not for a query."""


class ByteBudget:
    """A budget of ``size`` bytes, ``taken`` of them in use. For one event loop; it never waits."""

    def __init__(self, size: int) -> None:
        self.size, self.taken = size, 0

    def take(self, length: int) -> None:
        """Take ``length`` bytes. If they do not fit, take nothing and raise Backpressure."""
        if self.taken + length > self.size:
            raise Backpressure(
                f"{self.taken} bytes of events wait for their commit; send again later",
                RETRY_AFTER_SECONDS,
            )
        self.taken += length

    def give(self, length: int) -> None:
        self.taken -= length
        assert self.taken >= 0, "more bytes came back than were taken"
