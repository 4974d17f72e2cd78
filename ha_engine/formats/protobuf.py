"""Read Protobuf messages of one type, which a file of descriptors defines.

``protoc --include_imports --descriptor_set_out=orders.desc orders.proto`` writes such a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from ha_engine.errors import ConfigError
from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.registry import framed
from ha_engine.formats.values import json_object

_TIMESTAMP, _WRAPPERS = "google.protobuf.Timestamp", "google/protobuf/wrappers.proto"
_NANOS_OF_A_MICROSECOND = 1_000


class ProtobufMessages:
    """Messages of the type ``name``, such as shop.Order.

    ``is_registered`` says whether each message begins with the id of its schema in a schema
    registry. Protobuf finds fields by number, so the schema in the registry need not be read.
    """

    def __init__(self, descriptor_file: Path, name: str, *, is_registered: bool = False) -> None:
        """Raises ConfigError."""
        self._type = _type_in(descriptor_file, name)
        self._is_registered = is_registered

    def rows(self, message: bytes) -> Iterator[bytes]:
        """Yield ``message`` as JSON. Raises BadRow."""
        body = _without_head(message) if self._is_registered else message
        parsed = self._type()
        try:
            parsed.ParseFromString(body)
        except DecodeError as error:
            raise BadRow(f"the message is no {parsed.DESCRIPTOR.full_name}: {error}") from None
        yield json_object(_fields(parsed))


def _type_in(descriptor_file: Path, name: str) -> type[Message]:
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_file.read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except OSError as error:
        raise ConfigError(f"the descriptors {descriptor_file} cannot be read: {error}") from error
    except KeyError as error:
        raise ConfigError(f"{descriptor_file} has no message type {name}") from error
    except (DecodeError, TypeError) as error:
        raise ConfigError(
            f"{descriptor_file} is not a file of descriptors with its imports: {error}; make it "
            "with protoc --include_imports --descriptor_set_out"
        ) from error


def _without_head(message: bytes) -> bytes:
    """Remove the schema's id, and the list of numbers that names the message type in the schema."""
    _, body = framed(message)
    count, at = _varint(body, 0)
    for _ in range(count):
        _, at = _varint(body, at)
    return body[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint at index ``at``; return it and the index after it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise BadRow("the message does not name its type after the schema's id")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _fields(message: Message) -> dict[str, Any]:
    """Every field by its name. A field that can be absent and is absent is left out."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        found[field.name] = _value(field, getattr(message, field.name))
    return found


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name["value"]
        return {str(key): _single(of, value[key]) for key in value}
    if field.is_repeated:
        return [_single(field, one) for one in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return named.name if named is not None else str(value)
    if field.message_type is None:
        return value
    if field.message_type.full_name == _TIMESTAMP:
        return _timestamp(value)
    if field.message_type.file.name == _WRAPPERS:
        return value.value
    return _fields(value)


def _timestamp(value: Any) -> str:
    if value.nanos % _NANOS_OF_A_MICROSECOND:
        raise BadRow("a timestamp of the message has more than 6 fractional digits")
    try:
        text: str = value.ToJsonString()
    except ValueError as error:
        raise BadRow(f"a timestamp of the message is out of range: {error}") from None
    return text
