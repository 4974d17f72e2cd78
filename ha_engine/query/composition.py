"""Join several applications to one that a node runs: the union of their streams and queries.

All applications of a group share Spark, its Python workers and the sinks' databases. So no name of
one may mean something else in another (ADR 52).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from ha_engine.aggregation import Aggregation
from ha_engine.errors import ApplicationError
from ha_engine.query.application import AggregationSinkSpec, StreamApplication
from ha_engine.query.application_file import read_application
from ha_engine.query.layout import APPLICATION, APPLICATIONS, directories_of


def read_applications(directory: Path) -> StreamApplication:
    """Read the application in ``directory``, or join the several below it. Raises
    ApplicationError."""
    directories = directories_of(directory)
    if not directories:
        raise ApplicationError(
            f"{directory} has no {APPLICATION} and no {APPLICATIONS}/NAME/{APPLICATION}; name an "
            "application's YAML file, or rename it"
        )
    parts = tuple(read_application(one / APPLICATION) for one in directories)
    if directories == (directory.resolve(),):
        return parts[0]
    _refuse_equal_names(parts)
    streams = (part.streams.items() for part in parts)
    queries = (part.queries.items() for part in parts)
    return StreamApplication(
        ", ".join(part.name for part in parts),
        MappingProxyType(dict(chain.from_iterable(streams))),
        MappingProxyType(dict(chain.from_iterable(queries))),
        directory.resolve(),
        parts=parts,
    )


def _refuse_equal_names(parts: Sequence[StreamApplication]) -> None:
    """Refuse a name that two applications have. Raises ApplicationError, which names both."""
    _refuse_twice("the name", ((part.name, part.path.parent.name) for part in parts))
    _refuse_twice("stream", ((name, part.name) for part in parts for name in part.streams))
    _refuse_twice("query", ((name, part.name) for part in parts for name in part.queries))
    _refuse_twice(
        "Python module",
        ((name, part.name) for part in parts for name in _modules_in(part.path.parent)),
    )
    aggregations = [(one, part.name) for part in parts for one in _aggregations(part)]
    _refuse_twice("aggregation", ((one.name, name) for one, name in aggregations))
    _refuse_twice("aggregation table", ((one.table, name) for one, name in aggregations))


def _refuse_twice(what: str, owned: Iterable[tuple[str, str]]) -> None:
    """Refuse a name with two owners. Names that differ only in case are equal to Spark and to some
    file systems. ``owned`` has pairs of a name and its owner."""
    owners = dict[str, str]()
    for name, owner in owned:
        other = owners.setdefault(name.lower(), owner)
        if other != owner:
            raise ApplicationError(
                f"{what} {name!r} is in the applications {other} and {owner}; rename it in one"
            )


def _aggregations(part: StreamApplication) -> Iterator[Aggregation]:
    for query in part.queries.values():
        for sink in query.sinks:
            if isinstance(sink, AggregationSinkSpec):
                yield sink.aggregation


def _modules_in(directory: Path) -> Iterator[str]:
    """The names by which Python imports what is in ``directory``. Each of Spark's Python workers
    runs the functions of all applications, and has one module of a name."""
    for path in sorted(directory.iterdir()):
        if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py"))):
            yield path.stem
