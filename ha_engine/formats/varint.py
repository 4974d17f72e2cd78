"""Read the varints of Protobuf: seven bits a byte, the lowest ones first."""

from __future__ import annotations


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint at index ``at``; return it and the index after it. Raises ValueError if it does
    not end within ``data`` or has more than ten bytes."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("it ends within a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
