"""The certificate of a server, and the rule for servers without one."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from ha_engine.config.quantities import is_loopback, is_unspecified, split_address
from ha_engine.config.sections import Section


class ServerTls(Section):
    """Files (PEM) with which this node proves its identity to callers. The callers must trust the
    authority that signed the certificate."""

    certificate: Path | None = Field(
        default=None, description="Certificate of this host, with all intermediate certificates."
    )
    key: Path | None = Field(default=None, description="Private key of the certificate.")

    @property
    def pair(self) -> tuple[Path, Path] | None:
        """The certificate and its key, or None. The config is invalid if only one is set."""
        return (self.certificate, self.key) if self.certificate and self.key else None

    @model_validator(mode="after")
    def _both_or_none(self) -> ServerTls:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("name the certificate and its key, or neither")
        return self


def listens_beyond_loopback(listen: str) -> bool:
    """Whether other hosts can reach the address ``listen``."""
    return not is_loopback(split_address(listen)[0])


def require_on_purpose(listen: str, tls: ServerTls, insecure: bool, what: str) -> None:
    """Raise ValueError if other hosts can connect in plain text and ``insecure`` is False."""
    if listens_beyond_loopback(listen) and not (tls.pair or insecure):
        raise ValueError(
            f"listen is {listen}, which other hosts reach, and {what} does not encrypt without "
            "tls.certificate and tls.key; give both, listen on 127.0.0.1, or write "
            "'insecure: true' if you trust the network"
        )


def require_named(listen: str, advertise: str | None) -> None:
    """Raise ValueError if a node would refer producers to an address that means every interface,
    such as 0.0.0.0."""
    if advertise is None and is_unspecified(split_address(listen)[0]):
        raise ValueError(
            f"listen is {listen}, every address of this host; set advertise to the address at "
            "which producers and the other node reach this host"
        )
