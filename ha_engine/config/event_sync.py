"""The section ``event_sync``: the connections between nodes, and the nodes' certificates."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from ha_engine.config.quantities import Address, Duration, Size
from ha_engine.config.sections import Name, Section


class TlsConfig(Section):
    """Files (PEM) with which a node proves its identity and checks its peers."""

    certificate: Path | None = Field(
        default=None,
        description="Certificate of this node; its subject alternative names contain node.id.",
    )
    key: Path | None = Field(default=None, description="Private key of the certificate.")
    ca: Path | None = Field(
        default=None,
        description="Certificate of the authority that signed all peers' certificates.",
    )

    @property
    def given(self) -> bool:
        """Whether the three files are set. The config is invalid if only some of them are set."""
        return self.certificate is not None

    @model_validator(mode="after")
    def _all_or_none(self) -> TlsConfig:
        missing = [name for name in ("certificate", "key", "ca") if getattr(self, name) is None]
        if missing and len(missing) < 3:
            raise ValueError(
                f"{' and '.join(missing)} missing: name the certificate, its key and the ca, or "
                "none of the three"
            )
        return self


class EventSyncConfig(Section):
    """The connections between the nodes of a group, over which their journals are kept equal."""

    listen: Address = Field(
        default="127.0.0.1:9893",
        description="Address (host:port) on which peers reach this node; unused without peers.",
    )
    advertise: Address | None = Field(
        default=None,
        description="Address (host:port) of this node that logs and status show; by default the "
        "listen address.",
    )
    peers: dict[Name, Address] = Field(
        default_factory=dict,
        description="The other nodes of the group: the node.id of each and the host:port on which "
        "it listens. Without peers the group has one node.",
    )
    backup: Name | None = Field(
        default=None,
        description="The node.id of the group's backup: a third node that follows without delaying "
        "any ack, and becomes the second disk while one of the two others is away. Group-wide.",
    )
    backup_after: Duration = Field(
        default=30.0,
        description="How long the active has no other node in sync before it takes the backup as "
        "the second disk. Group-wide.",
    )
    tls: TlsConfig = TlsConfig()
    insecure: bool = Field(
        default=False,
        description="Set to true to let nodes connect in plain text and trust the name that a peer "
        "gives.",
    )
    sync_timeout: Duration = Field(
        default=2.0,
        description="How long the active waits for a silent or slow peer before it continues "
        "without that peer. Group-wide.",
    )
    heartbeat_interval: Duration = Field(
        default=0.2, description="How often the active sends its peers a heartbeat. Group-wide."
    )
    max_in_flight: Size = Field(
        default=8 << 20,
        ge=1 << 20,
        description="Maximum size of the records that the active has sent to a peer and the peer "
        "has not acked.",
    )

    @model_validator(mode="after")
    def _peers_know_each_other(self) -> EventSyncConfig:
        if self.peers and not (self.tls.given or self.insecure):
            raise ValueError(
                "peers are configured without tls, so any host could pose as a peer; give "
                "tls.certificate, tls.key and tls.ca, or write 'insecure: true' if you trust the "
                "network between the nodes"
            )
        if self.insecure and self.tls.given:
            raise ValueError("insecure and tls exclude each other; remove one of them")
        return self

    @model_validator(mode="after")
    def _several_heartbeats_fit_into_the_timeout(self) -> EventSyncConfig:
        if not 0 < 3 * self.heartbeat_interval <= self.sync_timeout:
            raise ValueError(
                f"heartbeat_interval is {self.heartbeat_interval:g}s and sync_timeout "
                f"{self.sync_timeout:g}s: three heartbeats must fit into sync_timeout, or one late "
                "heartbeat loses the peer; raise sync_timeout or lower heartbeat_interval"
            )
        return self
