"""Records to write in the journal's tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ha_engine.journal import Journal
from ha_engine.types import Events, Mark, Position, Record, Submission


def events(sequence: int, *, epoch: int = 1, size: int = 100, stream: str = "flights") -> Record:
    """Return an events record; its payload has ``size`` bytes, none zero, unique to the record."""
    payload = bytes((sequence * 7 + place) % 255 + 1 for place in range(size))
    submission = Submission("producer-é", sequence, "ab" * 16, 3)
    body = Events(stream, 3, 1_700_000_000_000_000 + sequence, (submission,))
    return Record(Position(epoch, sequence), max(0, sequence - 2), body, payload)


def mark(sequence: int, *, epoch: int = 1) -> Record:
    body = Mark("delays", sequence, sequence - 1)
    return Record(Position(epoch, sequence), sequence - 1, body)


def some_records(count: int, **sizes: int) -> list[Record]:
    return [events(n, **sizes) if n % 3 else mark(n) for n in range(1, count + 1)]


def written_journal(
    directory: Path, records: Sequence[Record], segment_size: int = 1 << 20
) -> list[Path]:
    """Write and close a journal; return its segment files, oldest first."""
    journal = Journal.open(directory, group="test", segment_size=segment_size)
    journal.append(records)
    journal.sync()
    journal.close()
    return sorted(directory.glob("*.journal"))


def opened(directory: Path, segment_size: int = 1 << 20) -> Journal:
    return Journal.open(directory, group="test", segment_size=segment_size)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Change one bit of a file in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ (1 << bit)]))
