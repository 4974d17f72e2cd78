"""A process that appends to a journal until it is killed or its disk fails.

    python -m tests.journal.appender DIRECTORY [FILE_SIZE_MAX]

Print each sequence once it is durable, and ``failed`` once the journal failed.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from ha_engine.errors import DiskFailed
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from tests.journal.samples import events

SEGMENT_SIZE = 64 << 10


def tell(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def append_for_ever(directory: Path) -> None:
    journal = Journal.open(directory, group="test", segment_size=SEGMENT_SIZE)
    durable, failed = asyncio.Event(), asyncio.Event()

    def on_durable(sequence: int) -> None:
        tell(sequence)
        durable.set()

    def on_failed(error: BaseException) -> None:
        tell(f"failed {type(error).__name__}: {error}")
        failed.set()
        durable.set()

    writer = JournalWriter(journal, on_durable, on_failed)
    sequence = journal.last.sequence
    while not failed.is_set():
        durable.clear()
        for _ in range(1 + sequence % 5):
            sequence += 1
            writer.append([events(sequence, size=sequence * 37 % 3000)])
        await durable.wait()
    refused = 0
    for attempt in (lambda: journal.append([]), journal.sync, lambda: journal.read(1)):
        try:
            attempt()
        except DiskFailed:
            refused += 1
    tell(f"refused {refused}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        limit = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    asyncio.run(append_for_ever(Path(sys.argv[1])))
