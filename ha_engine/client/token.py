"""The token with which a client says who it is, and whom it tells it.

It is of the environment, never of a command line, which every user of the host can read.
"""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path

from ha_engine.errors import ConfigError, NodeUnreachable

TOKEN_VARIABLE = "HA_ENGINE_TOKEN"
_TOKEN = re.compile(r"[\x21-\x7e]+")


def authorization() -> dict[str, str]:
    """The header; none without a token. Raises ConfigError."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        return {}
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{TOKEN_VARIABLE} holds more than a token; set it to the token alone")
    return {"authorization": f"Bearer {token}"}


def require_as_safe(asked: str, named: str) -> str:
    """``named``, the URL that the node at ``asked`` sends us to. Raises NodeUnreachable where that
    would tell our token in plain text."""
    if asked.startswith(("https://", "grpcs://")) and named.startswith(("http://", "grpc://")):
        raise NodeUnreachable(
            f"{asked} names {named}, which does not encrypt; nothing is sent there"
        )
    return named


def trusted() -> ssl.SSLContext:
    """Authorities of the system, or of the file that SSL_CERT_FILE names. Raises ConfigError."""
    _require_authorities()
    return ssl.create_default_context()


def trusted_roots() -> bytes | None:
    """The same for gRPC, as PEM; None where the system has no such file. Raises ConfigError."""
    _require_authorities()
    file = ssl.get_default_verify_paths().cafile
    return None if file is None else Path(file).read_bytes()


def _require_authorities() -> None:
    file = os.environ.get("SSL_CERT_FILE")
    if file and not Path(file).is_file():
        raise ConfigError(f"SSL_CERT_FILE names {file}, which is no file")
