"""The sections of the config tree: every key with its type, default and description.

In Python a duration is in seconds and a size is in bytes. In the config file and in JSON durations
and sizes have a unit (``3s``, ``64MiB``). The command ``ha-engine config schema`` and the sample
file show the descriptions.
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
    """A section of the config tree. A section is frozen and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class NodeConfig(Section):
    """The name of this node, and the directories of its files."""

    id: Name = Field(
        default="node-a", description="Name of this node, unique in its group and never reused."
    )
    data_dir: Path = Field(
        default=Path("var/node-a"),
        description="Directory of the journal and the outbox, on a disk that honours fsync.",
    )
    runtime_dir: Path | None = Field(
        default=None,
        description="Directory of the node's Unix socket; by default a short path derived from "
        "data_dir, below XDG_RUNTIME_DIR, /run or the temporary directory.",
    )

    @model_validator(mode="after")
    def _data_has_a_directory(self) -> NodeConfig:
        if self.data_dir.absolute() == Path("/"):
            raise ValueError("data_dir is /; give the node a directory of its own")
        return self


class DatabaseConfig(Section):
    """The PostgreSQL that contains the lease."""

    url: DatabaseUrl = Field(
        default=SecretStr("embedded"),
        description="URL of the PostgreSQL that both nodes share (postgresql://user@host/name), "
        "best as env:NAME or file:/path; 'embedded' starts a PostgreSQL for a single machine.",
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

    @model_validator(mode="after")
    def _schema_is_ours(self) -> DatabaseConfig:
        if self.schema_name.startswith("pg_") or self.schema_name == "information_schema":
            raise ValueError(
                f"schema {self.schema_name} belongs to PostgreSQL; choose another name"
            )
        return self


class LeaseConfig(Section):
    """The times after which another node may take over from a silent active."""

    ttl: Duration = Field(
        default=5.0,
        le=3600,
        description="How long the lease row must be unchanged before another node may take over. "
        "Group-wide.",
    )
    renew_interval: Duration = Field(
        default=1.0, description="How often the active renews its lease. Group-wide."
    )
    db_timeout: Duration = Field(
        default=1.0,
        description="How long a call on the lease row may take before it counts as lost.",
    )
    margin: Duration = Field(
        default=0.5,
        description="How long before the end of the ttl the active suspends itself. Group-wide.",
    )

    @model_validator(mode="after")
    def _renewals_fit_into_the_ttl(self) -> LeaseConfig:
        if min(self.ttl, self.renew_interval, self.db_timeout, self.margin) <= 0:
            raise ValueError("ttl, renew_interval, db_timeout and margin must be longer than 0s")
        needed, room = self.renew_interval + 2 * self.db_timeout, self.ttl - self.margin
        if needed > room:
            raise ValueError(
                f"renew_interval + 2 * db_timeout is {needed:g}s and ttl - margin only {room:g}s: "
                "one slow answer of the database would suspend the active; raise ttl, or lower the "
                "others"
            )
        return self


class ReceiveConfig(Section):
    """The limits above which the node refuses further events (back-pressure)."""

    max_pending: Size = Field(
        default=64 << 20,
        description="Maximum size of the events that wait for their ack; above it producers get "
        "429.",
    )
    max_backlog_events: int = Field(
        default=2_000_000,
        ge=1,
        description="Maximum number of accepted events that a query has not read; at the limit "
        "producers of the streams that it reads get 429.",
    )
    max_record_rows: int = Field(
        default=20_000,
        ge=1,
        description="Maximum number of events in one journal record, which is one fsync.",
    )
    max_producers: int = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description="Maximum number of producers whose sequences the node remembers. A new "
        "producer gets 429 if the node would have to forget one that sent in the last ten minutes. "
        "Group-wide.",
    )
    dedup_window: int = Field(
        default=64,
        ge=1,
        le=100_000,
        description="Number of latest sequences that the node remembers of each producer, to "
        "recognize retries. Group-wide.",
    )
    forward: bool = Field(
        default=False,
        description="Whether the node takes events while it is not the active, and forwards them "
        "to the active, which takes them with the same setting. Then clients may send to any "
        "node, or to both nodes at once with a producer id and a sequence.",
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
        description="Minimum free space on the disk of data_dir. With less free space the node "
        "refuses events, and the active refuses events too while this node is in sync. The node "
        "needs this space to process the events that it has already accepted. Reloadable.",
    )
    max_size: Size = Field(
        default=0,
        description="Size of all segments of the journal at which events are refused, as with less "
        "free space than min_free, until a snapshot trims the journal. With 0B only min_free "
        "limits the journal. Reloadable.",
    )

    @model_validator(mode="after")
    def _holds_two_segments(self) -> JournalConfig:
        if 0 < self.max_size < 2 * self.segment_size:
            raise ValueError(
                "max_size is less than two segments, and the newest segment is never trimmed; "
                "raise max_size, or lower segment_size"
            )
        return self


