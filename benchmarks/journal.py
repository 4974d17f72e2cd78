"""How fast the journal is on this disk: ``python -m benchmarks.journal [DIRECTORY]``.

Prints the codec's records/s, MB/s of appending and reading, and the latency from append to durable
with 1, 16 and 128 appenders that each wait for their record.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import uvloop

from ha_engine.journal import Journal, read_extent
from ha_engine.journal.record import decode, encode
from ha_engine.journal.writer import JournalWriter
from ha_engine.types import Events, Mark, Position, Record, Submission

SMALL, LARGE = 4 << 10, 1 << 20


def events(sequence: int, payload: bytes) -> Record:
    body = Events("flights", 50, 1_700_000_000_000_000, (Submission("p", sequence, "ab" * 16, 50),))
    return Record(Position(1, sequence), sequence - 1, body, payload)


def rate(count: int, call: Callable[[], object]) -> float:
    """Calls a second."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return count / (time.perf_counter() - start)


def codec() -> None:
    for name, record in (
        ("mark", Record(Position(1, 1), 0, Mark("delays", 1, 1))),
        ("events of 100 bytes", events(1, bytes(100))),
        ("events of 4 KiB", events(1, bytes(SMALL))),
    ):
        frame = encode(record)
        encoded = rate(50_000, partial(encode, record))
        decoded = rate(50_000, partial(decode, frame))
        print(f"codec, {name}: encode {encoded:,.0f} records/s, decode {decoded:,.0f} records/s")


def throughput(directory: Path, size: int, group: int, groups: int) -> None:
    journal = Journal.open(directory / f"throughput-{size}", group="bench")
    payload, sequence = bytes(range(256)) * (size // 256), 0
    start = time.perf_counter()
    for _ in range(groups):
        journal.append([events(sequence + n, payload) for n in range(1, group + 1)])
        journal.sync()
        sequence += group
    wrote = time.perf_counter() - start
    start = time.perf_counter()
    count = sum(1 for extent in journal.locate(1, sequence) for _ in read_extent(extent))
    read, megabytes = time.perf_counter() - start, sequence * size / 1e6
    journal.close()
    start = time.perf_counter()
    Journal.open(directory / f"throughput-{size}", group="bench").close()
    opened = time.perf_counter() - start
    print(
        f"{count} records of {size} bytes, {group} a sync: append + fdatasync "
        f"{count / wrote:,.0f} records/s {megabytes / wrote:,.0f} MB/s, "
        f"read {count / read:,.0f} records/s {megabytes / read:,.0f} MB/s, "
        f"open {megabytes / opened:,.0f} MB/s"
    )


async def group_commit(directory: Path, appenders: int, rounds: int) -> None:
    journal = Journal.open(directory / f"commit-{appenders}", group="bench")
    waiting: dict[int, asyncio.Future[None]] = {}
    durable = sequence = 0
    latencies: list[float] = []
    loop = asyncio.get_running_loop()

    def on_durable(last: int) -> None:
        nonlocal durable
        for one in range(durable + 1, last + 1):
            waiting.pop(one).set_result(None)
        durable = last

    def on_failed(error: BaseException) -> None:
        raise SystemExit(str(error))

    writer = JournalWriter(journal, on_durable, on_failed)
    payload = bytes(range(256)) * (SMALL // 256)

    async def append_and_wait() -> None:
        nonlocal sequence
        for _ in range(rounds):
            sequence += 1
            done = waiting[sequence] = loop.create_future()
            start = time.perf_counter()
            writer.append([events(sequence, payload)])
            await done
            latencies.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(append_and_wait() for _ in range(appenders)))
    took = time.perf_counter() - start
    await writer.close()
    journal.close()
    p50, p99 = median(latencies) * 1e3, quantiles(latencies, n=100)[98] * 1e3
    print(
        f"group commit, {appenders} appenders of 4 KiB: p50 {p50:.2f} ms, p99 {p99:.2f} ms, "
        f"{len(latencies) / took:,.0f} records/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "directory", nargs="?", type=Path, help="where to write, default: temporary"
    )
    given = parser.parse_args().directory
    with tempfile.TemporaryDirectory(dir=given, prefix="journal-") as name:
        directory = Path(name)
        codec()
        throughput(directory, SMALL, group=64, groups=200)
        throughput(directory, LARGE, group=4, groups=60)
        for appenders, rounds in ((1, 2000), (16, 300), (128, 60)):
            uvloop.run(group_commit(directory, appenders, rounds))


if __name__ == "__main__":
    main()
