"""What a plug-in implements, and how the engine finds it.

A package offers a kind of sink under the entry point group ``ha_engine.sinks``: the name is what an
application file gives as ``type``, the object a class that fits ``SinkPlugin``. The engine's own
kinds but ``postgres`` are found in the same way. ``ha_engine.testing`` has the tests that one must
pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Protocol, cast

import pyarrow as pa
from pydantic import BaseModel

from ha_engine.errors import ApplicationError

SINKS = "ha_engine.sinks"
_CALLS = ("prepare", "deliver", "close")


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


def sink_kinds() -> dict[str, EntryPoint]:
    """Every kind that an installed package offers, by name."""
    return {entry.name: entry for entry in entry_points(group=SINKS)}


def sink_kind(name: str) -> type[SinkPlugin]:
    """The class behind ``type: name``. Raises ApplicationError that names the package at fault."""
    kinds = sink_kinds()
    if name not in kinds:
        known = ["postgres", *sorted(kinds)]
        near = get_close_matches(name, known, n=1)
        told = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise ApplicationError(f"there is no sink of type {name!r}; {told}")
    entry = kinds[name]
    try:
        found = entry.load()
        require_fit(found)
    except Exception as error:  # it is other people's code, and may raise anything
        package = entry.dist.name if entry.dist else entry.value
        raise ApplicationError(
            f"sinks of type {name!r} come from the package {package}, which cannot be used: "
            f"{type(error).__name__}: {error}"
        ) from error
    return cast(type[SinkPlugin], found)


def require_fit(found: Any) -> None:
    """Raises TypeError when ``found`` is no ``SinkPlugin``."""
    missing = [call for call in _CALLS if not callable(getattr(found, call, None))]
    if missing:
        raise TypeError(f"{found!r} has no {', '.join(missing)}")
    if not isinstance(getattr(found, "guarantee", None), str):
        raise TypeError(f"{found!r} states no guarantee")
    options = getattr(found, "Options", None)
    if not (isinstance(options, type) and issubclass(options, BaseModel)):
        raise TypeError(f"Options of {found!r} is no pydantic model")
