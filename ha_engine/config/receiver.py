"""The config tree of a receiver, which has some sections of a node's and a section of its own."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from ha_engine.config.access import AccessConfig
from ha_engine.config.http import HttpConfig
from ha_engine.config.ingest import IngestConfig
from ha_engine.config.quantities import Size
from ha_engine.config.sections import LogConfig, Section
from ha_engine.config.tree import access_problem, request_problem


class ReceiverLimits(Section):
    """The limits above which a receiver refuses further events (back-pressure)."""

    max_pending: Size = Field(
        default=64 << 20,
        description="Maximum size of the events that wait for the brokers; above it producers get "
        "429. Each event counts with 512 bytes besides its own.",
    )
    max_request_rows: int = Field(
        default=20_000, ge=1, description="Maximum number of events in one request."
    )


class ReceiverConfig(Section):
    """The whole config tree of one receiver."""

    application: Path = Field(
        default=Path("application.yaml"),
        description="File of the stream application, as the nodes have it.",
    )
    http: HttpConfig = HttpConfig()
    ingest: IngestConfig = IngestConfig()
    access: AccessConfig = AccessConfig()
    receive: ReceiverLimits = ReceiverLimits()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _sections_fit_each_other(self) -> ReceiverConfig:
        relations = (
            request_problem(self.http, self.ingest, self.receive.max_pending),
            access_problem(self.http, self.ingest, self.access),
        )
        if problems := [problem for problem in relations if problem]:
            raise ValueError("\n".join(problems))
        return self
