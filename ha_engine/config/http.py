"""The section of the HTTP interface."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ha_engine.config.quantities import Address, Duration, Size
from ha_engine.config.sections import Section
from ha_engine.config.server_tls import ServerTls, require_named, require_on_purpose


class HttpConfig(Section):
    """The HTTP interface for producers, operators and load balancers."""

    listen: Address = Field(
        default="127.0.0.1:8080",
        description="Address (host:port) on which the HTTP interface listens.",
    )
    advertise: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/@]+$",
        description="URL at which producers and the peer reach this node; by default http:// or "
        "https:// and the listen address.",
    )
    tls: ServerTls = ServerTls()
    insecure: bool = Field(
        default=False,
        description="Set to true to let HTTP listen on an address that other hosts reach, without "
        "encryption or without tokens.",
    )
    host_names: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$")]] = Field(
        default_factory=list,
        description="Further host names under which clients without a token reach this node, such "
        "as that of a load balancer. The names in listen, advertise and this host's own name need "
        "not be listed.",
    )
    max_body: Size = Field(
        default=16 << 20,
        ge=1 << 10,
        description="Maximum size of a request body; a larger one gets 413.",
    )
    max_connections: int = Field(
        default=10_000,
        ge=1,
        description="Maximum number of connections at one time. At the limit, a new connection "
        "takes the place of the one that has waited longest for a request; if all have a request "
        "in progress, it gets 503. The limit of open files (ulimit -n) may lower this number.",
    )
    keep_alive: Duration = Field(
        default=75.0,
        ge=1,
        description="How long a connection may stay open without a request, or with incomplete "
        "headers.",
    )

    @property
    def url(self) -> str:
        """The URL of this node that the node gives to producers and to its peers."""
        return self.advertise or f"{'https' if self.tls.pair else 'http'}://{self.listen}"

    @model_validator(mode="after")
    def _is_open_on_purpose_only(self) -> HttpConfig:
        require_on_purpose(self.listen, self.tls, self.insecure, "HTTP")
        require_named(self.listen, self.advertise)
        if self.tls.pair and self.url.startswith("http://"):
            raise ValueError(
                f"advertise is {self.advertise}, so producers would send tokens in plain text; "
                "with tls it must begin with https://"
            )
        return self
