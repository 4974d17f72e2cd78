"""Labels of messages, from which a new active reads how much of a batch a destination has.

Some destinations cannot store the rows of a batch in one transaction, but keep the messages of one
writer in their order. The sink labels each message. The label of the last message says which rows
are there, since every node delivers the same rows in the same order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ha_engine.errors import SinkRefused
from ha_engine.plugins import OutputBatch

NAME = "Ha-Engine-Row"
"""The name of the header or field that has a label."""


@dataclass(frozen=True, slots=True)
class RowLabel:
    """Row ``row`` of the ``rows`` rows of the batch ``key``, whose rows have the digest ``digest``.

    Rows are counted from 0. ``key`` is the key of an OutputBatch, ``group/query/sink/batch``.
    """

    key: str
    digest: str
    row: int
    rows: int

    @classmethod
    def parse(cls, text: str) -> RowLabel:
        """Raises ValueError if ``text`` is no label."""
        key, digest, row, rows = text.rsplit("/", 3)
        label = cls(key, digest, int(row), int(rows))
        _ = label.batch
        return label

    @property
    def text(self) -> str:
        return f"{self.key}/{self.digest}/{self.row}/{self.rows}"

    @property
    def sink(self) -> str:
        return self.key.rpartition("/")[0]

    @property
    def batch(self) -> int:
        return int(self.key.rpartition("/")[2])


def labels_of(
    batch: OutputBatch, messages: Sequence[tuple[bytes, Mapping[str, str]]]
) -> list[RowLabel]:
    """The labels of the messages of ``batch``, which are values with their attributes."""
    digest = hashlib.blake2b(digest_size=8)
    for value, attributes in messages:
        digest.update(json.dumps([len(value), sorted(attributes.items())]).encode())
        digest.update(value)
    count = len(messages)
    return [RowLabel(batch.key, digest.hexdigest(), row, count) for row in range(count)]


def next_row(last: RowLabel | None, label: RowLabel, where: str, remedy: str) -> int:
    """The first row of a batch that the destination ``where`` lacks. ``label`` is a label of the
    batch, and ``last`` that of the last message there, or None for a message without a label.

    Raises SinkRefused, with ``remedy``, if the last message does not belong before that row.
    """
    if last is None or last.sink != label.sink:
        raise SinkRefused(
            f"the last message of {where} comes from {last.sink if last else 'another writer'}, "
            f"but sink {label.sink} must be its only writer; give the sink a stream of its own"
        )
    if last.batch > label.batch:
        raise SinkRefused(
            f"{where} has batch {last.batch} of sink {label.sink} already, but the node delivers "
            f"batch {label.batch}: another node delivers, or the group was initialised again, or "
            f"its ledger was restored; {remedy}"
        )
    if last.batch == label.batch:
        if (last.digest, last.rows) != (label.digest, label.rows):
            raise SinkRefused(
                f"{where} has other rows of batch {label.batch} of sink {label.sink}, perhaps of a "
                f"batch that a forced failover gave up; {remedy}"
            )
        return last.row + 1
    if last.row + 1 != last.rows:
        raise SinkRefused(
            f"{where} ends with row {last.row + 1} of {last.rows} of batch {last.batch}, which was "
            f"delivered completely: it lost its last messages; restore it, or {remedy}"
        )
    return 0
