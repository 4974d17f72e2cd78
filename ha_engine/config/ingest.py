"""The section of the gRPC interface for producers."""

from __future__ import annotations

from pydantic import Field, model_validator

from ha_engine.config.quantities import Address, Size
from ha_engine.config.sections import Section
from ha_engine.config.server_tls import ServerTls, require_named, require_on_purpose

DEFAULT_LISTEN = "127.0.0.1:9894"


class IngestConfig(Section):
    """The gRPC interface for producers."""

    listen: Address | None = Field(
        default=None,
        description="Address (host:port) on which gRPC listens for producers; by default "
        f"{DEFAULT_LISTEN}, unless another process of this host uses it.",
    )
    advertise: Address | None = Field(
        default=None,
        description="Address (host:port) at which producers reach gRPC on this node, by default "
        "the listen address. A passive node refers producers to the address that the active "
        "advertises.",
    )
    tls: ServerTls = ServerTls()
    insecure: bool = Field(
        default=False,
        description="Set to true to let gRPC listen on an address that other hosts reach, without "
        "encryption or without tokens.",
    )
    max_body: Size = Field(
        default=4 << 20,
        ge=1 << 10,
        description="Maximum size of a request's events; a larger request is refused. gRPC buffers "
        "an incomplete request of each stream, so max_streams such requests must fit into memory.",
    )
    max_streams: int = Field(
        default=250,
        ge=1,
        description="Maximum number of producers' gRPC streams at one time; further ones are "
        "refused.",
    )
    max_in_flight: int = Field(
        default=32,
        ge=1,
        description="Maximum number of requests of one gRPC stream that wait for their answer; "
        "at the limit the node stops reading from the stream.",
    )

    @model_validator(mode="after")
    def _is_open_on_purpose_only(self) -> IngestConfig:
        listen = self.listen or DEFAULT_LISTEN
        require_on_purpose(listen, self.tls, self.insecure, "gRPC")
        require_named(listen, self.advertise)
        return self
