"""A producer that breaks: what a topic reports of it, without brokers."""

from __future__ import annotations

import ctypes
import queue
from pathlib import Path
from typing import Any

import pytest

from ha_engine.connectors.kafka.log import KafkaLogOptions
from ha_engine.errors import SourceRefused
from ha_engine.receiver.records import Records
from ha_engine.receiver.topic import Topic
from tests.sync.authority import Authority

HANG_SECONDS = 60.0
OUT_OF_ORDER = 45


def options(**more: Any) -> KafkaLogOptions:
    return KafkaLogOptions.model_validate(
        {"brokers": ["127.0.0.1:9"], "topic": "orders", "timeout": "300s", **more}
    )


def break_fatally(producer: Any) -> None:
    """Let librdkafka end ``producer`` as when a broker loses the order of its records."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    library = ctypes.CDLL(next(line.split()[-1] for line in maps if "librdkafka" in line))
    # A Python object begins with its count of references and its type. The handle is next.
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__)
    assert library.rd_kafka_test_fatal_error(handle, OUT_OF_ORDER, b"on purpose") == 0


def test_a_fatal_error_is_reported_and_fails_what_waits() -> None:
    reasons: queue.Queue[str] = queue.Queue()
    errors: queue.Queue[Any] = queue.Queue()
    topic = Topic(options(), reasons.put)
    topic._open()
    topic.write(Records([b"{}"], None, []), errors.put)
    break_fatally(topic._producer)
    assert "can write no more: " in (reason := reasons.get(timeout=HANG_SECONDS))
    assert "on purpose" in reason
    topic.write(Records([b"{}", b"{}"], None, []), errors.put)
    decided = [errors.get(timeout=HANG_SECONDS) for _ in range(2)]
    assert {error.name() for error in decided} == {"_PURGE_QUEUE", "_FATAL"}
    topic.close()


def test_settings_that_become_wrong_later_are_refused_and_not_lost(tmp_path: Path) -> None:
    ca = Path(Authority(tmp_path).files("a", san="IP:127.0.0.1")["ca"])
    topic = Topic(options(tls={"ca_file": str(ca)}), print)
    ca.write_text("not a certificate")
    with pytest.raises(SourceRefused, match="the options of topic orders at "):
        topic._open()
