"""The whole config tree of one node, and the relations between its sections."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pydantic import Field, model_validator

from ha_engine.config.access import AccessConfig
from ha_engine.config.event_sync import EventSyncConfig
from ha_engine.config.execution import ExecutionConfig
from ha_engine.config.http import HttpConfig
from ha_engine.config.ingest import DEFAULT_LISTEN, IngestConfig
from ha_engine.config.quantities import format_size
from ha_engine.config.sections import (
    DatabaseConfig,
    JournalConfig,
    LeaseConfig,
    LogConfig,
    Name,
    NodeConfig,
    ObserveConfig,
    OutboxConfig,
    PublishConfig,
    QueryConfig,
    ReceiveConfig,
    Section,
    SnapshotConfig,
)
from ha_engine.config.server_tls import listens_beyond_loopback
from ha_engine.system.runtime_dir import SOCKET_NAME, SOCKET_PATH_BYTES_MAX, derived_runtime_dir

_HAS_SECRET = re.compile(r"fs\.s3a\.(bucket\..+\.)?(access\.key|secret\.key|session\.token)$")


class Config(Section):
    """The whole config tree of one node."""

    group: Name = Field(
        default="default", description="Name of the group: the nodes that share one lease."
    )
    application: Path = Field(
        default=Path("application.yaml"),
        description="File of the stream application: its streams, queries and sinks. It may be a "
        "directory with several in applications/NAME. After a deployment the node runs what was "
        "deployed instead.",
    )
    node: NodeConfig = NodeConfig()
    database: DatabaseConfig = DatabaseConfig()
    lease: LeaseConfig = LeaseConfig()
    event_sync: EventSyncConfig = EventSyncConfig()
    http: HttpConfig = HttpConfig()
    ingest: IngestConfig = IngestConfig()
    access: AccessConfig = AccessConfig()
    receive: ReceiveConfig = ReceiveConfig()
    journal: JournalConfig = JournalConfig()
    execution: ExecutionConfig = ExecutionConfig()
    query: QueryConfig = QueryConfig()
    outbox: OutboxConfig = OutboxConfig()
    publish: PublishConfig = PublishConfig()
    observe: ObserveConfig = ObserveConfig()
    snapshot: SnapshotConfig = SnapshotConfig()
    log: LogConfig = LogConfig()

    @property
    def checkpoint_dir(self) -> Path:
        """The directory of this node's Spark checkpoints, unless they are on object storage.

        On a cluster it is below ``execution.checkpoint``, which both nodes share.
        """
        if self.execution.on_cluster and isinstance(self.execution.checkpoint, Path):
            return self.execution.checkpoint / self.group / self.node.id
        return self.query.checkpoint_dir or self.node.data_dir / "checkpoints"

    @property
    def checkpoint_url(self) -> str | None:
        """The place of the group's checkpoints on object storage, if they are there."""
        if self.execution.on_cluster and isinstance(self.execution.checkpoint, str):
            return f"{self.execution.checkpoint.rstrip('/')}/{self.group}"
        return None

    @property
    def no_rescale(self) -> str:
        """The reason why the number of partitions of a query's state cannot change, or nothing."""
        if (kind := self.query.state_store) != "rocksdb":
            return (
                "Spark cannot change the number of partitions with query.state_store: "
                f"{kind}; only rocksdb can"
            )
        if self.checkpoint_url:
            return "the number of partitions of a state on object storage cannot change yet"
        return ""

    @property
    def runtime_dir(self) -> Path:
        """The absolute directory of the node's socket, as configured or derived from data_dir."""
        given = self.node.runtime_dir
        return given.absolute() if given else derived_runtime_dir(self.node.data_dir, os.environ)

    @property
    def socket_path(self) -> Path:
        """The socket where the node process listens for its query process and its supervisor."""
        return self.runtime_dir / SOCKET_NAME

    @model_validator(mode="after")
    def _sections_fit_each_other(self) -> Config:
        relations = (
            request_problem(self.http, self.ingest, self.receive.max_pending),
            self._record_problem(),
            self._peers_problem(),
            self._backup_problem(),
            self._socket_problem(),
            access_problem(self.http, self.ingest, self.access),
            self._checkpoint_problem(),
        )
        if problems := [problem for problem in relations if problem]:
            raise ValueError("\n".join(problems))
        return self

    def _record_problem(self) -> str | None:
        if self.receive.max_record_rows <= self.query.max_events_per_batch:
            return None
        return (
            f"receive.max_record_rows ({self.receive.max_record_rows}) is more than "
            f"query.max_events_per_batch ({self.query.max_events_per_batch}): a batch has whole "
            "records and would exceed its limit; lower receive.max_record_rows"
        )

    def _peers_problem(self) -> str | None:
        if self.node.id not in self.event_sync.peers:
            return None
        return (
            f"event_sync.peers contains this node ({self.node.id}); list only the others, and "
            "give each node a different node.id"
        )

    def _backup_problem(self) -> str | None:
        backup, nodes = self.event_sync.backup, {self.node.id, *self.event_sync.peers}
        if backup is None or (backup in nodes and len(nodes) > 2):
            return None
        if backup not in nodes:
            return (
                f"event_sync.backup names {backup}, which is neither this node ({self.node.id}) "
                "nor one of event_sync.peers; correct the name"
            )
        return (
            f"event_sync.backup names {backup}, but the group has {len(nodes)} nodes: a backup is "
            "a third node; name both other nodes in event_sync.peers"
        )

    @property
    def is_backup(self) -> bool:
        """Whether this node is the group's backup (RULES.md#r37)."""
        return self.node.id == self.event_sync.backup

    def _checkpoint_problem(self) -> str | None:
        secret = sorted(key for key in self.query.spark if _HAS_SECRET.search(key))
        if self.checkpoint_url and secret:
            return (
                f"{', '.join(secret)} under query.spark can be seen by other users of this host; "
                "put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY into the environment of the node"
            )
        if not (self.execution.on_cluster and self.query.checkpoint_dir):
            return None
        return (
            "query.checkpoint_dir is unused, because the executors of a cluster keep the state in "
            "execution.checkpoint; remove query.checkpoint_dir"
        )

    def _socket_problem(self) -> str | None:
        length = len(os.fsencode(self.socket_path))
        if length <= SOCKET_PATH_BYTES_MAX:
            return None
        return (
            f"node.runtime_dir makes a socket path of {length} bytes and the system allows "
            f"{SOCKET_PATH_BYTES_MAX}: {self.socket_path}; choose a shorter directory"
        )


