"""The shadow of a query: a changed version that runs beside the live one, on each node
(RULES.md#r38).

A shadow makes no decision of the pair. It runs the batches of its live query, and each of them only
after the live query. So no mark, no barrier, no in-sync list and no back-pressure waits for it, and
a shadow that fails or falls behind is FAILED without any other effect.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ha_engine.core import actions as do
from ha_engine.core.marks import QueryMarks
from ha_engine.core.pending_events import PendingEvents
from ha_engine.core.queries import QueryLife, QueryState, RestartPolicy
from ha_engine.types import Events, Mark, Shadow

DEATHS_MAX = 2
"""A death of the query process also stops the live queries, so a shadow has few of them."""
BEHIND_MAX = 4
"""A shadow that is more than this many batches behind its live query does not take its place, since
the query's output would wait for these batches."""
UNKNOWN = (
    "this node did not have the record of the shadow when its process started; restart the node"
)
LOST = (
    "this node lost the state of the shadow, and the journal no longer has the records from which "
    "it was made; discard the shadow and deploy it again"
)


@dataclass(frozen=True, slots=True)
class ShadowLimits:
    """``behind_max`` is the number of events that the shadow may lack before it is FAILED.
    ``batches_max`` and ``bytes_max`` bound the batches that its outbox keeps."""

    behind_max: int = 4_000_000
    batches_max: int = 100
    bytes_max: int = 64 << 20


