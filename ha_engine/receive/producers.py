"""Remember the stored requests of each producer, so that a retry is harmless (RULES.md#i11,
RULES.md#r27).

The producer table is a pure function of the journal's prefix. The same records in the same order
give each node the same table, with the same evictions. The producer table uses no clock, and only
the records decide the order of its dicts.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from ha_engine.errors import SequenceConflict, SequenceForgotten, TooManyProducers
from ha_engine.types import Events, Position, Submission

DIGEST_BYTES = 16
KEPT_SECONDS = 600
"""The node does not forget a producer in this time after its last request, so that the producer may
retry the request."""
RETRY_SECONDS = 10.0
ROWS_AT_ONCE = 8192
"""A table of ten thousand producers has 640,000 rows, which need a gigabyte as Python objects."""
PRODUCERS_SCHEMA = pa.schema(
    [
        pa.field("producer", pa.string(), nullable=False),
        pa.field("forgotten_through", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
    ]
)
"""Schema of the producer table on disk; ``position`` is the sequence of the journal's record."""


def digest_of(stream: str, body: bytes) -> str:
    """The hex digest that distinguishes a retry from another payload under the same sequence."""
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES, person=_person(stream)).hexdigest()


def _person(stream: str) -> bytes:
    """Sixteen bytes that identify ``stream`` in a digest: the same body for another stream is no
    retry."""
    return hashlib.blake2b(stream.encode(), digest_size=hashlib.blake2b.PERSON_SIZE).digest()


@dataclass(frozen=True, slots=True)
class Stored:
    """A request in the journal, which has ``rows`` rows of the record at ``position``."""

    position: Position
    digest: str
    rows: int


@dataclass(slots=True)
class _Producer:
    """The remembered requests of a producer; the newest was received at ``newest_us``.

    A sequence up to ``forgotten_through`` that is not in ``remembered`` may have been stored.
    """

    remembered: dict[int, Stored] = field(default_factory=dict)
    forgotten_through: int = -1
    newest_us: int = 0


class ProducerTable:
    """Remembers the last ``dedup_window`` sequences of the ``max_producers`` most recent producers.

    For each producer the table keeps the highest sequences. The table keeps the producers whose
    last requests are the newest in the journal. A retry from an evicted producer is stored again,
    because the table no longer knows the producer. Before the active stores a request of a new
    producer, it must therefore call ``require_room``.
    """

    def __init__(self, max_producers: int, dedup_window: int) -> None:
        self._max_producers = max_producers
        self._dedup_window = dedup_window
        self._producers: OrderedDict[str, _Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._producers)

    def apply(self, position: Position, events: Events) -> None:
        """Apply ``events``, the next record of events in the journal, whether committed or not."""
        for submission in events.submissions:
            stored = Stored(position, submission.digest, submission.rows)
            self._remember(submission.producer, submission.sequence, stored, events.received_at_us)

    def has(self, producer: str) -> bool:
        return producer in self._producers

    def require_room(self, newcomers: int, now_us: int) -> None:
        """Raise TooManyProducers if so many new producers would evict one that sent lately."""
        evicted = len(self._producers) + newcomers - self._max_producers
        if evicted <= 0:
            return
        newest = next(islice(self._producers.values(), evicted - 1, None), None)
        # A time far in the future is that of a wrong clock.
        if newest is None or abs(now_us - newest.newest_us) < KEPT_SECONDS * 1_000_000:
            raise TooManyProducers(
                f"{self._max_producers} producers sent in the last {KEPT_SECONDS // 60} minutes, "
                "and the node remembers no more; use the same producer id for many requests, or "
                "raise receive.max_producers",
                RETRY_SECONDS,
            )

    def find(self, submission: Submission) -> Stored | None:
        """The stored request that ``submission`` repeats, or None when there certainly was no such
        request.

        Raises SequenceConflict when the submission's sequence was used for another payload. Raises
        SequenceForgotten when the submission's sequence is as old as forgotten ones, or would be
        forgotten at once.
        """
        producer = self._producers.get(submission.producer)
        if producer is None:
            return None
        stored = producer.remembered.get(submission.sequence)
        if stored is not None:
            require_same(submission, stored.digest)
            return stored
        if submission.sequence <= self._floor(producer):
            raise SequenceForgotten(
                f"sequence {submission.sequence} of producer {submission.producer} is older than "
                f"the {self._dedup_window} that the node remembers; it may be stored already, so "
                "continue after the highest acked sequence"
            )
        return None

    def to_table(self) -> pa.Table:
        """One row of ``PRODUCERS_SCHEMA`` for each remembered request, with the oldest producer
        first."""
        rows = self._rows()
        batches = []
        while part := list(islice(rows, ROWS_AT_ONCE)):
            columns = [list(column) for column in zip(*part, strict=True)]
            batches.append(pa.record_batch(columns, schema=PRODUCERS_SCHEMA))
        return pa.Table.from_batches(batches, schema=PRODUCERS_SCHEMA)

    def _rows(self) -> Iterator[tuple[str, int, int, int, int, str, int]]:
        for name, producer in self._producers.items():
            for sequence, stored in producer.remembered.items():
                position = stored.position
                yield (
                    name,
                    producer.forgotten_through,
                    sequence,
                    position.epoch,
                    position.sequence,
                    stored.digest,
                    stored.rows,
                )

    def load_base(self, table: pa.Table, now_us: int = 0) -> None:
        """Replace the producer table with ``table``, which ``to_table`` made from all earlier
        records. The table does not say when a producer sent, so it counts as at ``now_us``."""
        self._producers.clear()
        for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
            columns = (batch[field.name].to_pylist() for field in PRODUCERS_SCHEMA)
            for name, forgotten, sequence, epoch, position, digest, rows in zip(
                *columns, strict=True
            ):
                producer = self._producers.setdefault(name, _Producer(newest_us=now_us))
                producer.forgotten_through = forgotten
                producer.remembered[sequence] = Stored(Position(epoch, position), digest, rows)

    def _remember(self, name: str, sequence: int, stored: Stored, received_at_us: int) -> None:
        producer = self._producers.setdefault(name, _Producer())
        producer.newest_us = received_at_us
        self._producers.move_to_end(name)
        producer.remembered[sequence] = stored
        if len(producer.remembered) > self._dedup_window:
            lowest = min(producer.remembered)
            del producer.remembered[lowest]
            producer.forgotten_through = max(producer.forgotten_through, lowest)
        if len(self._producers) > self._max_producers:
            self._producers.popitem(last=False)

    def _floor(self, producer: _Producer) -> int:
        """The highest sequence of the producer that is forgotten, or that would be forgotten at
        once if stored."""
        full = len(producer.remembered) >= self._dedup_window
        return max(producer.forgotten_through, min(producer.remembered) if full else -1)


def require_same(submission: Submission, digest: str) -> None:
    """Raise SequenceConflict unless ``submission`` has the digest that was stored under its
    sequence."""
    if submission.digest != digest:
        raise SequenceConflict(
            f"sequence {submission.sequence} of producer {submission.producer} was used for "
            "another payload; give every request a new sequence, and repeat a request unchanged"
        )
