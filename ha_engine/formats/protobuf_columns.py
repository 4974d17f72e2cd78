"""Compare the columns of a query with the fields of a Protobuf type, before the query runs.

A column that the comparison accepts gets into its field without a loss, or its row is refused: a
number that is out of the field's range, or a text that is no number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

from ha_engine.errors import SinkRefused
from ha_engine.formats.protobuf import TIMESTAMP, WRAPPERS

_WELL_KNOWN = "google.protobuf."


def require_fields(of: Any, columns: Iterable[pa.Field], where: str = "") -> None:
    """Require that the message type ``of`` has a field for each of ``columns``. ``where`` is the
    path of the struct with these columns, with a point after it. Raises SinkRefused."""
    for column in columns:
        field, name = of.fields_by_name.get(column.name), where + column.name
        if field is None:
            raise SinkRefused(
                f"the Protobuf type {of.full_name} has no field {column.name!r} for the column "
                f"{name}; rename the column in the query"
            )
        _require_field(field, column.type, name)


def _require_field(field: Any, kind: pa.DataType, name: str) -> None:
    """Require that ``field`` takes the column ``name`` with values of ``kind``."""
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        if pa.types.is_map(kind):
            _require_single(entry.fields_by_name["value"], kind.item_type, f"{name}[]")
            return
        if pa.types.is_struct(kind):
            for part in kind:
                _require_single(entry.fields_by_name["value"], part.type, f"{name}.{part.name}")
            return
    elif not field.is_repeated:
        _require_single(field, kind, name)
        return
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _require_single(field, kind.value_type, f"{name}[]")
        return
    if not pa.types.is_null(kind):
        raise _unfit(field, kind, name)


def _require_single(field: Any, kind: pa.DataType, name: str) -> None:
    of = field.message_type
    if of is not None and of.file.name == WRAPPERS:
        _require_single(of.fields_by_name["value"], kind, name)
    elif of is not None and pa.types.is_struct(kind) and not of.full_name.startswith(_WELL_KNOWN):
        require_fields(of, kind, f"{name}.")
    elif not (pa.types.is_null(kind) or _takes(field, kind)):
        raise _unfit(field, kind, name)


def _takes(field: Any, kind: pa.DataType) -> bool:
    """Whether a field that is not repeated takes a value that is no struct."""
    is_integer, is_text = pa.types.is_integer(kind), _is_text(kind)
    match field.type:
        case Field.TYPE_BOOL:
            return bool(pa.types.is_boolean(kind))
        case Field.TYPE_FLOAT:
            return bool(pa.types.is_float32(kind)) or (is_integer and kind.bit_width <= 16)
        case Field.TYPE_DOUBLE:
            return bool(pa.types.is_floating(kind)) or (is_integer and kind.bit_width <= 32)
        case Field.TYPE_BYTES:
            return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
        case Field.TYPE_STRING:
            return not (
                is_integer
                or pa.types.is_floating(kind)
                or pa.types.is_boolean(kind)
                or pa.types.is_nested(kind)
            )
        case Field.TYPE_ENUM:
            return is_integer or is_text
        case Field.TYPE_MESSAGE | Field.TYPE_GROUP if field.message_type.full_name == TIMESTAMP:
            return is_text or (pa.types.is_timestamp(kind) and kind.tz is not None)
        case Field.TYPE_MESSAGE | Field.TYPE_GROUP:
            return bool(field.message_type.full_name.startswith(_WELL_KNOWN))
        case _:  # a type of whole numbers
            is_whole = pa.types.is_decimal(kind) and kind.scale == 0
            return is_integer or is_text or is_whole or bool(pa.types.is_floating(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _unfit(field: Any, kind: pa.DataType, name: str) -> SinkRefused:
    of = field.message_type or field.enum_type
    shown = of.full_name if of is not None else Field.Type.Name(field.type)[5:].lower()
    repeated = "repeated " if field.is_repeated else ""
    return SinkRefused(
        f"the column {name} is {kind}, and its Protobuf field is {repeated}{shown}; cast the "
        "column in the query"
    )