class ShadowQuery:
    """The shadow that this process runs. ``digest`` is that of the changed query."""

    def __init__(
        self,
        record: Shadow,
        digest: str,
        live: QueryMarks,
        restarts: RestartPolicy,
        limits: ShadowLimits,
    ) -> None:
        self.name, self.record, self.digest = record.name, record, digest
        self._live, self.limits = live, limits
        self.life = QueryLife(self.name, restarts)
        self.admitted = record.first.number
        # Spark's own position, as in QueryMarks.
        self.finished: int | None = None
        self._wanted: int | None = None
        self._pending = PendingEvents(live.limits.max_events_per_batch)
        # The batches in its outbox with their sizes, oldest first.
        self._kept: deque[tuple[int, int]] = deque()
        self._deaths = 0
        # Whether the node has prepared the outbox of the shadow.
        self._prepared = False

    # -- what records and the outbox say -----------------------------------------------------------

    def apply_events(self, sequence: int, events: Events) -> None:
        if events.stream in self._live.streams and sequence > self.record.first.through:
            self._pending.append(sequence, events.rows)

    @property
    def behind_events(self) -> int:
        """The number of events in the journal that the shadow has not run."""
        return self._pending.events

    @property
    def behind(self) -> int:
        """The number of batches that the live query has admitted and the shadow has not."""
        return max(0, self._live.admitted - self.admitted)

    def restore_admitted(self, number: int, size: int) -> None:
        """Note a batch that its outbox has when the node starts."""
        self._enter(number, size)

    def set_outbox_floor(self, first_kept: int | None, trimmed_through: int) -> int:
        """The batch after which its outbox begins when the node starts; see QueryMarks."""
        self._prepared = True
        if first_kept is not None:
            return first_kept - 1
        floor = max(trimmed_through, self.record.first.number)
        self._passed(floor)
        return floor

    def note_admitted(self, number: int, size: int) -> None:
        if number > self.admitted:
            self._enter(number, size)
            self.life.advanced()

    def _enter(self, number: int, size: int) -> None:
        self._kept.append((number, size))
        self._passed(number)

    def _passed(self, number: int) -> None:
        self.admitted = max(self.admitted, number)
        live = self._live
        if live.kept_after.number <= number <= live.last.number:
            self._pending.drop_through(live.mark_at(number).through)

    @property
    def kept(self) -> tuple[int, int]:
        """The number of batches in its outbox, and their bytes."""
        return len(self._kept), sum(size for _, size in self._kept)

    # -- its batches -------------------------------------------------------------------------------

    def asked(self, after: int) -> None:
        self._wanted, self.finished = after, max(self.finished or 0, after)
        self._passed(after)

    def answer(self) -> Mark | None:
        """The mark of the batch that Spark waits for, once this node has admitted that batch of the
        live query."""
        wanted, live = self._wanted, self._live
        if wanted is None or self.life.state is not QueryState.RUNNING:
            return None
        if not live.kept_after.number <= wanted < min(live.admitted, live.last.number):
            return None
        self._wanted = None
        return Mark(self.name, wanted + 1, live.mark_at(wanted + 1).through)

    def need(self) -> float:
        """The sequence after which the shadow needs records, or infinity once it is FAILED."""
        if self.life.state is QueryState.FAILED:
            return math.inf
        live, passed = self._live, self.finished
        number = self.record.first.number if passed is None else passed
        if number > live.last.number:
            return live.kept_after.through
        if number < live.kept_after.number:
            return min(self.record.first.through, live.kept_after.through)
        return live.mark_at(number).through

    def trims(self, published: int) -> Iterator[do.TrimOutbox]:
        """Remove the oldest batches beyond the bound. Every sink has them from the live query, so
        no promotion needs them."""
        batches, size = self.kept
        through = 0
        while batches > self.limits.batches_max or size > self.limits.bytes_max:
            number, its_size = self._kept[0]
            if number > published:
                break
            self._kept.popleft()
            batches, size, through = batches - 1, size - its_size, number
        if through:
            yield do.TrimOutbox(self.name, through)

    def exceeds(self) -> str | None:
        """The reason why the shadow must end, since it would fill the disk."""
        if self._pending.events > self.limits.behind_max:
            return (
                f"the shadow is {self._pending.events} events behind, and the journal keeps at "
                f"most {self.limits.behind_max} for it; discard it, or make the query faster"
            )
        waiting = self._live.limits.outbox_bytes_max + self.limits.bytes_max
        if self.kept[1] > waiting:
            return (
                f"the batches of the shadow that a promotion would need have more than {waiting} "
                "bytes; discard it, or let the sinks catch up"
            )
        return None

    # -- its life ----------------------------------------------------------------------------------

    def run(
        self, now: float, journal_id: str, trimmed_through: int, partitions: int | None
    ) -> Iterator[do.RunQuery]:
        """Start the shadow, with as many partitions as the state of the live query has."""
        if not self.life.runnable(now):
            return
        if not self._prepared:
            self.life.refused(UNKNOWN)
            return
        self.life.started(0)
        first = self.record.first
        yield do.RunQuery(
            self.name,
            self.lineage(journal_id),
            Mark(self.name, first.number, first.through),
            first.through < trimmed_through,
            self.digest,
            partitions=() if partitions is None else ((0, partitions),),
            shadow_of=self.record.query,
        )

    def lineage(self, journal_id: str) -> str:
        return f"{journal_id}:{self.record.lineage}"

    def failed(self, now: float, number: int, reason: str, trimmed_through: int) -> None:
        """Note a failure, whatever its cause, since a shadow is not worth many attempts."""
        self._ended()
        lost = number == 0 and self.record.first.through < trimmed_through
        self.life.failed(now, number, f"{LOST} ({reason})" if lost else reason)

    def died(self, now: float, reason: str) -> bool:
        """Note the death of the query process. Return whether the shadow ran in it: then the death
        counts against the shadow alone."""
        ran = self.life.state is QueryState.RUNNING
        self._ended()
        if ran:
            self._deaths += 1
            self.life.failed_by_host(now, self.admitted + 1, reason)
            if self._deaths >= DEATHS_MAX:
                self.life.refused(f"the query process died beside the shadow: {reason}")
        return ran

    def retry(self) -> None:
        if self.life.state is QueryState.FAILED:
            self._deaths = 0
            self.life.revive()

    def connected(self) -> None:
        """Note that a query process asks which queries to start."""
        self._wanted = None
        self.life.superseded()

    def _ended(self) -> None:
        self._wanted = self.finished = None
