"""Check a server's certificate files before it listens, and read them again while it runs.

A renewed certificate therefore needs no restart of the node.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc

from ha_engine.config.server_tls import ServerTls
from ha_engine.errors import ConfigError


def server_context(tls: ServerTls, section: str) -> ssl.SSLContext | None:
    """Load a server's certificate and key; return None if the server does not use TLS.

    Raises ConfigError if certificate or key cannot be read, or if they do not belong together.
    """
    if tls.pair is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # A key with a passphrase is refused, because no person is present to type the passphrase.
        context.load_cert_chain(*tls.pair, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{section}: cannot use certificate {tls.certificate} with key {tls.key}: "
            f"{getattr(error, 'strerror', None) or error}"
        ) from error
    return context


def readable_pair(tls: ServerTls, section: str) -> tuple[Path, Path] | None:
    """The paths of the server's certificate and key, if the config has them.

    Raises ConfigError like ``server_context``.
    """
    server_context(tls, section)
    return tls.pair


def authority(file: Path, key: str) -> bytes:
    """The certificates of the authority in ``file``, which the setting ``key`` names.

    Raises ConfigError if ``file`` cannot be read or has no certificate.
    """
    try:
        ssl.create_default_context(cafile=file)
        return file.read_bytes()
    except OSError as error:  # an SSLError is an OSError
        reason = "has no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(
            f"{key}: {file} cannot be used ({reason}); name the certificate of the authority that "
            "signed the certificates of the nodes"
        ) from error


def grpc_credentials(tls: ServerTls, section: str) -> grpc.ServerCredentials | None:
    """Credentials of a gRPC server; None for plain text. Raises ConfigError like
    ``server_context``."""

    def read() -> grpc.ServerCertificateConfiguration:
        certificate, key = (file.read_bytes() for file in readable_pair(tls, section) or ())
        return grpc.ssl_server_certificate_configuration([(key, certificate)])

    return None if tls.pair is None else renewing(read, from_callers=False)


def renewing(
    read: Callable[[], grpc.ServerCertificateConfiguration], *, from_callers: bool
) -> grpc.ServerCredentials:
    """Credentials of a gRPC server that calls ``read`` again for each connection.

    With ``from_callers``, callers must present a certificate too. Raises ConfigError if the first
    call of ``read`` raises it.
    """
    newest = read()

    def renewed() -> grpc.ServerCertificateConfiguration:
        nonlocal newest
        # While a certificate file is being replaced, the server keeps its last readable
        # certificate.
        with suppress(ConfigError, OSError):
            newest = read()
        return newest

    return grpc.dynamic_ssl_server_credentials(
        newest, renewed, require_client_authentication=from_callers
    )
