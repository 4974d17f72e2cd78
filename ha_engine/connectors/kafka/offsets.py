"""The offset of a Kafka source: the next offset of each partition, in one text.

The text is JSON with the topic's name and id and two lists with a number for each partition: its
next offset, and the leader epoch of the record before, or -1. The epoch shows whether the log was
truncated behind the offset and has grown again. 3,000 partitions fit in the limit of an offset:
their offsets may have 15 digits and their epochs 4.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from ha_engine.errors import SourceRefused
from ha_engine.plugins import OFFSET_BYTES_MAX

UNKNOWN = -1
"""The epoch of a position whose record before is unknown."""


@dataclass(slots=True)
class Positions:
    """The position in each partition of a topic, whose identity is a topic id or a cluster id."""

    topic: str
    identity: tuple[str, str]
    next: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Positions:
        """Raises ValueError if ``text`` is no offset of this kind of source."""
        try:
            read = json.loads(text)
            kind = "topic_id" if "topic_id" in read else "cluster_id"
            found = cls(read["topic"], (kind, read[kind]), read["next"], read["epoch"])
            if len(found.next) != len(found.epochs) or any(one < 0 for one in found.next):
                raise ValueError("it lacks a partition")
        except (KeyError, TypeError) as error:
            raise ValueError(str(error)) from error
        return found

    @property
    def stream(self) -> str:
        """The topic, as other connectors call what they read."""
        return self.topic

    @property
    def text(self) -> str:
        """The offset for the journal. Raises SourceRefused if it is too long."""
        kind, identity = self.identity
        written = {"topic": self.topic, kind: identity, "next": self.next, "epoch": self.epochs}
        text = json.dumps(written, separators=(",", ":"))
        if len(text) > OFFSET_BYTES_MAX:
            raise SourceRefused(
                f"the offsets of the {len(self.next)} partitions of topic {self.topic} need "
                f"{len(text)} bytes, and a record of the journal has room for {OFFSET_BYTES_MAX}; "
                "copy the topic to one with fewer partitions"
            )
        return text

    def add(self, partitions: int) -> None:
        """Begin new partitions at offset 0, so that there are ``partitions``."""
        new = partitions - len(self.next)
        self.next += [0] * new
        self.epochs += [UNKNOWN] * new

    def read(self, partition: int, offset: int, epoch: int | None) -> None:
        """Move the position after the record at ``offset``."""
        self.next[partition] = offset + 1
        self.epochs[partition] = UNKNOWN if epoch is None else epoch

    def reached(self, partition: int, offset: int) -> None:
        """Move the position to ``offset``, if only markers of transactions and records of aborted
        transactions are before it. Their epoch is unknown, and may be later than the last one."""
        if offset > self.next[partition]:
            self.next[partition], self.epochs[partition] = offset, UNKNOWN
