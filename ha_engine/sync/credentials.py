"""TLS certificates of nodes. Both ends of a link present a certificate that the group's authority
has signed.

Each new connection reads the certificate files again, so that new certificates need no restart.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from ha_engine.config.event_sync import TlsConfig
from ha_engine.config.server_tls import ServerTls
from ha_engine.errors import ConfigError
from ha_engine.web.tls import renewing, server_context


@dataclass(frozen=True, slots=True)
class Certificates:
    """The contents, in PEM, of the certificate files that the config names."""

    certificate: bytes
    key: bytes
    ca: bytes


def read(tls: TlsConfig) -> Certificates | None:
    """Read the certificate files, or return None when the config names none. Raises ConfigError if
    a file is unreadable."""
    if tls.certificate is None or tls.key is None or tls.ca is None:
        return None
    return Certificates(
        _content(tls.certificate, "certificate"), _content(tls.key, "key"), _content(tls.ca, "ca")
    )


def require_usable(tls: TlsConfig) -> None:
    """Raise ConfigError if the certificate files cannot be used.

    gRPC reads the certificate files only when it listens, and its error names no cause.
    """
    if read(tls) is None:
        return
    server_context(ServerTls(certificate=tls.certificate, key=tls.key), "event_sync.tls")
    try:
        ssl.create_default_context(cafile=tls.ca)
    except ssl.SSLError as error:
        raise ConfigError(
            f"event_sync.tls.ca: {tls.ca} holds no certificate; name the certificate of the "
            "authority that signed the certificates of all peers"
        ) from error


def for_server(tls: TlsConfig) -> grpc.ServerCredentials | None:
    """Credentials of the listening end, or None for plain text. Raises ConfigError."""
    first = read(tls)
    if first is None:
        return None
    return renewing(lambda: _configuration(read(tls) or first), from_callers=True)


def for_channel(tls: TlsConfig) -> grpc.ChannelCredentials | None:
    """Credentials of the dialling end, or None for plain text. Raises ConfigError."""
    shown = read(tls)
    if shown is None:
        return None
    return grpc.ssl_channel_credentials(shown.ca, shown.key, shown.certificate)


def _configuration(shown: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(shown.key, shown.certificate)], shown.ca)


def _content(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"event_sync.tls.{name}: {path} cannot be read ({error.strerror}); correct the path or "
            "the file's rights"
        ) from error
