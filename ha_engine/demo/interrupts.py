"""Signals that end the demo: noted when they come, obeyed where nothing is half started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ha_engine.errors import DemoInterrupted

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """An exception out of a handler could come between a process's start and its first note of
    it; whoever cleans up would then not know the process. So the handler notes the number only."""

    def __init__(self) -> None:
        self.number: int | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Raises DemoInterrupted in the place of an error that the same signal caused: a terminal
        sends Ctrl-C to the programs that the demo calls, too."""
        before = {number: signal.signal(number, self._note) for number in NUMBERS}
        try:
            yield
        except Exception as error:
            if self.number is not None:
                raise DemoInterrupted(self.number) from error
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number

    def require_none(self) -> None:
        """Raises DemoInterrupted."""
        if self.number is not None:
            raise DemoInterrupted(self.number)
