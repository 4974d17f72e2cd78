"""Find the first row of a refused request that is no event of the stream, and say why in a
sentence."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import partial
from typing import Any

import pyarrow as pa

from ha_engine.receive.columns import SchemaMismatch, expected

SHOWN_CHARACTERS_MAX = 60
_SURROGATE = re.compile("[\ud800-\udfff]")

MisfitOfField = Callable[[bytes, str], SchemaMismatch | None]
"""Takes a line and the name of a field, and returns why the parser refuses the field, or None."""


class _Twice(Exception):
    """A JSON object has the same key twice."""


def first_bad(count: int, accepts: Callable[[int, int], bool]) -> int | None:
    """The first bad one of ``count`` rows: ``accepts(low, high)`` is false for each range with that
    row.

    The binary search costs at most twice as much as one check of all rows. The result is None when
    no row is bad by itself.
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if accepts(low, middle):
            low = middle
        else:
            high = middle
    return None if accepts(low, high) else low


def reason_for(line: bytes, schema: pa.Schema, misfit_of_field: MisfitOfField) -> str:
    """Say why ``line``, an event in UTF-8 without a line break, was refused."""
    try:
        event = _loads(line.decode(), object_pairs_hook=_unique)
        if not isinstance(event, dict):
            return "an event must be a JSON object"
        return _of_event(event, line, schema, misfit_of_field)
    except json.JSONDecodeError as error:
        return f"not valid JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        return "the event is nested too deep"
    except _Twice as twice:
        return f"the event has field {str(twice)!r} twice"


def _of_event(
    event: dict[str, Any], line: bytes, schema: pa.Schema, misfit_of_field: MisfitOfField
) -> str:
    for path, known in _objects(event, pa.struct(list(schema)), ""):
        if path.rpartition(".")[2] not in known:
            return unknown(path, known)
    for field in schema:
        if not field.nullable and event.get(field.name) is None:
            how = "is null" if field.name in event else "is missing"
            return of_not_null(field.name, how)
    present = [field for field in schema if field.name in event]
    for field in present:
        if _is_unreadable(event[field.name]):
            return _unexpected(field, event)
    for field in present:
        if misfit_of_field(line, field.name) is not None:
            return _unexpected(field, event)
    return "the event does not fit the stream's schema"


def _objects(event: Any, kind: pa.DataType, path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the path of each field of ``event``, nested ones too, with the schema's names at that
    level."""
    match event, kind:
        case dict(), pa.StructType():
            known = [field.name for field in kind]
            for name, value in event.items():
                yield f"{path}{name}", known
                if name in known:
                    yield from _objects(value, kind.field(name).type, f"{path}{name}.")
        case list(), pa.ListType():
            for element in event:
                yield from _objects(element, kind.value_type, path)


def _is_unreadable(value: Any) -> bool:
    """Whether ``value`` has a number that is too large for a double, or a lone surrogate.

    The parser refuses both even in a field that it ignores, so it cannot name the field.
    """
    match value:
        case _Number():
            return math.isinf(float(value))
        case str():
            return _SURROGATE.search(value) is not None
        case list():
            return any(map(_is_unreadable, value))
        case dict():
            return any(map(_is_unreadable, value.values()))
        case _:
            return False


def _unexpected(field: pa.Field, event: dict[str, Any]) -> str:
    return f"field {field.name!r} is {shown(event[field.name])}, expected {expected(field.type)}"


def of_not_null(name: str, how: str) -> str:
    """The sentence that refuses a not-null field, where ``how`` is ``is missing`` or ``is
    null``."""
    return f"field {name!r} {how}, but the stream declares it not null"


def unknown(path: str, known: list[str]) -> str:
    """The sentence that refuses a field, at ``path`` in an event, that the stream does not have."""
    near = get_close_matches(path.rpartition(".")[2], known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
    return f"the stream has no field {path[:SHOWN_CHARACTERS_MAX]!r}; {hint}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return found


class _Number(str):
    """A JSON number as it was written, with all digits and without rounding."""

    __slots__ = ()


_loads = partial(json.loads, parse_int=_Number, parse_float=_Number)


def shown(value: Any) -> str:
    """Format any ``value`` as short, readable text for a sentence."""
    written = partial(json.dumps, ensure_ascii=False, default=str)
    text = str(value) if isinstance(value, _Number) else written(value)
    if len(text) > SHOWN_CHARACTERS_MAX:
        text = f"{text[:SHOWN_CHARACTERS_MAX]}..."
    return text.encode(errors="backslashreplace").decode()
