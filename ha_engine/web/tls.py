"""The files with which a server shows who it is, looked at before anything listens with them, and
again while it does: certificates are renewed, and nobody restarts a node for that."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc

from ha_engine.config.server_tls import ServerTls
from ha_engine.errors import ConfigError


def server_context(tls: ServerTls, section: str) -> ssl.SSLContext | None:
    """What a server shows who it is with; None for plain text. Raises ConfigError where certificate
    or key cannot be read, or do not belong together."""
    if tls.pair is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # A key that needs a passphrase is refused: nobody is there to type it.
        context.load_cert_chain(*tls.pair, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{section}: {tls.certificate} and {tls.key} are no certificate and its key that can "
            f"be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    return context


def readable_pair(tls: ServerTls, section: str) -> tuple[Path, Path] | None:
    """The certificate and its key, if they are given. Raises ConfigError as ``server_context``."""
    server_context(tls, section)
    return tls.pair


def renewing(
    read: Callable[[], grpc.ServerCertificateConfiguration], *, from_callers: bool
) -> grpc.ServerCredentials:
    """For a gRPC server that reads its files anew for each connection; ``from_callers``: they must
    show a certificate too. Raises ConfigError where ``read`` does at first."""
    newest = read()

    def renewed() -> grpc.ServerCertificateConfiguration:
        nonlocal newest
        # A file that is just being replaced: the one in use stays.
        with suppress(ConfigError, OSError):
            newest = read()
        return newest

    return grpc.dynamic_ssl_server_credentials(
        newest, renewed, require_client_authentication=from_callers
    )
