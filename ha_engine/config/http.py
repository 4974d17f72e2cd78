"""The section of the HTTP interface."""

from __future__ import annotations

from pydantic import Field, model_validator

from ha_engine.config.quantities import Address, Duration, Size
from ha_engine.config.sections import Section
from ha_engine.config.server_tls import ServerTls, require_named, require_on_purpose


class HttpConfig(Section):
    """The HTTP interface for producers, operators and load balancers."""

    listen: Address = Field(
        default="127.0.0.1:8080",
        description="Address (host:port) that the HTTP interface listens on.",
    )
    advertise: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/]+$",
        description="URL at which producers and the peer reach this node; by default http:// or "
        "https:// and the listen address.",
    )
    tls: ServerTls = ServerTls()
    insecure: bool = Field(
        default=False,
        description="Written out as true, lets HTTP listen on an address that other hosts reach, "
        "without encryption or without tokens.",
    )
    max_body: Size = Field(
        default=16 << 20,
        description="Largest body of one request; a larger one is answered with 413.",
    )
    max_connections: int = Field(
        default=10_000,
        ge=1,
        description="Most connections at one time; more are answered with 503.",
    )
    keep_alive: Duration = Field(
        default=75.0,
        ge=1,
        description="How long a connection stays open without a request, or with half of one's "
        "headers.",
    )

    @property
    def url(self) -> str:
        """The URL of this node that it gives to others."""
        return self.advertise or f"{'https' if self.tls.pair else 'http'}://{self.listen}"

    @model_validator(mode="after")
    def _is_open_on_purpose_only(self) -> HttpConfig:
        require_on_purpose(self.listen, self.tls, self.insecure, "HTTP")
        require_named(self.listen, self.advertise)
        if self.tls.pair and self.url.startswith("http://"):
            raise ValueError(
                f"advertise is {self.advertise}, where tokens would be sent in plain text; "
                "with tls it begins with https://"
            )
        return self
