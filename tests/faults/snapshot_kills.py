"""Kill the writer of snapshots, and sometimes the database, at random moments.

The writer takes one snapshot after the other of a state that changes completely, so that each also
collects the chunks of an earlier one. After each kill every visible revision must be whole, and the
next writer must continue; at the end no chunk may be left that no revision needs.

    python -m tests.faults.snapshot_kills --kills 30 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import NoReturn

from sqlalchemy import text

from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.snapshot_store import SnapshotStore
from ha_engine.snapshot.verification import verify
from tests.snapshot.stored_node import BATCHES, node_at, prepare, taken
from tests.waiting import wait_until

STATE_BYTES = 3 << 20
KILL_WITHIN_SECONDS = 0.6
DATABASE_EACH = 6
"""The interval of kills that hit the database."""
LEFT = """
    SELECT (SELECT count(*) FROM ha_engine.revision WHERE visible_at IS NULL),
           (SELECT count(*) FROM ha_engine.chunk c WHERE NOT EXISTS
               (SELECT 1 FROM ha_engine.revision_chunk r WHERE r.digest = c.digest))
"""


@dataclass
class Report:
    """``wrong`` lists the violations; ``visible`` the number of revisions of each look."""

    kills: int = 0
    visible: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def run_snapshot_kills(directory: Path, kills: int, seed: int) -> Report:
    chance, report = random.Random(seed), Report()
    with EmbeddedPostgres(directory / "postgres") as server:
        url = server.url
        _in_a_child(lambda: prepare(open_engine(url)))
        for number in range(1, kills + 1):
            of_database = number % DATABASE_EACH == 0
            _write_and_kill(server, directory / f"writer-{number}", chance, of_database)
            report.kills += 1
            _look(url, directory / "found", report)
        _in_a_child(lambda: _write(directory / "last", url, snapshots=3))
        _look(url, directory / "found", report)
        with open_engine(url).connect() as connection:
            drafts, chunks = connection.execute(text(LEFT)).one()
        if drafts or chunks:
            report.wrong.append(f"{drafts} drafts and {chunks} chunks are left that nobody needs")
    return report


def _write_and_kill(
    server: EmbeddedPostgres, home: Path, chance: random.Random, of_database: bool
) -> None:
    ready = home.with_suffix(".ready")
    url = server.url
    writer = _fork(lambda: _write(home, url, ready=ready))
    wait_until(lambda: ready.exists(), within=60)
    time.sleep(chance.uniform(0, KILL_WITHIN_SECONDS))
    if of_database:
        os.kill(server.pid, signal.SIGKILL)
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    if of_database:
        server.start()
    shutil.rmtree(home)


def _write(
    home: Path, url: str, *, ready: Path | None = None, snapshots: int | None = None
) -> None:
    async def work() -> None:
        node = node_at(home, open_engine(url))
        for number in count(BATCHES + 1) if snapshots is None else range(6, 6 + snapshots):
            node.grow(number, os.urandom(STATE_BYTES))
            await taken(node, number)
            if ready is not None:
                ready.touch()  # noqa: ASYNC240  # nothing else runs here

    asyncio.run(work())


def _look(url: str, found: Path, report: Report) -> None:
    """Check the revisions from a new process, as ``ha-engine snapshot verify`` does."""

    def look() -> None:
        store = SnapshotStore(open_engine(url), "test")
        revisions = store.revisions()
        lines = [str(len(revisions))]
        for one in revisions:
            lines += [f"revision {one.id}: {d}" for d in verify(store, one, lambda _: None)]
            store.pin(one.id, 0)  # so that the next writer may delete it
        found.write_text("\n".join(lines))

    _in_a_child(look)
    visible, *wrong = found.read_text().splitlines()
    report.visible.append(int(visible))
    report.wrong += wrong
    if int(visible) < 1:
        report.wrong.append("no revision is visible though one was")


# -- processes -------------------------------------------------------------------------------------


def _in_a_child(work: Callable[[], None]) -> None:
    _, status = os.waitpid(_fork(work), 0)
    if status:
        raise RuntimeError(f"a child ended with {status}")


def _fork(work: Callable[[], None]) -> int:
    """Fork; this process has no other thread, and no connection."""
    pid = os.fork()
    if pid == 0:
        _run_to_the_end(work)
    return pid


def _run_to_the_end(work: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-snapshot-kills-"))
    try:
        report = run_snapshot_kills(directory, given.kills, given.seed)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"seed {given.seed}: {report.kills} kills; visible after each: {report.visible}")
    print("\n".join(report.wrong) or "every visible revision is whole, and nothing is left over")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
