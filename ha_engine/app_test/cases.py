"""The tests of a file as immutable values. The module ``file`` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ha_engine.errors import BadTestFile
from ha_engine.formats.strict_yaml import Document, Keys
from ha_engine.query.application import StreamApplication

BATCH = "_batch"
"""The name by which an expected row states the batch that yields it."""
END = "end"
"""The value of BATCH for the batches after the input."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a test file, for errors and notes."""

    file: Path
    document: Document
    keys: Keys

    def at(self, *keys: str | int) -> Place:
        return Place(self.file, self.document, (*self.keys, *keys))

    def bad(self, reason: str) -> BadTestFile:
        """The error about what is written here."""
        return BadTestFile(f"{self.file}:{self.line}: {self}: {reason}")

    @property
    def line(self) -> int:
        return self.document.line(self.keys)

    def __str__(self) -> str:
        words = [f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys]
        return "".join(words).removeprefix(".") or "the file"


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one stream, in the order of their arrival: the rows of the test file or, if
    ``file`` is not None, those of that file."""

    stream: str
    place: Place
    rows: tuple[Mapping[str, Any], ...] = ()
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one batch. ``received_at`` is the value of ``_received_at`` in the test file,
    or None."""

    events: tuple[Events, ...]
    place: Place
    received_at: str | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected rows of one query.

    ``rows`` are those of the test file, or None if they are in ``file``. ``key`` are the columns
    that identify a row of the query's table, or None for those of the query's sink. If ``changes``
    is true, the rows are those of every batch and not of the table.
    """

    query: str
    place: Place
    rows: tuple[Mapping[str, Any], ...] | None = None
    file: Path | None = None
    ordered: bool = False
    changes: bool = False
    key: tuple[str, ...] | None = None

    @property
    def rows_place(self) -> Place:
        """The place of the rows: the value of the query, or of its key ``rows``."""
        document, inner = self.place.document, self.place.at("rows")
        is_short = document.node(inner.keys) is document.node(self.place.keys)
        return self.place if is_short else inner


@dataclass(frozen=True, slots=True)
class Case:
    """One test. If ``close`` is true, the watermark moves to the end of time after the input."""

    name: str
    batches: tuple[Batch, ...]
    expected: tuple[Expectation, ...]
    close: bool = True


@dataclass(frozen=True, slots=True)
class CaseFile:
    """All tests of a file, and the application that they test."""

    path: Path
    text: str
    application: StreamApplication
    cases: tuple[Case, ...]
