"""The kinds of histories."""

from __future__ import annotations

from tests.dst.history import History
from tests.dst.journal_history import JournalHistory
from tests.dst.kafka_history import KafkaHistory
from tests.dst.kafka_sink_history import KafkaSinkHistory
from tests.dst.outbox_history import OutboxHistory
from tests.dst.pair.history import PairHistory, SharedHistory, WarmHistory
from tests.dst.publish_history import PublishHistory
from tests.dst.snapshot_history import SnapshotHistory

KINDS: dict[str, type[History]] = {
    "journal": JournalHistory,
    "outbox": OutboxHistory,
    "publish": PublishHistory,
    "pair": PairHistory,
    "warm": WarmHistory,
    "shared": SharedHistory,
    "kafka": KafkaHistory,
    "kafka-sink": KafkaSinkHistory,
    "snapshot": SnapshotHistory,
}
