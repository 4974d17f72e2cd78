"""Try the sources and sinks of an application without a node: connect, and look at the next rows.

Each call of a plug-in runs in a thread of its own, with a limit, since the call may never return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as LateError
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from ha_engine.errors import EngineError, SourceRefused, SourceUnavailable
from ha_engine.node.connectors import (
    log_of,
    message_decoder,
    message_encoder,
    plugin_options,
    source_maker,
)
from ha_engine.plugins import Messages, SinkPlace, sink_kind
from ha_engine.plugins.calls import begin, description_of
from ha_engine.query.application import (
    PluginSinkSpec,
    SourceSpec,
    StreamApplication,
    StreamSpec,
)
from ha_engine.receive.decode import Decoder
from ha_engine.receive.pull.coerce import coerced
from ha_engine.receive.pull.validate import validate

T = TypeVar("T")

CALL_SECONDS = 15.0
PEEK_ROWS_MAX = 100_000
"""The most rows of the messages that one look decodes."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The result of one check. ``place`` is stream/source or query/sink, and ``kind`` says which of
    both. ``error`` is None if the other system answered; ``checked`` is False if the type has no
    check."""

    kind: str
    place: str
    type: str
    checked: bool
    error: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check_connections(application: StreamApplication, group: str) -> Iterator[Connection]:
    """Connect to each source and sink of a plug-in, one after the other. A sink of type postgres is
    for ``ha-engine doctor``, which knows the node's database."""
    for stream in application.streams.values():
        for source in stream.sources:
            make = partial(_source_of, application, group, stream, source)
            yield _checked("source", f"{stream.name}/{source.name}", source.type, make)
        if stream.log is not None:
            make = partial(_log_of, application, group, stream, stream.log)
            yield _checked("log", stream.name, stream.log.type, make)
    for query in application.queries.values():
        for sink in query.sinks:
            if isinstance(sink, PluginSinkSpec):
                make = partial(_sink_of, application.directory_of(query), group, query.name, sink)
                yield _checked("sink", f"{query.name}/{sink.name}", sink.type, make)


def _source_of(
    application: StreamApplication, group: str, stream: StreamSpec, spec: SourceSpec
) -> Any:
    directory = application.directory_of(stream)
    message_decoder(stream, spec, directory, PEEK_ROWS_MAX)
    return source_maker(group, stream, spec, directory)()


def _log_of(application: StreamApplication, group: str, stream: StreamSpec, log: SourceSpec) -> Any:
    return log_of(group, stream, log, application.directory_of(stream))()


def _sink_of(directory: Path, group: str, query: str, spec: PluginSinkSpec) -> Any:
    encoder = message_encoder(query, spec, directory)
    mapped = frozenset() if encoder is None else encoder.attributes
    place = SinkPlace(group, query, spec.name, _never_put_aside, mapped)
    return sink_kind(spec.type)(plugin_options(query, spec, directory), place)


def _never_put_aside(*_: object) -> None:
    raise TypeError("a check delivers no rows")


def _checked(kind: str, place: str, type_: str, make: Callable[[], Any]) -> Connection:
    def work() -> bool:
        plugin = make()
        check = getattr(plugin, "check", None)
        if check is None:
            return False
        try:
            check()
        finally:
            plugin.close()
        return True

    try:
        return Connection(kind, place, type_, _limited(f"check of {place}", work), None)
    except EngineError as error:
        return Connection(kind, place, type_, True, str(error))


def _limited(step: str, work: Callable[[], T], seconds: float = CALL_SECONDS) -> T:
    """Run code of a plug-in. Raises EngineError, whatever the plug-in raises."""
    try:
        return begin(step, work).result(seconds)
    except EngineError:
        raise
    except LateError:
        raise SourceUnavailable(f"no answer within {seconds:g} s") from None
    except Exception as error:
        raise SourceRefused(description_of(error)) from error


# -- the next rows of a source ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peeked:
    """The next rows of a source as events of its stream, and its rows that are none, as pairs of
    place and reason. ``offset`` is behind them; it is None if no row waits."""

    events: pa.RecordBatch
    dead_letters: tuple[tuple[str, str], ...]
    offset: str | None


def find_source(application: StreamApplication, name: str) -> tuple[StreamSpec, SourceSpec]:
    """Find a source by ``stream/source``, or by ``source`` alone if no other has that name.

    Raises EngineError, which names the sources that there are.
    """
    known = {
        f"{stream.name}/{source.name}": (stream, source)
        for stream in application.streams.values()
        for source in stream.sources
    }
    found = [both for place, both in known.items() if name in (place, both[1].name)]
    if len(found) != 1:
        problem = "several sources are" if found else "no source is"
        raise EngineError(f"{problem} named {name!r}; name one of {', '.join(known) or 'none'}")
    return found[0]


def peek(
    application: StreamApplication,
    group: str,
    name: str,
    offset: str | None,
    rows_max: int,
    seconds: float,
) -> Peeked:
    """Decode the next rows of a source after ``offset``, and take none of them.

    Raises EngineError if the type of the source cannot do that, or if the source does not answer.
    """
    stream, spec = find_source(application, name)
    directory = application.directory_of(stream)
    make = source_maker(group, stream, spec, directory)
    decoder = message_decoder(stream, spec, directory, PEEK_ROWS_MAX)

    def work() -> Peeked:
        plugin: Any = make()
        look = getattr(plugin, "peek", None)
        if look is None:
            raise SourceRefused(
                f"a source of type {spec.type} cannot show rows without taking them"
            )
        try:
            batch = coerced(look(offset, rows_max, seconds), rows_max)
        finally:
            plugin.close()
        if batch is None:
            return Peeked(pa.RecordBatch.from_pylist([], schema=stream.arrow_schema), (), None)
        if isinstance(batch.rows, Messages):
            if decoder is None:
                raise TypeError("the plug-in returned messages, and its class has no attributes")
            validated = decoder.validate(batch, batch.rows)
        else:
            validated = validate(Decoder(stream.arrow_schema, PEEK_ROWS_MAX), batch)
        letters = [*batch.dead_letters, *validated.dead_letters]
        rejected = tuple((one.place, one.reason) for one in letters)
        return Peeked(validated.events.slice(0, rows_max), rejected, batch.offset)

    return _limited(f"peek of {name}", work, seconds + CALL_SECONDS)
