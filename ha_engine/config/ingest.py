"""The section of the gRPC interface for producers."""

from __future__ import annotations

from pydantic import Field, model_validator

from ha_engine.config.quantities import Address
from ha_engine.config.sections import Section
from ha_engine.config.server_tls import ServerTls, require_named, require_on_purpose

DEFAULT_LISTEN = "127.0.0.1:9894"


class IngestConfig(Section):
    """The gRPC interface for producers; http.max_body limits its requests too."""

    listen: Address | None = Field(
        default=None,
        description="Address (host:port) that gRPC listens on for producers; by default "
        f"{DEFAULT_LISTEN}, unless another process of this host has it.",
    )
    advertise: Address | None = Field(
        default=None,
        description="Address (host:port) at which producers reach it, which a passive tells them; "
        "by default the listen address.",
    )
    tls: ServerTls = ServerTls()
    insecure: bool = Field(
        default=False,
        description="Written out as true, lets gRPC listen on an address that other hosts reach, "
        "without encryption or without tokens.",
    )
    max_streams: int = Field(
        default=1_000,
        ge=1,
        description="Most streams of producers at one time; more are refused.",
    )
    max_in_flight: int = Field(
        default=32,
        ge=1,
        description="Most requests of one stream that wait for their answer; beyond it the node "
        "reads no further.",
    )

    @model_validator(mode="after")
    def _is_open_on_purpose_only(self) -> IngestConfig:
        listen = self.listen or DEFAULT_LISTEN
        require_on_purpose(listen, self.tls, self.insecure, "gRPC")
        require_named(listen, self.advertise)
        return self
