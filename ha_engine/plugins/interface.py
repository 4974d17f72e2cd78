"""The interface of a plug-in, and the search for installed plug-ins.

A package offers a kind of sink in the entry point group ``ha_engine.sinks``, and a kind of source
in ``ha_engine.sources``. The name of the entry point is the ``type`` in an application file. The
entry point refers to a class that implements ``SinkPlugin`` or ``SourcePlugin``. The engine finds
its own kinds by entry points too, except ``postgres`` and ``aggregation``. ``ha_engine.testing``
has the tests that a plug-in must pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol, TypeAlias, cast

import pyarrow as pa
from pydantic import BaseModel

from ha_engine.errors import ApplicationError

SINKS, SOURCES = "ha_engine.sinks", "ha_engine.sources"
_CALLS = {SINKS: ("prepare", "deliver", "close"), SOURCES: ("open", "read", "close")}

OFFSET_BYTES_MAX = 64 << 10
"""Limit of an offset in UTF-8. Each record with rows of a source contains the source's offset."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of a broker. The engine decodes and encodes their values by the key ``format`` of
    the application file.

    A message without a value is None. ``attributes`` has the values of each attribute that the
    application file maps to a column, such as ``key`` or ``header.NAME``: one for each message, in
    the Python form of the Arrow type that the plug-in's ``attributes`` declares, or None.
    """

    values: Sequence[bytes | None]
    attributes: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)


# -- sinks -----------------------------------------------------------------------------------------


def _no_messages() -> Messages:
    raise TypeError("a sink of messages has the class attribute 'attributes'")


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """The output of one batch of a query: complete, durable, and equal on every node.

    ``key`` is the same in each delivery of a batch, whichever node delivers it. A destination that
    remembers keys can ignore a repeated delivery. ``read()`` returns the rows, with the same bytes
    and in the same order on every node: -0.0 is 0.0, every NaN is the same NaN, and the entries of
    a map are sorted. ``remaining_seconds()`` returns how long the delivery may still take; a
    renewal of the lease can raise the value. ``messages()`` returns the rows as messages, in the
    same order, for a sink with ``attributes``.
    """

    number: int
    rows: int
    key: str
    read: Callable[[], pa.Table]
    remaining_seconds: Callable[[], float]
    messages: Callable[[], Messages] = _no_messages


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """The sink that an instance of a plug-in serves.

    ``put_aside(batch, reason, rows)`` durably stores dead letters: rows that the sink will never
    take. After ``put_aside`` the sink continues with the next rows. ``attributes`` are the
    attributes of a message that the application file maps to columns. ``bucket`` is for the names
    at the destination, such as ``3-of-8``. It is empty if the instance gets whole batches.
    """

    group: str
    query: str
    sink: str
    put_aside: Callable[[OutputBatch, str, pa.Table], None]
    attributes: frozenset[str] = frozenset()
    bucket: str = ""


class SinkPlugin(Protocol):
    """A kind of sink; each instance serves one sink of one query.

    Only the active calls ``deliver``, for one batch after the other. The engine's ledger names the
    last delivered batch. If ``deliver`` raises, or its outcome is unknown, this node or the next
    active repeats the call. ``deliver`` must be idempotent, for example by a file name or a key, or
    ``guarantee`` must say that it is not. The engine does not call ``deliver`` for a batch without
    rows.

    A sink of messages has the class attribute ``attributes``, a mapping from the name of each
    attribute that a message may get to its Arrow type. The application file then has the keys
    ``format`` and ``columns`` for the sink, which are no part of ``Options``. The columns that
    ``columns`` maps to an attribute are not in the value of a message. The attribute ``headers``
    stands for all names ``header.NAME``.

    A kind with the class attribute ``buckets = True`` may have buckets (RULES.md#r34). An instance
    then serves one bucket, under a name of its own in ``SinkPlace.sink``, in a task of Spark.
    ``deliver`` must put no dead letters aside, and must not change what is complete, since a task
    of a former active may come late. A method ``has(number)`` says whether this host sees the
    bucket of a batch.

    A sink may have a method ``check()``, which ``app check --connect`` calls. ``check`` connects to
    the destination, and raises what ``deliver`` would raise. It changes nothing there.

    Raise SinkUnavailable for a temporary failure, and SinkRefused for a failure that only a person
    can repair. The engine retries the batch after both errors, but later after SinkRefused. The
    engine treats any other exception of a plug-in as SinkRefused.

    The engine makes one call of an instance at a time, and each call may be in another thread. The
    engine does not wait for a call of ``deliver`` that takes longer than
    ``batch.remaining_seconds()``. The engine makes no other call of the instance until the late
    call of ``deliver`` has ended.
    """

    Options: ClassVar[type[BaseModel]]
    """The keys that the application file has besides ``name`` and ``type``."""
    guarantee: ClassVar[str]
    """For people: exactly once, or at least once, and by what means."""

    def __init__(self, options: Any, place: SinkPlace) -> None:
        """Keep ``options``, an instance of ``Options``.

        Open nothing here, because a passive node creates instances too.
        """
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """Refuse a schema that the sink cannot deliver.

        Every node calls ``prepare`` before it runs the query.
        """
        ...

    def deliver(self, batch: OutputBatch) -> None:
        """Return once the rows are durable at their destination."""
        ...

    def close(self) -> None:
        """Close all connections and files. A call of ``deliver`` may still follow."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a ledger by a new active (RULES.md#r24).

    ``epoch`` is higher than that of every active before. A sink without a ledger begins after the
    batch ``start_after``. ``group_id`` is the UUID of the group. ``remaining_seconds()`` returns
    how long the claim may still take.
    """

    epoch: int
    start_after: int
    group_id: str
    remaining_seconds: Callable[[], float]


class LedgerSinkPlugin(SinkPlugin, Protocol):
    """A kind of sink that keeps its ledger at the destination, in one transaction with the rows.

    Any other sink has its ledger in the node's database, so a crash between the delivery and the
    ledger repeats a batch. A ledger in the transaction of the rows makes each delivery exactly
    once. The engine calls ``deliver`` for batches without rows too, since the ledger must name the
    last batch. It calls ``claim`` before the first ``deliver`` of an instance, after each call that
    raised, and after ``close``.
    """

    def claim(self, claim: Claim) -> int:
        """Fence every earlier active, and return the last batch that is durable at the destination.

        After ``claim`` no earlier active may commit a batch there, not even by a call that began
        before. Raises Fenced if the ledger has a higher epoch, and SinkRefused if the ledger of
        this name belongs to another group.
        """
        ...


# -- sources ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row of a source that is no valid event of the stream.

    ``place`` tells people where the row came from, such as a file and a line. ``raw`` is the row's
    original text, of which the engine keeps the beginning.
    """

    place: str
    reason: str
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread events of a source after an offset. None means that a figure is not known.

    ``seconds`` is the age of the next unread event.
    """

    events: int | None = None
    bytes: int | None = None
    seconds: float | None = None


Rows: TypeAlias = Sequence[bytes] | pa.RecordBatch | Messages


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """The result of one read of a source. The next read continues after ``offset``.

    ``rows`` are JSON objects without line breaks, an Arrow record batch whose columns are matched
    by name, or messages in the format of the application file. The engine checks rows of a source
    like rows of an HTTP request. If the stream refuses row or message n, it becomes a dead letter
    with the place ``place(n)``. ``dead_letters`` are inputs that the source could not turn into
    rows. ``offset`` is a text in the source's own format, of at most ``OFFSET_BYTES_MAX`` bytes.
    ``kept`` counts events that stay in a log of their own, from which queries read them. Only the
    engine's own kinds of log have such events.
    """

    offset: str
    rows: Rows = ()
    dead_letters: Sequence[DeadLetter] = ()
    place: Callable[[int], str] = "row {}".format
    backlog: Backlog | None = None
    kept: int = 0


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The source that an instance of a plug-in serves.

    ``schema`` has the columns of the stream. ``attributes`` are the attributes of a message that
    the application file maps to columns.
    """

    group: str
    stream: str
    source: str
    schema: pa.Schema
    attributes: frozenset[str] = frozenset()


class SourcePlugin(Protocol):
    """A kind of source; each instance serves one source of one stream.

    Only the active calls ``open``, with the offset of the last batch in its journal, and then
    ``read`` repeatedly. The engine journals each batch together with its offset. After any failure,
    and on the next active, the engine calls ``open`` again. The source must then repeat the rows
    that were not journalled, in the same order. If a source cannot repeat rows, its ``guarantee``
    must say so. A ``read`` that follows a batch without an ``open`` in between means that the batch
    is committed.

    A source whose rows are ``Messages`` has the class attribute ``attributes``, a mapping from the
    name of each attribute of a message to its Arrow type. The application file then has the keys
    ``format`` and ``columns`` for the source, which are no part of ``Options``. The attribute
    ``headers`` stands for all names ``header.NAME``. ``SourcePlace.attributes`` are the attributes
    that each batch must have.

    A source may have two more methods, which commands call on an instance of their own, while
    another instance may be reading. Neither takes, acknowledges or changes anything.

    - ``check()`` connects, and raises what ``open`` and ``read`` would raise.
    - ``peek(offset, rows_max, seconds)`` returns a batch of the next rows after ``offset``, or
      None.

    Raise SourceUnavailable for a temporary failure, and SourceRefused for a failure that only a
    person can repair. The engine opens the source again after both errors, but later after
    SourceRefused. The engine treats any other exception of a source as SourceRefused.

    The calls may block, because the engine makes them in threads and not in the node's event loop.
    The engine makes one call of an instance at a time, and each call may be in another thread.
    """

    Options: ClassVar[type[BaseModel]]
    """The keys that the application file has besides ``name`` and ``type``."""
    guarantee: ClassVar[str]
    """For people: exactly once if a batch can be read again after any offset, or what else."""

    def __init__(self, options: Any, place: SourcePlace) -> None:
        """Keep ``options``, an instance of ``Options``.

        Open nothing here, because a passive node creates instances too.
        """
        ...

    def open(self, offset: str | None) -> None:
        """Continue after ``offset``, or from the beginning if ``offset`` is None.

        The engine may call ``open`` again without a ``close`` in between.
        """
        ...

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        """Return at most ``rows_max`` next rows, or None if no row comes within ``seconds``."""
        ...

    def close(self) -> None:
        """Close all connections and files. A call of ``open`` may still follow."""
        ...


# -- finding ---------------------------------------------------------------------------------------


def attributes_of(kind: type[SourcePlugin | SinkPlugin]) -> Mapping[str, pa.DataType] | None:
    """The attributes of the messages of a kind, or None if the kind has rows instead."""
    return getattr(kind, "attributes", None)


def keeps_ledger(kind: type[SinkPlugin]) -> bool:
    """Whether ``kind`` is a LedgerSinkPlugin."""
    return callable(getattr(kind, "claim", None))


def may_have_buckets(kind: type[SinkPlugin]) -> bool:
    """Whether Spark's tasks may deliver the buckets of a sink of this kind."""
    return bool(getattr(kind, "buckets", False))


def sink_kind(name: str) -> type[SinkPlugin]:
    """The class of the sink type ``name``.

    Raises ApplicationError, which names the package at fault.
    """
    return cast(type[SinkPlugin], _kind("sink", SINKS, name, ("postgres", "aggregation")))


def source_kind(name: str) -> type[SourcePlugin]:
    """The class of the source type ``name``. Raises ApplicationError like ``sink_kind``."""
    return cast(type[SourcePlugin], _kind("source", SOURCES, name))


def _kind(what: str, group: str, name: str, built_in: tuple[str, ...] = ()) -> Any:
    kinds = {entry.name: entry for entry in entry_points(group=group)}
    if name not in kinds:
        known = [*built_in, *sorted(kinds)]
        near = get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise ApplicationError(f"there is no {what} of type {name!r}; {advice}")
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
    """Raise TypeError if the class ``found`` lacks a part of the plug-in interface of ``group``."""
    missing = [call for call in _CALLS[group] if not callable(getattr(found, call, None))]
    if missing:
        raise TypeError(f"{found!r} has no {', '.join(missing)}")
    if not isinstance(getattr(found, "guarantee", None), str):
        raise TypeError(f"{found!r} has no guarantee")
    options = getattr(found, "Options", None)
    if not (isinstance(options, type) and issubclass(options, BaseModel)):
        raise TypeError(f"Options of {found!r} is not a pydantic model")
