"""Signals that end the demo: note them at once, obey them where no process is half started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ha_engine.errors import DemoInterrupted

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Notes the number of a signal, and raises later.

    If the handler raised, the exception could come between the start of a process and the note
    about it. The cleanup would then not know the process.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note signals during the block.

        Raises DemoInterrupted in place of an error that the same signal caused: a terminal sends
        Ctrl-C also to the programs that the demo calls.
        """
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
        """Raise DemoInterrupted if a signal was noted."""
        if self.number is not None:
            raise DemoInterrupted(self.number)
