"""The files of TLS, which the options of several connectors name."""

from __future__ import annotations

import ssl
from pathlib import Path

from ha_engine.connectors.streams import Refused


def require_readable(file: Path, refused: Refused) -> None:
    """Raise ``refused`` if ``file`` cannot be read."""
    try:
        file.read_bytes()
    except OSError as error:
        raise refused(f"{file} cannot be read: {error.strerror}") from error


def tls_context(
    ca_file: Path | None, certificate_file: Path | None, key_file: Path | None, refused: Refused
) -> ssl.SSLContext:
    """Return a context that checks the server's certificate, by default with the certificates of
    the system. It has the client certificate of ``certificate_file``, if there is one."""
    files = [file for file in (ca_file, certificate_file, key_file) if file is not None]
    for file in files:
        require_readable(file, refused)
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if certificate_file is not None:
            context.load_cert_chain(certificate_file, key_file)
    except (OSError, ValueError) as error:
        named = ", ".join(map(str, files))
        raise refused(f"{named} cannot be used for TLS: {error}") from error
    return context
