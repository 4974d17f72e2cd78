"""The token that identifies a client, and the check of the nodes that may get the token.

The token comes from the environment, never from a command line, which every user of the host can
read.
"""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path

from ha_engine.errors import ConfigError, NodeUnreachable

TOKEN_VARIABLE = "HA_ENGINE_TOKEN"  # noqa: S105 - the name of a variable, not a token
_TOKEN = re.compile(r"[\x21-\x7e]+")


def authorization() -> dict[str, str]:
    """The HTTP header with the token; no header without a token. Raises ConfigError."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        return {}
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{TOKEN_VARIABLE} is not a single token; set it to the token alone")
    return {"authorization": f"Bearer {token}"}


def require_as_safe(asked: str, named: str) -> str:
    """Return ``named``, the URL to which the node at ``asked`` refers the client, if it is safe.

    Raises NodeUnreachable if the client would send its token to ``named`` in plain text.
    """
    if asked.startswith(("https://", "grpcs://")) and named.startswith(("http://", "grpc://")):
        raise NodeUnreachable(
            f"{asked} refers to {named}, which does not encrypt, so nothing was sent there; set "
            "'advertise' of that node to an encrypted address"
        )
    return named


def trusted() -> ssl.SSLContext:
    """The certificate authorities of the file that SSL_CERT_FILE names, else those of the system.
    Raises ConfigError."""
    _require_authorities()
    return ssl.create_default_context()


def trusted_roots() -> bytes | None:
    """The certificate authorities for gRPC, as PEM, or None if the system has no file with
    authorities. Raises ConfigError."""
    _require_authorities()
    file = ssl.get_default_verify_paths().cafile
    return None if file is None else Path(file).read_bytes()


def _require_authorities() -> None:
    file = os.environ.get("SSL_CERT_FILE")
    if file and not Path(file).is_file():
        raise ConfigError(f"SSL_CERT_FILE is {file}, but there is no such file; correct it")
