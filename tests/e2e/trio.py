"""Two nodes and their backup (RULES.md#r37)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.e2e.pair import NAMES, Pair, running_pair
from tests.waiting import wait_until

BACKUP = "node-c"
SYNC_TIMEOUT_SECONDS = 1.0
TIMES = {"sync_timeout": f"{SYNC_TIMEOUT_SECONDS}s", "backup_after": "1s", "backup": BACKUP}


class Trio(Pair):
    """The regular nodes ``a`` and ``b``, and the ``backup``."""

    names = (*NAMES, BACKUP)

    def __init__(
        self,
        directory: Path,
        application: str,
        database_url: str,
        node: Callable[..., NodeUnderTest] = NodeUnderTest,
        /,
        **sections: dict[str, Any],
    ) -> None:
        super().__init__(directory, application, database_url, node, event_sync=TIMES, **sections)
        self.backup = self.nodes[BACKUP]

    def require_active(self) -> NodeUnderTest:
        """Return the active, once there is one."""
        wait_until(lambda: self.active() is not None, within=SPARK_SECONDS, every=0.1)
        active = self.active()
        assert active is not None
        return active

    def member(self) -> NodeUnderTest:
        """Return the node that is neither the active nor the backup."""
        active = self.require_active()
        return next(n for n in self.nodes.values() if n is not active and n is not self.backup)

    def wait_in_sync(self, *names: str) -> None:
        wait_until(lambda: self._in_sync() == set(names), within=SPARK_SECONDS, every=0.1)

    def _in_sync(self) -> set[str]:
        active = self.active()
        status = active.status() if active else None
        return set(status["lease"]["in_sync"]) if status else set()

    def wait_regular(self) -> None:
        """Return once the two regular nodes are in sync and the idle backup has all records."""
        self.wait_in_sync(*NAMES)
        wait_until(self._backup_is_level, within=SPARK_SECONDS, every=0.1)

    def _backup_is_level(self) -> bool:
        if self.backup.status() is None:
            return False
        node = self.backup.http.get("/v1/cluster").json()["nodes"][BACKUP]
        return node["role"] == "backup" and not node["in_sync"] and node["lag_records"] == 0

    def lose(self, *nodes: NodeUnderTest) -> None:
        for node in nodes:
            node.kill_everything()


@contextlib.contextmanager
def running_trio(trio: Trio) -> Iterator[Trio]:
    """Run the nodes, the backup last: else it would be the second disk until the second node
    comes."""
    with running_pair(trio):
        trio.wait_in_sync(*NAMES)
        with running(trio.backup):
            trio.wait_regular()
            yield trio
