"""Reads of sources and deliveries to sinks, for the tests of each connector."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import Messages, OutputBatch, SinkPlugin, SourceBatch, SourcePlugin
from tests.waiting import wait_until

# -- sources ---------------------------------------------------------------------------------------


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def values(batch: SourceBatch | None) -> list[bytes | None]:
    if batch is None or not batch.rows:
        return []
    assert isinstance(batch.rows, Messages)
    return list(batch.rows.values)


def rest(source: SourcePlugin, count: int) -> list[bytes | None]:
    """Read until ``count`` values are there."""
    found = list[bytes | None]()
    wait_until(lambda: found.extend(values(source.read(1000, 0.2))) or len(found) >= count)
    return found


# -- sinks -----------------------------------------------------------------------------------------


class Restartable(Protocol):
    """A server that ends at any moment, and starts again with what it has confirmed."""

    def kill(self) -> None: ...
    def start(self) -> None: ...


def rows(number: int, count: int, size: int = 0) -> list[bytes]:
    """Return the values of batch ``number``, each with ``size`` more bytes."""
    return [b"%d/%d" % (number, row) + b"." * size for row in range(count)]


def batch_of(
    number: int,
    values: list[bytes],
    seconds: float = 60.0,
    sink: str = "sink",
    **attributes: list[Any],
) -> OutputBatch:
    until = time.monotonic() + seconds
    table = pa.table({"id": list(range(len(values)))})
    return OutputBatch(
        number,
        len(values),
        f"group/query/{sink}/{number}",
        lambda: table,
        lambda: until - time.monotonic(),
        lambda: Messages(values, attributes),
    )


def deliver_at_once(sinks: Sequence[SinkPlugin]) -> list[bytes]:
    """Let each of ``sinks`` deliver the same eight batches at once, as two actives would; return
    the values that must be there."""

    def deliver(sink: SinkPlugin) -> None:
        for number in range(1, 9):
            while True:
                try:
                    sink.deliver(batch_of(number, rows(number, 30)))
                    break
                except SinkUnavailable:
                    continue
                except SinkRefused:
                    break  # the other one is ahead

    threads = [threading.Thread(target=deliver, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sink in sinks:
        sink.close()
    return [row for number in range(1, 9) for row in rows(number, 30)]


def deliver_with_kills(
    make: Callable[[], SinkPlugin], server: Restartable, seed: int, rows_max: int
) -> list[bytes]:
    """Deliver six batches of at most ``rows_max`` rows, while the server and actives end at random
    moments and batches are repeated at random; return the values that must be there."""
    chance = random.Random(seed)
    sink, number = make(), 1
    counts = {n: chance.randrange(1, rows_max) for n in range(1, 7)}
    attempts = 0
    while number <= 6:
        attempts += 1
        # The patience grows, so that even a slow host gets on.
        seconds = chance.choice((0.01, 0.03, 0.1, 5.0)) * (1 + attempts / 20)
        killer = threading.Timer(chance.random() / 20, server.kill)
        kills = chance.random() < 0.3
        if kills:
            killer.start()
        try:
            sink.deliver(batch_of(number, rows(number, counts[number]), seconds))
            number += chance.random() < 0.7
        except SinkUnavailable:
            pass
        if kills:
            killer.cancel()
            killer.join()
            server.kill()
            server.start()
        if chance.random() < 0.3:
            sink = make()  # the next active, while the former one still has its connection
    make().deliver(batch_of(6, rows(6, counts[6])))
    return [row for n, count in counts.items() for row in rows(n, count)]
