"""Note signals at once, and end the demo for them only while it starts no process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ha_engine.errors import DemoInterrupted

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Notes the number of a signal, and raises DemoInterrupted later.

    The handler of the signal raises nothing, since its exception could come just after the start of
    a process. The demo would not have recorded this process yet, and could not end the process.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note signals during the block.

        A terminal sends Ctrl-C also to the programs that the demo calls, which may then fail. So
        an error after a signal becomes DemoInterrupted.
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
