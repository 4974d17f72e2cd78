"""The settings of the simulated group: its application, and its limits and times in seconds."""

from __future__ import annotations

import pyarrow as pa

from ha_engine.config import ReceiveConfig
from ha_engine.core import Deployment, LeaseTiming, MarkLimits, PeerTiming, QueryPlan, RestartPolicy
from ha_engine.receive.producers import ProducerTable

GROUP, APPLICATION = "test", "application"
TIMING = LeaseTiming(ttl=3.0, renew_interval=0.8, margin=0.4)
PEERS = PeerTiming(heartbeat_interval=0.5, sync_timeout=1.6)
LIMITS = MarkLimits(
    max_events_per_batch=60,
    min_batch_interval=0.8,
    idle_batch_interval=2.5,
    outbox_batches_max=4,
    outbox_bytes_max=100_000,
)
RESTARTS = RestartPolicy(attempts_per_batch=3, backoff_max=2.0)
PLANS = (
    QueryPlan("delays", "v1", frozenset({"flights"}), ("board",)),
    QueryPlan("storms", "v1", frozenset({"flights", "weather"}), ("archive",)),
)
STREAMS = {name: pa.schema([("n", pa.int64())]) for name in ("flights", "weather")}
RECEIVE = ReceiveConfig()
STUCK_SECONDS = 6.0
SEGMENT_BYTES = 2500
SNAPSHOT_INTERVAL = 1.5
LOOK_SECONDS = 5.0
REVISIONS_KEPT = 2


def deployment() -> Deployment:
    return Deployment(APPLICATION, PLANS, LIMITS, RESTARTS)


def producer_table() -> ProducerTable:
    return ProducerTable(RECEIVE.max_producers, RECEIVE.dedup_window)
