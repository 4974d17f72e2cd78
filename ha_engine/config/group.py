"""The settings that must be equal on every node of a group.

Two nodes compare the digests of these settings when they connect (RULES.md#r32). A setting is
group-wide if different values would make two nodes compute or remember different things. A setting
is also group-wide if nodes with different values would wait differently for a silent node.
Addresses and capacities are not group-wide.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ha_engine.config.tree import Config

GROUP_WIDE = (
    "database.schema",
    "lease.ttl",
    "lease.renew_interval",
    "lease.margin",
    "event_sync.sync_timeout",
    "event_sync.heartbeat_interval",
    "event_sync.backup",
    "event_sync.backup_after",
    "receive.max_producers",
    "receive.dedup_window",
    "query.shuffle_partitions",
    "query.read_parallelism",
    "query.state_store",
    "query.spark",
)
"""The keys of the group-wide settings. The description of each key says "Group-wide." too."""
_OF_BACKUP = ("event_sync.backup", "event_sync.backup_after")
"""The settings that count only in a group with a backup. So the digest of other groups is that of
the releases before the backup, and a rolling upgrade from them is possible."""


def group_digest(config: Config) -> str:
    """The hex digest of the values of the group-wide settings."""
    tree = config.model_dump(mode="json", by_alias=True)
    has_backup = config.event_sync.backup is not None
    names = (name for name in GROUP_WIDE if has_backup or name not in _OF_BACKUP)
    values = {name: _at(tree, name) for name in names}
    text = json.dumps(values, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _at(tree: dict[str, Any], name: str) -> Any:
    value: Any = tree
    for part in name.split("."):
        value = value[part]
    return value
