"""The settings of the simulated group: its application, and its limits and times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from ha_engine.config import ReceiveConfig
from ha_engine.core import Deployment, LeaseTiming, MarkLimits, PeerTiming, QueryPlan, RestartPolicy
from ha_engine.receive.producers import ProducerTable

GROUP = "test"
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
    QueryPlan("delays", "v0", frozenset({"flights"}), ("board",), "reset"),
    QueryPlan("storms", "v0", frozenset({"flights", "weather"}), ("archive",), "reset"),
)
STREAMS = {name: pa.schema([("n", pa.int64())]) for name in ("flights", "weather")}
RECEIVE = ReceiveConfig()
STUCK_SECONDS = 6.0
SEGMENT_BYTES = 2500
SNAPSHOT_INTERVAL = 1.5
LOOK_SECONDS = 5.0
REVISIONS_KEPT = 2


@dataclass(frozen=True)
class Application:
    """The application file that the operator deployed as number ``number``."""

    number: int = 0
    plans: tuple[QueryPlan, ...] = PLANS

    @property
    def digest(self) -> str:
        return " ".join(f"{plan.name} {plan.digest} {plan.on_change}" for plan in self.plans)

    def definition_of(self, query: str) -> str:
        """The digest of a query's definition."""
        [digest] = [plan.digest for plan in self.plans if plan.name == query]
        return digest

    def changed(self, query: str, on_change: str) -> Application:
        """The next application, with another definition of one query."""
        number = self.number + 1
        plans = tuple(
            replace(plan, digest=f"v{number}", on_change=on_change) if plan.name == query else plan
            for plan in self.plans
        )
        return Application(number, plans)

    def again(self, former: Application) -> Application:
        """The next application, which is the same as ``former``."""
        return Application(self.number + 1, former.plans)

    def deployment(self) -> Deployment:
        return Deployment(self.digest, self.plans, LIMITS, RESTARTS)


def producer_table() -> ProducerTable:
    return ProducerTable(RECEIVE.max_producers, RECEIVE.dedup_window)
