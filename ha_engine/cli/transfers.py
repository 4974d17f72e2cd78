"""Show the progress of a transfer on a terminal while a command waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ha_engine.stats.counters import Transfer


@contextmanager
def shown_bytes(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with each number of transferred bytes.

    The display disappears at the end of the block. If standard error is no terminal, nothing is
    shown.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as it:
        task = it.add_task(what, total=total)
        yield lambda count: it.advance(task, count)


@contextmanager
def shown_transfer(what: str) -> Iterator[Transfer]:
    """Yield a transfer that shows its progress."""
    with shown_bytes(what) as advance:
        yield _Shown(advance)


class _Shown(Transfer):
    def __init__(self, shown: Callable[[int], None]) -> None:
        super().__init__()
        self._shown = shown

    def advance(self, count: int) -> None:
        super().advance(count)
        self._shown(count)
