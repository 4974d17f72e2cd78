"""Decode every field of a message that RabbitMQ delivers.

RabbitMQ checks neither the times of a message nor whether its texts are UTF-8. The library ends the
connection at a field that it cannot decode. Such a message would be delivered again on the next
connection, so the source would never get behind it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ha_engine.connectors.library import library
from ha_engine.connectors.streams import Refused

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def accept_all_fields(refused: Refused) -> None:
    """Let the library decode all fields, in the whole process."""
    decode: Any = library("pamqp.decode", "rabbitmq", refused)

    def table(data: bytes) -> tuple[int, dict[str, Any]]:
        found, at, end = dict[str, Any](), 4, 4 + int.from_bytes(data[:4])
        while at < end:
            size, name = _text(data[at:])
            at += size
            size, found[name] = decode.embedded_value(data[at:])
            at += size
        return end, found

    decode.METHODS |= {"shortstr": _text, "timestamp": _time, "table": table}
    decode.TABLE_MAPPING |= {b"T": _time, b"F": table}


def _text(data: bytes) -> tuple[int, str]:
    end = 1 + data[0]
    return end, data[1:end].decode(errors="replace")


def _time(data: bytes) -> tuple[int, datetime | None]:
    """Decode a time, which is in seconds. Some producers write milliseconds. A number that is
    neither is no time."""
    number = int.from_bytes(data[:8])
    for unit in (timedelta(seconds=1), timedelta(milliseconds=1)):
        try:
            return 8, _EPOCH + number * unit
        except OverflowError:
            pass
    return 8, None
