"""The config tree of an observer, which has some sections of a node's and sections of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, model_validator

from ha_engine.auth import Access, Right
from ha_engine.config.access import Digest
from ha_engine.config.http import HttpConfig
from ha_engine.config.quantities import Duration, Size
from ha_engine.config.sections import LogConfig, Name, Section
from ha_engine.config.server_tls import listens_beyond_loopback

NodeUrl = Annotated[str, Field(pattern=r"^https?://[^\s/@]+$")]
"""The URL of a node, without a path."""


class ReadAccess(Section):
    """The callers who may read at the observer, which offers nothing else."""

    read: dict[Name, Digest] = Field(
        default_factory=dict,
        description="Callers that may read status, metrics and output, each with the SHA-256 of "
        "its token; with no entry, every caller may.",
    )

    @property
    def checks(self) -> Access:
        """The right of each token, which the server checks."""
        return Access.of({Right.READ: self.read})


class WatchConfig(Section):
    """The nodes that the observer asks, and the bounds of what it keeps."""

    nodes: dict[Name, NodeUrl] = Field(
        default_factory=dict,
        description="The nodes of the group: their node.id, with the URL of their HTTP interface.",
    )
    token: SecretStr | None = Field(
        default=None,
        description="Token with which the observer asks the nodes, best as env:NAME or file:/path; "
        "the nodes list it below access.read.",
    )
    interval: Duration = Field(
        default=1.0, ge=0.05, description="How often the observer asks each node."
    )
    timeout: Duration = Field(
        default=2.0, gt=0, description="How long a node may take for one answer."
    )
    data_dir: Path = Field(
        default=Path("var/observer"),
        description="Directory in which the observer keeps the newest output and the last state.",
    )
    keep_rows: int = Field(
        default=100_000,
        ge=1,
        description="Maximum number of rows that the observer keeps of each query. It keeps at "
        "least the newest batch.",
    )
    keep_size: Size = Field(
        default=64 << 20,
        description="Maximum size of the batches that the observer keeps of each query. It keeps "
        "at least the newest batch.",
    )


class ObserverConfig(Section):
    """The whole config tree of one observer."""

    watch: WatchConfig = WatchConfig()
    http: HttpConfig = HttpConfig()
    access: ReadAccess = ReadAccess()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _sections_fit_each_other(self) -> ObserverConfig:
        problems = []
        if not self.watch.nodes:
            problems.append(
                "watch.nodes has no node; list the nodes of the group, such as "
                "'node-a: http://10.0.0.11:8080'"
            )
        open_to_all = listens_beyond_loopback(self.http.listen) and not self.http.insecure
        if open_to_all and not self.access.read:
            problems.append(
                "access.read has no token, and other hosts reach this observer; make one with "
                "'ha-engine config token', or write 'insecure: true' beside listen if you trust "
                "them"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self
