"""Find out whether a barrier is possible, and whether all queries have passed it.

A barrier is a committed sequence at which every query ends a batch.
"""

from __future__ import annotations

from ha_engine.core.deployment import Deployment
from ha_engine.core.queries import QueryState

Batches = tuple[tuple[str, int], ...]
"""(query, number)"""


def why_none(deployment: Deployment) -> str | None:
    """The reason why a query cannot end a batch at a barrier now, or None if every query can."""
    for name, life in deployment.lives.items():
        if life.state is not QueryState.RUNNING:
            return f"query {name} is {life.state.value}"
    return None


def batches_at(deployment: Deployment, sequence: int) -> Batches | None:
    """The batch of each query that ends at ``sequence``, or None until every query has such a
    batch."""
    numbers = {name: marks.ending_at(sequence) for name, marks in deployment.marks.items()}
    ended = tuple((name, number) for name, number in numbers.items() if number is not None)
    return ended if len(ended) == len(numbers) else None


def last_mark(deployment: Deployment, batches: Batches) -> int:
    """The sequence of the newest record among the marks that end ``batches``."""
    return max(deployment.marks[name].record_of(number) for name, number in batches)


def are_finished(deployment: Deployment, batches: Batches) -> bool:
    """Whether Spark has committed all of ``batches``. It runs no query that only the holder's
    application has (RULES.md#r36)."""
    marks = deployment.marks
    return all(name in marks and (marks[name].finished or 0) >= number for name, number in batches)
