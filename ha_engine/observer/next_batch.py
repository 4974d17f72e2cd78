"""Find the batch that an observer takes next, in the answers of one node after the other.

A batch has the same number on all nodes, so the observer may get it from any. It counts a batch as
missed only if no node that answers has it any more.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Output:
    """A published batch: its group, its number, its rows and its Arrow IPC file."""

    group_id: str
    number: int
    rows: int
    ipc: bytes


@dataclass(frozen=True, slots=True)
class Gone:
    """The wanted batch is no longer kept. The next kept one is ``oldest``."""

    oldest: int


class NextBatch:
    """The search for the batch after ``last``, which is None for an observer that begins."""

    def __init__(self, last: int | None) -> None:
        self.after = last or 0
        self._gone: list[int] = []

    def found_in(self, answer: Output | Gone | None) -> Output | None:
        """Return the batch if the answer of a node has it. If not, ask the next node."""
        if isinstance(answer, Gone):
            self._gone.append(answer.oldest)
            return None
        return answer

    @property
    def passed(self) -> int | None:
        """The last batch before those that a node still has, or None if no node has a later one.
        Valid once all nodes have answered, and none had the batch."""
        return min(self._gone) - 1 if self._gone else None
