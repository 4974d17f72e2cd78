"""The conversions between types of Arrow that lose no information.

A conversion checks each value, so that an integer may be sent for a smaller one that has room.
"""

from __future__ import annotations

import pyarrow as pa


def converts_to(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a producer may send values of type ``given`` for a column of type ``wanted``."""
    match wanted:
        case _ if pa.types.is_null(given):
            return True
        case _ if pa.types.is_floating(wanted):
            return bool(pa.types.is_floating(given) or pa.types.is_integer(given))
        case _ if pa.types.is_timestamp(wanted):
            # A timestamp without a zone counts as UTC, as in JSON. A timestamp with a zone is an
            # instant, so it is refused for a column of local times, which has no zone.
            return bool(pa.types.is_timestamp(given)) and not (given.tz and not wanted.tz)
        case _ if pa.types.is_list(wanted):
            a_list: bool = pa.types.is_list(given) or pa.types.is_large_list(given)
            return a_list and converts_to(given.value_type, wanted.value_type)
        case _ if pa.types.is_struct(wanted):
            return bool(pa.types.is_struct(given)) and _fields_stand_for(given, wanted)
        case _:
            return any(kind(wanted) and kind(given) for kind in _KINDS)


_KINDS = (
    pa.types.is_boolean,
    pa.types.is_integer,
    # pyarrow looks up a power of ten by a decimal's scale, and crashes if its table lacks the
    # scale.
    lambda kind: pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision,
    pa.types.is_date,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
)


def _fields_stand_for(given: pa.StructType, wanted: pa.StructType) -> bool:
    names = [field.name for field in given]
    known = {field.name: field.type for field in wanted}
    return len(set(names)) == len(names) and all(
        field.name in known and converts_to(field.type, known[field.name]) for field in given
    )


def converts_to_attribute(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column may be the attribute of a message, or the attribute a column. Texts and
    bytes stand for each other as UTF-8."""
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    if any(of(given) for of in texts) and any(of(wanted) for of in texts):
        return True
    return converts_to(given, wanted)
