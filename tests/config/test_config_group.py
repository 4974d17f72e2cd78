"""The digest of the settings that must be equal on every node."""

from __future__ import annotations

import pytest

from ha_engine.config import Config
from ha_engine.config.group import GROUP_WIDE, group_digest
from ha_engine.config.load import settings


def digest(**sections: object) -> str:
    return group_digest(Config.model_validate(sections))


@pytest.mark.parametrize(
    "own",
    [
        {"node": {"id": "node-b", "data_dir": "elsewhere"}},
        {"event_sync": {"listen": "127.0.0.1:1", "peers": {"b": "b:1"}, "insecure": True}},
        {"http": {"listen": "127.0.0.1:1"}},
        {"database": {"url": "postgresql://elsewhere/db"}},
        {"query": {"heap": "2GiB"}},
        {"execution": {"master": "local[1]"}},
    ],
)
def test_node_settings_do_not_change_the_group_digest(own: dict) -> None:
    assert digest(**own) == digest()


@pytest.mark.parametrize(
    "common",
    [
        {"database": {"schema": "other"}},
        {"lease": {"ttl": "6s"}},
        {"lease": {"renew_interval": "900ms"}},
        {"lease": {"margin": "400ms"}},
        {"event_sync": {"sync_timeout": "3s"}},
        {"event_sync": {"heartbeat_interval": "100ms"}},
        {"receive": {"max_producers": 5}},
        {"receive": {"dedup_window": 5}},
        {"query": {"shuffle_partitions": 2}},
        {"query": {"read_parallelism": 1}},
        {"query": {"state_store": "rocksdb"}},
        {"query": {"spark": {"spark.sql.ansi.enabled": "false"}}},
    ],
)
def test_settings_that_affect_batches_or_decisions_change_the_group_digest(common: dict) -> None:
    assert digest(**common) != digest()


def test_order_of_spark_settings_does_not_change_the_group_digest() -> None:
    one = {"spark.a": "1", "spark.b": "2"}
    other = {"spark.b": "2", "spark.a": "1"}
    assert digest(query={"spark": one}) == digest(query={"spark": other})


def test_a_setting_is_group_wide_exactly_when_its_description_says_so() -> None:
    said = {".".join(s.key) for s in settings() if "Group-wide" in s.description}
    assert said == set(GROUP_WIDE)


def test_backup_is_group_wide_and_changes_no_digest_of_a_group_without_one() -> None:
    """So a group without a backup can be upgraded one node after the other."""
    trio = {"peers": {"node-b": "b:1", "node-c": "c:1"}, "insecure": True}
    assert digest(event_sync={**trio, "backup_after": "9s"}) == digest(event_sync=trio) == digest()
    backups = [{**trio, "backup": name} for name in ("node-b", "node-c")]
    backups.append({**backups[0], "backup_after": "9s"})
    assert len({digest(event_sync=one) for one in backups}) == 3
