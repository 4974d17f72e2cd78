"""Parse an Avro schema into types, which the reader and the writer of Avro compile.

A schema may come from a producer, so the parser has limits. It follows the Avro 1.12 specification
(avro.apache.org/docs/1.12.0/specification). It refuses a schema that contains itself, since no
column can have such a type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ha_engine.formats.json_rows import BadRow

DEPTH_MAX = 64
DECIMAL_DIGITS_MAX, DECIMAL_BYTES_MAX = 76, 32
"""The digits of Arrow's longest decimal, and its bytes."""
NO_DEFAULT = object()
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


# Several types may share a part by its name, so a type is a graph. An equality by values would
# follow each path through it.
@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """``logical`` is the logical type, such as ``timestamp-micros``, or None."""

    kind: str
    logical: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Decimal:
    """``size`` is that of a fixed type, in bytes, or None for bytes of any size."""

    size: int | None
    precision: int
    scale: int


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """``size`` is in bytes. A UUID has 16."""

    name: str
    size: int
    is_uuid: bool


@dataclass(frozen=True, slots=True, eq=False)
class Enum:
    name: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    items: AvroType


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """The keys are texts."""

    values: AvroType


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    branches: tuple[AvroType, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """``default`` is in the form of JSON, or NO_DEFAULT."""

    name: str
    type: AvroType
    default: Any


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    name: str
    fields: tuple[Field, ...]


AvroType: TypeAlias = Primitive | Decimal | Fixed | Enum | Array | Map | Union | Record


def parsed_record(text: str) -> Record:
    """Parse the schema of a message, which is a record, in JSON. Raises BadRow."""
    try:
        found = parsed(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadRow(f"the Avro schema is not valid JSON: {error}") from None
    if not isinstance(found, Record):
        raise BadRow("the Avro schema is not a record")
    return found


def parsed(schema: Any) -> AvroType:
    """Parse a schema in the form of JSON. Raises BadRow if it is not valid, or contains itself."""
    return _Parser().type_of(schema, "", 0)


class _Parser:
    """Parses one schema. ``_named`` has its types by full name, and None for an unfinished one."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType | None] = {}
        self._heights: dict[AvroType, int] = {}

    def type_of(self, schema: Any, namespace: str, depth: int) -> AvroType:
        if depth > DEPTH_MAX:
            raise BadRow(f"the Avro schema is nested more than {DEPTH_MAX} times")
        match schema:
            case str():
                return self._of_name(schema, namespace)
            case list():
                branches = [self.type_of(one, namespace, depth + 1) for one in schema]
                return self._around(Union(tuple(branches)), *branches)
            case {"type": str(kind)}:
                return self._of_kind(kind, schema, namespace, depth)
            case {"type": inner}:
                return self.type_of(inner, namespace, depth + 1)
            case _:
                raise BadRow(f"the Avro schema has no type at {str(schema)[:100]}")

    def _around(self, whole: AvroType, *parts: AvroType) -> AvroType:
        """Return ``whole``. A part may be a name, so only its height says how deep it is."""
        height = 1 + max((self._heights.get(part, 0) for part in parts), default=0)
        if height > DEPTH_MAX:
            raise BadRow(f"the Avro schema is nested more than {DEPTH_MAX} times")
        self._heights[whole] = height
        return whole

    def _of_name(self, name: str, namespace: str) -> AvroType:
        if name in _PRIMITIVES:
            return Primitive(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        full = full if full in self._named else name
        if full not in self._named:
            raise BadRow(f"the Avro schema has no type {name[:100]!r}")
        found = self._named[full]
        if found is None:
            raise BadRow(f"the Avro type {full} contains itself, so it fits no column")
        return found

    def _of_kind(
        self, kind: str, schema: Mapping[str, Any], namespace: str, depth: int
    ) -> AvroType:
        match kind:
            case "record" | "error" | "enum" | "fixed":
                return self._of_named_kind(kind, schema, namespace, depth)
            case "array":
                items = self.type_of(schema.get("items"), namespace, depth + 1)
                return self._around(Array(items), items)
            case "map":
                values = self.type_of(schema.get("values"), namespace, depth + 1)
                return self._around(Map(values), values)
            case _ if kind in _PRIMITIVES:
                return _primitive(kind, schema)
            case _:
                return self._of_name(kind, namespace)

    def _of_named_kind(
        self, kind: str, schema: Mapping[str, Any], namespace: str, depth: int
    ) -> AvroType:
        name = _text_of(schema, "name")
        given = schema.get("namespace", namespace)
        full = name if "." in name or not given else f"{given}.{name}"
        if full in self._named:
            raise BadRow(f"the Avro schema defines {full} twice")
        self._named[full] = None
        within = full.rpartition(".")[0]
        found: AvroType
        match kind:
            case "enum":
                found = _enum(full, schema.get("symbols"))
            case "fixed":
                found = _fixed(full, schema)
            case _:
                found = self._record(full, schema.get("fields"), within, depth)
        self._named[full] = found
        return found

    def _record(self, full: str, fields: Any, namespace: str, depth: int) -> AvroType:
        if not isinstance(fields, list):
            raise BadRow(f"the Avro record {full} has no fields")
        parts = []
        for one in fields:
            if not isinstance(one, dict):
                raise BadRow(f"the Avro record {full} has a field that is no object")
            # A logical type may be written beside the type of a field by mistake; the
            # specification puts it inside, so the parser looks only there.
            type_ = self.type_of(one.get("type"), namespace, depth + 1)
            parts.append(Field(_text_of(one, "name"), type_, one.get("default", NO_DEFAULT)))
        if len({part.name for part in parts}) < len(parts):
            raise BadRow(f"the Avro record {full} has two fields of one name")
        return self._around(Record(full, tuple(parts)), *(part.type for part in parts))


def _text_of(schema: Mapping[str, Any], key: str) -> str:
    found = schema.get(key)
    if not isinstance(found, str) or not found:
        raise BadRow(f"the Avro schema has no {key} at {str(dict(schema))[:100]}")
    return found


def _primitive(kind: str, schema: Mapping[str, Any]) -> AvroType:
    logical = schema.get("logicalType")
    if (kind, logical) == ("bytes", "decimal"):
        return _decimal(schema, None)
    return Primitive(kind, logical if isinstance(logical, str) else None)


def _enum(full: str, symbols: Any) -> Enum:
    if not (isinstance(symbols, list) and all(isinstance(one, str) for one in symbols)):
        raise BadRow(f"the Avro enum {full} has no symbols")
    return Enum(full, tuple(symbols))


def _fixed(full: str, schema: Mapping[str, Any]) -> AvroType:
    size = schema.get("size")
    if not isinstance(size, int) or size < 0:
        raise BadRow(f"the fixed type {full} has no size")
    match schema.get("logicalType"):
        case "decimal":
            return _decimal(schema, size)
        case logical:
            return Fixed(full, size, logical == "uuid" and size == 16)


def _decimal(schema: Mapping[str, Any], size: int | None) -> Decimal:
    precision, scale = schema.get("precision", -1), schema.get("scale", 0)
    are_numbers = isinstance(precision, int) and isinstance(scale, int)
    if not (are_numbers and 0 <= scale <= precision <= DECIMAL_DIGITS_MAX):
        raise BadRow(
            "the Avro schema has a decimal whose precision and scale are not from 0 to "
            f"{DECIMAL_DIGITS_MAX}"
        )
    return Decimal(size, precision, scale)