_FIXED_IN_SPARK = (
    "spark.authenticate",
    "spark.driver.bindAddress",
    "spark.driver.host",
    "spark.driver.blockManager.port",
    "spark.network.crypto",
)


class QueryConfig(Section):
    """The Spark process."""

    heap: Size = Field(default=1 << 30, ge=512 << 20, description="Heap of the Spark driver's JVM.")
    nice: int = Field(
        default=15,
        ge=0,
        le=19,
        description="Nice value of the Spark process, so that acks and the lease do not wait for a "
        "micro-batch when CPU is short. The process starts with a nice value of at most 5, and "
        "keeps it until the first batch has ended, so that Spark can start.",
    )
    shuffle_partitions: int = Field(
        default=1,
        ge=1,
        description="Number of partitions of a shuffle, and so of the state of each query that has "
        "no state_partitions in the application. Group-wide.",
    )
    read_parallelism: int = Field(
        default=2,
        ge=1,
        description="Maximum number of tasks that read one micro-batch; sums of floating-point "
        "numbers depend on it. Group-wide.",
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
        default=200_000, ge=1, description="Maximum number of events in one micro-batch of a query."
    )
    min_batch_interval: Duration = Field(
        default=0.0, description="Minimum time between the starts of two micro-batches."
    )
    idle_batch_interval: Duration = Field(
        default=0.5,
        description="How long input must pause before an empty micro-batch closes the windows that "
        "are due.",
    )
    start_timeout: Duration = Field(
        default=120.0,
        ge=1,
        description="How long a start of the Spark process may make no progress: no step reached, "
        "no CPU used, nothing read. After this time the node ends the process, and gives the next "
        "start twice as much time.",
    )
    class_archive: bool = Field(
        default=True,
        description="Keep an archive of Spark's classes below data_dir (about 190 MB), which makes "
        "starts faster. The node writes the archive in idle time after the first start.",
    )
    restart_backoff_max: Duration = Field(
        default=30.0,
        gt=0,
        description="Maximum wait before the node starts a dead Spark process again.",
    )
    attempts_per_batch: int = Field(
        default=2,
        ge=1,
        description="Number of failures of one micro-batch after which its query is FAILED.",
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
                f"{', '.join(strange)} under 'spark' is no Spark setting; write the full name, "
                "which starts with 'spark.'"
            )
        if "spark.master" in self.spark:
            raise ValueError(
                "spark.master under 'spark' has its own key; set execution.master instead"
            )
        fixed = sorted(key for key in self.spark if key.startswith(_FIXED_IN_SPARK))
        if fixed:
            raise ValueError(
                f"{', '.join(fixed)} under 'spark' cannot be changed; remove it, since the engine "
                "sets where Spark listens, and for whom"
            )
        return self


class OutboxConfig(Section):
    """The finished micro-batches that wait to be published."""

    max_batches: int = Field(
        default=64,
        ge=1,
        description="Maximum number of a query's batches that wait to be published; at the limit "
        "the query starts no new batch.",
    )
    max_bytes: Size = Field(
        default=256 << 20,
        ge=1 << 20,
        description="Maximum size of a query's batches that wait to be published; at the limit the "
        "query starts no new batch.",
    )


class ObserveConfig(Section):
    """The published batches that the node keeps for observers."""

    keep_batches: int = Field(
        default=0,
        ge=0,
        description="Maximum number of newest published batches of each query that observers can "
        "get, such as 64. With 0 no caller can get rows of the output from the node.",
    )
    keep_size: Size = Field(
        default=16 << 20,
        description="Maximum size of the newest published batches of each query that observers can "
        "get. A larger batch is not kept.",
    )


class PublishConfig(Section):
    """Delivery to the sinks."""

    timeout: Duration = Field(
        default=10.0,
        gt=0,
        description="How long one delivery to a sink may take; no delivery outlasts the lease.",
    )
    retry_backoff_max: Duration = Field(
        default=5.0, gt=0, description="Maximum wait before a failed delivery is tried again."
    )


class SnapshotConfig(Section):
    """Copies of a node's state in the database; a node that lost its disk restores from them."""

    interval: Duration = Field(
        default=60.0,
        ge=0,
        description="How often the active begins a snapshot while events arrive; 0s takes "
        "snapshots only on request. Reloadable.",
    )
    revisions_to_keep: int = Field(
        default=2,
        ge=1,
        description="Number of latest snapshots that stay in the database. Reloadable.",
    )


class LogConfig(Section):
    """The log that the node writes to stderr."""

    format: Literal["human", "json"] = Field(
        default="human",
        description="'human' for a terminal, 'json' for one JSON object a line. Reloadable.",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that the node logs. Reloadable."
    )
