"""What a plug-in implements, and how the engine finds it.

A package offers a kind of sink under the entry point group ``ha_engine.sinks``, one of source under
``ha_engine.sources``: the name is what an application file gives as ``type``, the object a class
that fits ``SinkPlugin`` or ``SourcePlugin``. The engine's own kinds but ``postgres`` are found in
the same way. ``ha_engine.testing`` has the tests that one must pass.
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
"""Of an offset in UTF-8; it is in each record that has rows of its source."""


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """One batch of a query, complete and durable, the same on every node.

    ``key`` is the same each time that this batch is delivered, by whichever node: to a place that
    remembers keys, the second time is none. ``read()`` gives the rows, in the same order on every
    node. ``remaining_seconds()`` says how long the call may take; it can grow meanwhile.
    """

    number: int
    rows: int
    key: str
    read: Callable[[], pa.Table]
    remaining_seconds: Callable[[], float]


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Whom an instance serves. ``put_aside(batch, reason, rows)`` stores rows durably that the sink
    will never take, where people find and count them, so that the batches behind go on."""

    group: str
    query: str
    sink: str
    put_aside: Callable[[OutputBatch, str, pa.Table], None]


class SinkPlugin(Protocol):
    """A kind of sink; each instance serves one sink of one query.

    The engine calls ``deliver`` for batch after batch, on the active only, and keeps in its ledger
    which one was delivered last. A call that raised, or whose outcome is unknown, is repeated, by
    this node or by the next active: ``deliver`` must make the second time harmless (by name, by
    key), or ``guarantee`` must say that it cannot. A batch without rows is not delivered.

    Raise SinkUnavailable for what may pass and SinkRefused for what only a person can mend; the
    batch is tried again, sooner or later. Anything else that is raised counts as a fault of the
    plug-in and is treated as SinkRefused. Calls come one at a time, each in some thread; one that
    outlives ``batch.remaining_seconds()`` is not waited for, and none follows until it has ended.
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
        """Return once the rows are there for good."""
        ...

    def close(self) -> None:
        """Hold nothing open any more; ``deliver`` may follow all the same."""
        ...


# -- sources ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that is no event of the stream. ``place`` tells people where it came from; ``raw`` is
    what stood there, of which the beginning is kept."""

    place: str
    reason: str
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """What was read at once, and ``offset``, where to go on behind it.

    ``rows`` are JSON objects, one each and without line breaks, or a record batch whose columns go
    by name: the rules are those of a request over HTTP. A row that the stream refuses becomes a
    dead letter of ``place(n)``; ``dead_letters`` are what did not even become a row. ``offset`` is
    the source's own text, at most ``OFFSET_BYTES_MAX``. ``backlog`` counts the bytes that are known
    to wait behind it.
    """

    offset: str
    rows: Sequence[bytes] | pa.RecordBatch = ()
    dead_letters: Sequence[DeadLetter] = ()
    place: Callable[[int], str] = "row {}".format
    backlog: int | None = None


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Whom an instance serves. ``schema`` has the columns of the stream."""

    group: str
    stream: str
    source: str
    schema: pa.Schema


class SourcePlugin(Protocol):
    """A kind of source; each instance serves one source of one stream.

    The engine calls ``open`` with the offset of the last batch that its journal has, then ``read``
    again and again, on the active only. A batch is journalled together with its offset. After any
    trouble, and on the next active, ``open`` comes again: what was read and not journalled must be
    read once more, the same rows in the same order, or ``guarantee`` must say that it cannot. A
    ``read`` that follows a batch, without an ``open`` in between, means that it is committed.

    Raise SourceUnavailable for what may pass and SourceRefused for what only a person can mend; the
    source is opened again, sooner or later. Anything else that is raised counts as a fault of the
    plug-in and is treated as SourceRefused. The calls block, each in some thread and one at a time:
    whatever they do, the node's event loop and with it the lease go on.
    """

    Options: ClassVar[type[BaseModel]]
    """The keys that the application file has besides ``name`` and ``type``."""
    guarantee: ClassVar[str]
    """For people: exactly once where a batch can be read again behind any offset, or what else."""

    def __init__(self, options: Any, place: SourcePlace) -> None:
        """``options`` is of ``Options``. Opens nothing: a passive node does this too."""
        ...

    def open(self, offset: str | None) -> None:
        """Go on behind ``offset``, None: from the beginning. Comes again, without a close too."""
        ...

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        """The next rows, at most ``rows_max``; None when none came within ``seconds``."""
        ...

    def close(self) -> None:
        """Hold nothing open any more; ``open`` may follow all the same."""
        ...


# -- finding ---------------------------------------------------------------------------------------


def sink_kind(name: str) -> type[SinkPlugin]:
    """The class behind ``type: name``. Raises ApplicationError that names the package at fault."""
    return cast(type[SinkPlugin], _kind("sink", SINKS, name, ("postgres",)))


def source_kind(name: str) -> type[SourcePlugin]:
    """The same of a source."""
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
            f"{what}s of type {name!r} come from the package {package}, which cannot be used: "
            f"{type(error).__name__}: {error}"
        ) from error
    return found


def require_fit(found: Any, group: str = SINKS) -> None:
    """Raises TypeError when ``found`` is no plug-in of ``group``."""
    missing = [call for call in _CALLS[group] if not callable(getattr(found, call, None))]
    if missing:
        raise TypeError(f"{found!r} has no {', '.join(missing)}")
    if not isinstance(getattr(found, "guarantee", None), str):
        raise TypeError(f"{found!r} states no guarantee")
    options = getattr(found, "Options", None)
    if not (isinstance(options, type) and issubclass(options, BaseModel)):
        raise TypeError(f"Options of {found!r} is no pydantic model")
