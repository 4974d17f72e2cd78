"""Limit the bytes that wait in the receive stage: bodies being read, and uncommitted rows."""

from __future__ import annotations

from ha_engine.errors import Backpressure

RETRY_AFTER_SECONDS = 0.2
"""The retry delay is short, because received bytes wait for one fsync and one round trip only."""


class ByteBudget:
    """A budget of ``size`` bytes, of which ``taken`` are in use. The methods never wait, and may be
    called by one event loop only."""

    def __init__(self, size: int) -> None:
        self.size, self.taken = size, 0

    def take(self, length: int) -> None:
        """Take ``length`` bytes of the budget. If fewer bytes are free, take none and raise
        Backpressure."""
        if self.taken + length > self.size:
            raise Backpressure(
                f"{self.taken} bytes of events wait for their commit; send again later",
                RETRY_AFTER_SECONDS,
            )
        self.taken += length

    def give(self, length: int) -> None:
        self.taken -= length
        assert self.taken >= 0, "more bytes were given back to the budget than taken"
