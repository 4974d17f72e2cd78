"""The interface of a plug-in, and the search for installed ones.

A package offers a kind of sink in the entry point group ``ha_engine.sinks``, and a kind of source
in ``ha_engine.sources``. The entry's name is the ``type`` in an application file; its object is a
class that fits ``SinkPlugin`` or ``SourcePlugin``. The engine finds its own kinds, except
``postgres``, in the same way. ``ha_engine.testing`` has the tests that a plug-in must pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol, cast

import pyarrow as pa
from pydantic import BaseModel

from ha_engine.errors import ApplicationError

SINKS, SOURCES = "ha_engine.sinks", "ha_engine.sources"
_CALLS = {SINKS: ("prepare", "deliver", "close"), SOURCES: ("open", "read", "close")}

OFFSET_BYTES_MAX = 64 << 10
"""Limit of an offset in UTF-8. Each record with rows of a source contains the source's offset."""


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """One batch of a query, complete and durable, the same on every node.

    ``key`` is the same in each delivery of this batch, by any node. A place that remembers keys can
    ignore the second delivery. ``read()`` gives the rows, in the same order on every node.
    ``remaining_seconds()`` is how long the call may still take; it can grow meanwhile.
    """

    number: int
    rows: int
    key: str
    read: Callable[[], pa.Table]
    remaining_seconds: Callable[[], float]


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """The sink that an instance serves.

    ``put_aside(batch, reason, rows)`` durably stores rows that the sink will never take, where
    people find and count them. The sink then continues with the next batches.
    """

    group: str
    query: str
    sink: str
    put_aside: Callable[[OutputBatch, str, pa.Table], None]


class SinkPlugin(Protocol):
    """A kind of sink; each instance serves one sink of one query.

    The engine calls ``deliver`` for one batch after the other, on the active only. Its ledger names
    the last delivered batch. If a call raised, or its outcome is unknown, this node or the next
    active repeats it. ``deliver`` must make the second call harmless (by name, by key), or
    ``guarantee`` must say that it cannot. A batch without rows is not delivered.

    Raise SinkUnavailable for a failure that may pass, and SinkRefused for one that only a person
    can repair; the engine tries the batch again, sooner or later. Any other exception counts as a
    fault of the plug-in and is treated as SinkRefused.

    The engine makes one call at a time, each in some thread. It does not wait for a call that takes
    longer than ``batch.remaining_seconds()``, and makes no other call until that one has ended.
    """

    Options: ClassVar[type[BaseModel]]
    """The keys that the application file has besides ``name`` and ``type``."""
    guarantee: ClassVar[str]
    """For people: exactly once, or at least once, and by what means."""

    def __init__(self, options: Any, place: SinkPlace) -> None:
        """``options`` is of ``Options``. Opens nothing: a passive node does this too."""
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """Refuse a schema that cannot be delivered; called on every node before the query runs."""
        ...

    def deliver(self, batch: OutputBatch) -> None:
        """Return once the rows are durable at their destination."""
        ...

    def close(self) -> None:
        """Close all that is open; ``deliver`` may follow nevertheless."""
        ...


# -- sources ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that is no event of the stream.

    ``place`` tells people where it came from. ``raw`` is the text there; its beginning is kept.
    """

    place: str
    reason: str
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """The result of one read, and ``offset``, after which the next read continues.

    ``rows`` are JSON objects, one each and without line breaks, or a record batch whose columns are
    matched by name. The rules are those of a request over HTTP. A row that the stream refuses
    becomes a dead letter of ``place(n)``; ``dead_letters`` are what did not even become a row.
    ``offset`` is the source's own text, at most ``OFFSET_BYTES_MAX``. ``backlog`` counts the bytes
    that are known to wait after it.
    """

    offset: str
    rows: Sequence[bytes] | pa.RecordBatch = ()
    dead_letters: Sequence[DeadLetter] = ()
    place: Callable[[int], str] = "row {}".format
    backlog: int | None = None


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The source that an instance serves. ``schema`` has the columns of the stream."""

    group: str
    stream: str
    source: str
    schema: pa.Schema


class SourcePlugin(Protocol):
    """A kind of source; each instance serves one source of one stream.

    The engine calls ``open`` with the offset of the last batch in its journal, then ``read``
    repeatedly, on the active only. It journals a batch together with its offset. After any failure,
    and on the next active, the engine calls ``open`` again. Rows that were read but not journalled
    must then be read again, the same rows in the same order, or ``guarantee`` must say that it
    cannot. A ``read`` after a batch, without an ``open`` in between, means that the batch is
    committed.

    Raise SourceUnavailable for a failure that may pass, and SourceRefused for one that only a
    person can repair; the engine opens the source again, sooner or later. Any other exception
    counts as a fault of the plug-in and is treated as SourceRefused.

    The calls may block. The engine makes one at a time, each in some thread, so that a call does
    not stop the node's event loop and with it the lease.
    """

    Options: ClassVar[type[BaseModel]]
    """The keys that the application file has besides ``name`` and ``type``."""
    guarantee: ClassVar[str]
    """For people: exactly once if a batch can be read again after any offset, or what else."""

    def __init__(self, options: Any, place: SourcePlace) -> None:
        """``options`` is of ``Options``. Opens nothing: a passive node does this too."""
        ...

    def open(self, offset: str | None) -> None:
        """Continue after ``offset``; None: from the beginning.

        The engine may call it again without a ``close`` in between.
        """
        ...

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        """The next rows, at most ``rows_max``; None when none came within ``seconds``."""
        ...

    def close(self) -> None:
        """Close all that is open; ``open`` may follow nevertheless."""
        ...


# -- finding ---------------------------------------------------------------------------------------


def sink_kind(name: str) -> type[SinkPlugin]:
    """The class behind ``type: name``. Raises ApplicationError that names the package at fault."""
    return cast(type[SinkPlugin], _kind("sink", SINKS, name, ("postgres",)))


def source_kind(name: str) -> type[SourcePlugin]:
    """The same for a source."""
    return cast(type[SourcePlugin], _kind("source", SOURCES, name))


def _kind(what: str, group: str, name: str, built_in: tuple[str, ...] = ()) -> Any:
    kinds = {entry.name: entry for entry in entry_points(group=group)}
    if name not in kinds:
        known = [*built_in, *sorted(kinds)]
        near = get_close_matches(name, known, n=1)
        told = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise ApplicationError(f"there is no {what} of type {name!r}; {told}")
    entry = kinds[name]
    try:
        found = entry.load()
        require_fit(found, group)
    except Exception as error:  # it is other people's code, and may raise anything
        package = entry.dist.name if entry.dist else entry.value
        raise ApplicationError(
            f"{what}s of type {name!r} come from the package {package}, which cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
    return found


def require_fit(found: Any, group: str = SINKS) -> None:
    """Raise TypeError when ``found`` is no plug-in of ``group``."""
    missing = [call for call in _CALLS[group] if not callable(getattr(found, call, None))]
    if missing:
        raise TypeError(f"{found!r} has no {', '.join(missing)}")
    if not isinstance(getattr(found, "guarantee", None), str):
        raise TypeError(f"{found!r} has no guarantee")
    options = getattr(found, "Options", None)
    if not (isinstance(options, type) and issubclass(options, BaseModel)):
        raise TypeError(f"Options of {found!r} is not a pydantic model")
