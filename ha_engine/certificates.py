"""The files with which a server shows who it is, looked at before anything listens with them."""

from __future__ import annotations

import ssl

from ha_engine.config.server_tls import ServerTls
from ha_engine.errors import ConfigError


def require_pair(tls: ServerTls, section: str) -> None:
    """Raises ConfigError where its files cannot be read, or do not belong together."""
    if not (tls.certificate and tls.key):
        return
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # A key that needs a passphrase is refused: nobody is there to type it.
        context.load_cert_chain(tls.certificate, tls.key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{section}: {tls.certificate} and {tls.key} are no certificate and its key that can "
            f"be read: {getattr(error, 'strerror', None) or error}"
        ) from error
