"""The sections of the config tree: every key with its type, default and description.

Durations are seconds and sizes are bytes once loaded. In the file and in JSON both have a unit
(``3s``, ``64MiB``). ``config schema`` and the sample file contain the descriptions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from ha_engine.config.quantities import (
    DatabaseUrl,
    Duration,
    Size,
    as_text,
)

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Section(BaseModel):
    """A section of the tree: frozen; it refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class NodeConfig(Section):
    """The identity of this node, and the place of its files."""

    id: Name = Field(
        default="node-a", description="Name of this node, unique in its group and never reused."
    )
    data_dir: Path = Field(
        default=Path("var/node-a"),
        description="Directory of the journal and the outbox, on a disk that honours fsync.",
    )
    runtime_dir: Path | None = Field(
        default=None,
        description="Directory of the node's Unix socket; by default a short one is derived from "
        "data_dir below XDG_RUNTIME_DIR, /run or the temporary directory.",
    )


class DatabaseConfig(Section):
    """The PostgreSQL that contains the lease."""

    url: DatabaseUrl = Field(
        default=SecretStr("embedded"),
        description="URL of the PostgreSQL that both nodes share (postgresql://user@host/name), "
        "best as env:NAME or file:/path; 'embedded' starts one of its own for a single machine.",
    )
    embedded_dir: Path = Field(
        default=Path("var/postgres"), description="Directory of the embedded PostgreSQL's files."
    )
    schema_name: str = Field(
        default="ha_engine",
        alias="schema",
        pattern=r"^[a-z_][a-z0-9_]{0,62}$",
        description="Database schema of the engine's own tables. Group-wide.",
    )
    connect_timeout: Duration = Field(
        default=2.0, gt=0, description="How long one connection attempt may take."
    )


class LeaseConfig(Section):
    """How long a silent active keeps its role."""

    ttl: Duration = Field(
        default=5.0,
        description="How long the lease row must stand still before another node takes over. "
        "Group-wide.",
    )
    renew_interval: Duration = Field(
        default=1.0, description="How often the active renews its lease. Group-wide."
    )
    db_timeout: Duration = Field(
        default=1.0, description="When an unanswered call on the lease row counts as lost."
    )
    margin: Duration = Field(
        default=0.5,
        description="How long before the end of the ttl the active falls silent. Group-wide.",
    )

    @model_validator(mode="after")
    def _renewals_fit_into_the_ttl(self) -> LeaseConfig:
        if min(self.ttl, self.renew_interval, self.db_timeout, self.margin) <= 0:
            raise ValueError("ttl, renew_interval, db_timeout and margin must be longer than 0s")
        needed, room = self.renew_interval + 2 * self.db_timeout, self.ttl - self.margin
        if needed > room:
            raise ValueError(
                f"renew_interval + 2 * db_timeout is {needed:g}s and ttl - margin only {room:g}s: "
                "one slow answer of the database would suspend the active; raise ttl or lower them"
            )
        return self


class ReceiveConfig(Section):
    """How much the node accepts before it refuses events (back-pressure)."""

    max_pending: Size = Field(
        default=64 << 20,
        description="Most bytes that wait for their ack; beyond it producers get 429.",
    )
    max_backlog_events: int = Field(
        default=2_000_000,
        ge=1,
        description="Most accepted events that no query has read yet; beyond it producers get 429.",
    )
    max_record_rows: int = Field(
        default=20_000, ge=1, description="Most events in one journal record, which is one fsync."
    )
    max_producers: int = Field(
        default=10_000,
        ge=1,
        description="Most producers whose sequences are remembered. Group-wide.",
    )
    dedup_window: int = Field(
        default=64,
        ge=1,
        description="Latest sequences remembered of each producer, to answer retries. Group-wide.",
    )


class JournalConfig(Section):
    """The journal's files."""

    segment_size: Size = Field(
        default=64 << 20,
        ge=64 << 10,
        description="Size at which a segment file is closed and the next begins.",
    )
    min_free: Size = Field(
        default=512 << 20,
        description="Free space of the data directory's disk below which events are refused, also "
        "by the active while this node is in sync, so that what is accepted can still be worked "
        "off. Reloadable.",
    )
    max_size: Size = Field(
        default=0,
        description="Size of all segments from which events are refused likewise, until a snapshot "
        "lets go of the oldest; 0B sets no limit but min_free. Reloadable.",
    )

    @model_validator(mode="after")
    def _holds_two_segments(self) -> JournalConfig:
        if 0 < self.max_size < 2 * self.segment_size:
            raise ValueError(
                "max_size is less than two segments, and the newest one is never let go of; "
                "raise it, or lower segment_size"
            )
        return self