def request_problem(http: HttpConfig, ingest: IngestConfig, room: int) -> str | None:
    """The problem of a limit of requests above ``room``, receive.max_pending, if there is one."""
    for section, body_max in (("http", http.max_body), ("ingest", ingest.max_body)):
        if body_max > room:
            return (
                f"{section}.max_body ({format_size(body_max)}) is more than "
                f"receive.max_pending ({format_size(room)}): the largest request could never be "
                f"accepted; raise receive.max_pending or lower {section}.max_body"
            )
    return None


def access_problem(http: HttpConfig, ingest: IngestConfig, access: AccessConfig) -> str | None:
    """The problem of an interface that other hosts reach without a token, if there is one.

    An interface with ``insecure`` needs no token.
    """
    over_http = listens_beyond_loopback(http.listen) and not http.insecure
    over_grpc = listens_beyond_loopback(ingest.listen or DEFAULT_LISTEN) and not ingest.insecure
    lacking = [
        f"access.{right}"
        for right, wanted in (("admin", over_http), ("ingest", over_http or over_grpc))
        if wanted and not getattr(access, right)
    ]
    if not lacking:
        return None
    return (
        f"{' and '.join(lacking)} has no token, and other hosts reach this node; make one with "
        "'ha-engine config token', or write 'insecure: true' beside listen if you trust them"
    )
