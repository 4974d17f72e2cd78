"""Parse and format the values of settings: durations and sizes with units, addresses of hosts and
databases.

The config and the application file use these types.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SecretStr,
    WithJsonSchema,
)

_UNITS_OF_TIME = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS_OF_SIZE = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_NUMBER = r"(\d+(?:\.\d+)?)"


def _with_unit(units: Mapping[str, float], example: str) -> Callable[[object], float]:
    pattern = re.compile(rf"{_NUMBER}\s*({'|'.join(units)})")

    def parse(value: object) -> float:
        if isinstance(value, str) and (match := pattern.fullmatch(value.strip())):
            return float(match[1]) * units[match[2]]
        raise ValueError(
            f"{value!r} needs a number with a unit, such as {example} (units: {', '.join(units)})"
        )

    return parse


def _schema(units: Mapping[str, float], example: str) -> WithJsonSchema:
    pattern = rf"^{_NUMBER}\s*({'|'.join(units)})$"
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})


parse_duration = _with_unit(_UNITS_OF_TIME, "3s")
"""``3s`` as seconds; ValueError without a unit."""


def parse_size(value: object) -> int:
    """``64MiB`` as bytes; ValueError without a unit."""
    return int(_with_unit(_UNITS_OF_SIZE, "64MiB")(value))


def format_duration(seconds: float) -> str:
    """Format seconds as in a config file: ``3s``, or ``500ms`` for a fraction of a second."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds * 1000:.12g}ms"


def format_size(size_bytes: int) -> str:
    """Format bytes as in a config file: ``64MiB``, in the largest unit without a fraction."""
    unit = next(u for u in reversed(_UNITS_OF_SIZE) if size_bytes % _UNITS_OF_SIZE[u] == 0)
    return f"{size_bytes // _UNITS_OF_SIZE[unit]}{unit}" if size_bytes else "0B"


def split_address(listen: str) -> tuple[str, int]:
    """Split an address such as ``127.0.0.1:8080`` or ``[::1]:8080`` into host and port.

    Raises ValueError if ``listen`` is no such address.
    """
    host, _, port = listen.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"{listen!r} is no address; write host:port, such as 127.0.0.1:8080")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{listen!r} is no address; put an IPv6 host in brackets: [::1]:8080")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``.

    Returns False for every host name except localhost.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_unspecified(host: str) -> bool:
    """Whether ``host`` means every address of this machine, so that no client can connect to it."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def as_text(value: object) -> object:
    """Convert a YAML scalar, such as an unquoted ``false`` or ``4``, to a string for Spark."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
    return value


def _checked_database(url: SecretStr) -> SecretStr:
    # The URL may contain a password, so the message does not quote the URL.
    known = ("postgresql://", "postgresql+psycopg2://")
    if url.get_secret_value() == "embedded" or url.get_secret_value().startswith(known):
        return url
    raise ValueError("must be 'embedded' or a URL that starts with postgresql://")


def _checked_address(listen: str) -> str:
    split_address(listen)
    return listen


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, when_used="json"),
    _schema(_UNITS_OF_TIME, "3s"),
]
"""A duration in seconds, written with a unit."""
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, when_used="json"),
    _schema(_UNITS_OF_SIZE, "64MiB"),
]
"""A size in bytes, written with a unit."""
Address = Annotated[
    str,
    AfterValidator(_checked_address),
    Field(json_schema_extra={"examples": ["127.0.0.1:8080"]}),
]
"""``host:port``; port 0 lets the system choose."""
DatabaseUrl = Annotated[SecretStr, AfterValidator(_checked_database)]
"""``embedded``, or the URL of a PostgreSQL, which may contain a password."""