class QueryConfig(Section):
    """The Spark process."""

    master: str = Field(
        default="local[2]",
        pattern=r"^local(\[([1-9][0-9]*|\*)(, *[1-9][0-9]*)?\])?$",
        description="Spark master that runs the queries: local, local[N], local[*] or local[N,F], "
        "since Spark's workers read the journal from this host's disk. Group-wide.",
    )
    heap: Size = Field(default=1 << 30, ge=512 << 20, description="Heap of the Spark driver's JVM.")
    nice: int = Field(
        default=15,
        ge=0,
        le=19,
        description="How far Spark steps back where the host is short of CPU, so that acks and the "
        "lease do not wait for a micro-batch. Until its first batch has ended at most 5, so that "
        "it comes up.",
    )
    shuffle_partitions: int = Field(
        default=1,
        ge=1,
        description="Partitions of a shuffle, and so of each query's state. Group-wide.",
    )
    read_parallelism: int = Field(
        default=2,
        ge=1,
        description="Most tasks that read one micro-batch; sums of floating-point numbers depend "
        "on it. Group-wide.",
    )
    state_store: Literal["hdfs", "rocksdb"] = Field(
        default="hdfs",
        description="Spark's state store: hdfs keeps the state on the heap, rocksdb on the disk. "
        "Group-wide.",
    )
    checkpoint_dir: Path | None = Field(
        default=None,
        description="Directory of Spark's checkpoints, which need no durable disk; by default "
        "'checkpoints' below data_dir.",
    )
    max_events_per_batch: int = Field(
        default=200_000, ge=1, description="Most events in one micro-batch of a query."
    )
    min_batch_interval: Duration = Field(
        default=0.0, description="Shortest time from one micro-batch's start to the next one's."
    )
    idle_batch_interval: Duration = Field(
        default=0.5,
        description="How long input must pause before an empty micro-batch closes what has become "
        "due.",
    )
    start_timeout: Duration = Field(
        default=120.0,
        ge=1,
        description="How long a start of the Spark process may make no progress: no step reached, "
        "no CPU used, nothing read. Each start in a row that is ended for that has twice as long.",
    )
    class_archive: bool = Field(
        default=True,
        description="Keep an archive of Spark's classes below data_dir (some 190 MB), written in "
        "idle time after the first start, which makes later ones faster.",
    )
    restart_backoff_max: Duration = Field(
        default=30.0,
        gt=0,
        description="Longest wait before a dead Spark process is started again.",
    )
    attempts_per_batch: int = Field(
        default=2, ge=1, description="Failures of one micro-batch after which its query is FAILED."
    )
    spark: dict[str, Annotated[str, BeforeValidator(as_text)]] = Field(
        default_factory=dict,
        description="Further Spark settings, by their full name (spark.sql.…: value). Group-wide.",
    )

    @model_validator(mode="after")
    def _settings_are_sparks(self) -> QueryConfig:
        strange = sorted(key for key in self.spark if not key.startswith("spark."))
        if strange:
            raise ValueError(
                f"{', '.join(strange)} under 'spark' is no Spark setting; write its full name, "
                "which starts with 'spark.'"
            )
        if "spark.master" in self.spark:
            raise ValueError("spark.master under 'spark' is the key query.master; set that one")
        return self


class OutboxConfig(Section):
    """The finished micro-batches that wait to be published."""

    max_batches: int = Field(
        default=64,
        ge=1,
        description="Most batches of a query that wait; beyond it the query waits.",
    )
    max_bytes: Size = Field(
        default=256 << 20,
        ge=1 << 20,
        description="Most bytes of a query's batches that wait; beyond it the query waits.",
    )


class PublishConfig(Section):
    """Delivery to the sinks."""

    timeout: Duration = Field(
        default=10.0,
        gt=0,
        description="How long one delivery to a sink may take, as a duration; it never outlasts "
        "the lease.",
    )
    retry_backoff_max: Duration = Field(
        default=5.0, gt=0, description="Longest wait before a failed delivery is tried again."
    )


class SnapshotConfig(Section):
    """Copies of a node's state in the database; a node that lost its disk restores from them."""

    interval: Duration = Field(
        default=60.0,
        ge=0,
        description="How often a snapshot is taken while events come; 0s takes only those that are "
        "asked for. Reloadable.",
    )
    revisions_to_keep: int = Field(
        default=2, ge=1, description="Latest snapshots that stay in the database. Reloadable."
    )


class LogConfig(Section):
    """The log that the node writes to stderr."""

    format: Literal["human", "json"] = Field(
        default="human",
        description="'human' for a terminal, 'json' for one JSON object a line. Reloadable.",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important level that is written. Reloadable."
    )
