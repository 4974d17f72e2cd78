"""The tests of the edges are tested: each breakage of a rule outside the core is found out.

The core has mutants of its own, in ``tests.core`` and ``tests.sim``; here are those of its that a
unit test finds and no history does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import broken

HERE = Path(__file__).parent
TESTS_FAILED = 1


@dataclass(frozen=True, slots=True)
class Breakage:
    """``old`` stands exactly once in ``module``, and ``killer`` must fail with ``new``."""

    rule: str
    module: str
    old: str
    new: str
    killer: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.module}: {' '.join(self.old.split())[:60]}"


BREAKAGES = (
    Breakage("R1", "postgres.lease_store", "*_is(expected), *_here", "*_here",
             "postgres/test_lease_contract.py"),
    Breakage("R5", "postgres.lease_store", ", *_here(wanted))", ")",
             "postgres/test_lease_contract.py"),
    Breakage("R5", "postgres.lease_store", ".where(*_here(row))", "",
             "postgres/test_lease_contract.py"),
    Breakage("R2", "directory_lock", "fcntl.LOCK_EX | fcntl.LOCK_NB",
             "fcntl.LOCK_SH | fcntl.LOCK_NB", "journal/test_data_dir.py"),
    Breakage("R4", "directory_lock", "name if here == _whereabouts(lock) else None", "name or None",
             "journal/test_data_dir.py"),
    Breakage("R5", "core.high_water", " or self.above(row):", ":", "component/test_releasing.py"),
    Breakage("R5", "core.high_water", " or row.identity != identity", "",
             "component/test_releasing.py"),
    Breakage("R8", "journal.journal", "        self.retire()\n        self.truncate_after",
             "        self.truncate_after", "journal/test_given_up.py"),
    Breakage("R16", "driver", "            await self._kept", "            pass",
             "postgres/test_takeover.py"),
    Breakage("R16", "core.leading", "peer.promised_at(member.journal_id)",
             "max(peer.promised_at(name) for name in (*peer._promised_at, ''))",
             "core/test_promises.py"),
    Breakage("I15", "core.progress", "self._batch_at.get(query, self._linked_at)",
             "max(self._batch_at.values(), default=self._linked_at)", "core/test_catching_up.py"),
    Breakage("R9", "core.leading", "self._goal = self._next_goal = last",
             "self._goal = self._next_goal = 0", "core/test_catching_up.py"),
    Breakage("R17", "publish.sink",
             "min(self._until - time.monotonic(), self._authority.remaining_seconds())",
             "self._until - time.monotonic()", "publish/test_publisher.py"),
    Breakage("I9", "postgres.snapshot_store", "chunk_rows.sound_of(draft) == chunks", "true()",
             "postgres/test_snapshot_store.py"),
    Breakage("I10", "snapshot.chunks", "if digest_of(content) != chunk.digest:", "if False:",
             "snapshot/test_chunks_and_manifest.py"),
    Breakage("I10", "snapshot.verification", "if manifest.position != revision.position:",
             "if False:", "snapshot/test_archive.py"),
    Breakage("R18", "query.offsets", "if len(marks) != 1:", "if False:", "query/test_offsets.py"),
    Breakage("R19", "outbox.outbox", "if number <= shelf.last:", "if False:",
             "publish/test_outbox.py"),
    Breakage("R21", "query.checkpoints", "if not usable:\n            _set_aside", "if False:\n"
             "            _set_aside", "query/test_checkpoints.py"),
    Breakage("R24", "postgres.ledger", "ledger.epoch == epoch, ", "",
             "publish/test_postgres_sink.py"),
    Breakage("R24", "postgres.ledger", ", ledger.batch == batch - 1", "",
             "publish/test_postgres_sink.py"),
    Breakage("R24", "postgres.ledger", ", self.table.c.epoch <= epoch", "",
             "publish/test_postgres_sink.py"),
    Breakage("R27", "receive.producers", "if submission.digest != digest:", "if False:",
             "receive/test_receive_producers.py"),
    Breakage("R27", "receive.producers", "if submission.sequence <= self._floor(producer):",
             "if False:", "receive/test_receive_producers.py"),
    Breakage("R27", "receive.producers", "self._producers.move_to_end(name)", "pass",
             "receive/test_receive_producers.py"),
    Breakage("R31", "journal.journal", "fsync_directory(self._directory)\n                self._en",
             "self._en", "journal/test_journal_durability.py"),
    Breakage("R31", "journal.journal", "        self._tail.sync()\n        self._tail.close()",
             "        self._tail.close()", "journal/test_journal_durability.py"),
    Breakage("R32", "sync.hello", "min(ours.protocol_max, theirs.protocol_max)",
             "theirs.protocol_max", "sync/test_sync_links.py"),
)  # fmt: skip


@pytest.mark.parametrize("breakage", BREAKAGES, ids=str)
def test_a_broken_edge_is_found_out(breakage: Breakage) -> None:
    module = f"ha_engine.{breakage.module}"
    words = json.dumps([module, breakage.old, breakage.new])
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "tests.broken"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(HERE / breakage.killer)],
        env={**os.environ, broken.ENVIRONMENT: words},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == TESTS_FAILED, done.stdout[-2000:] + done.stderr[-2000:]
    assert "ImportError" not in done.stdout
