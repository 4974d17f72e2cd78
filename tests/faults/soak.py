"""A pair under load for hours, with a fault every two minutes: nothing may grow.

    python -m tests.faults.soak --hours 2 [--every 120] [--seed N] [--out DIRECTORY]

Two real nodes with real Spark and PostgreSQL take flights at an even rate. All ten seconds the run
notes the memory, threads and open files of each process, the bytes of each data directory, and the
size and dead rows of each of the engine's tables. At the end the sink must be as without faults, no
process may be left, and no figure may have grown. The directory gets ``soak.csv`` and ``soak.svg``.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, text

from benchmarks.processes import part_of, session_of
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from tests.docs import svg
from tests.docs.svg import Point
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair
from tests.faults.active import FAULTS, in_random_order
from tests.faults.failovers import Load, run_failovers

SAMPLE_SECONDS = 10.0
LOAD = Load(years=10, fade_seconds=36_000.0)
"""Some ninety flights a second, a fifth fewer after two hours."""
GROWTH_MAX = 1.15
"""The last third of a run may be this much above the second third."""
LEAST = {"MiB": 24.0, "files": 12.0, "threads": 8.0, "rows": 2_000.0}
"""A smaller growth, in the unit of a series, does not count."""
MIB = 1 << 20
TABLES = text(
    "SELECT relname, pg_total_relation_size(relid), n_dead_tup FROM pg_stat_user_tables "
    "WHERE schemaname = 'ha_engine' OR relname = 'ha_engine_ledger'"
)

Series = Mapping[str, Sequence[tuple[float, float]]]
"""For each figure, pairs of a time in seconds since the start and a value."""


class Samples:
    """The figures of a pair, noted all SAMPLE_SECONDS while ``watching``."""

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url)
        self.series: dict[str, list[tuple[float, float]]] = defaultdict(list)

    @contextlib.contextmanager
    def watching(self, pair: Pair) -> Iterator[None]:
        """Note the figures in a thread of their own. Raises what the thread raised."""
        ended = threading.Event()
        with ThreadPoolExecutor(1) as thread:
            noting = thread.submit(self._note, pair, ended)
            try:
                yield
            finally:
                ended.set()
            noting.result()

    def _note(self, pair: Pair, ended: threading.Event) -> None:
        began = time.monotonic()
        while not ended.wait(SAMPLE_SECONDS):
            now = time.monotonic() - began
            for node in pair.nodes.values():
                self._add(now, _of_processes(node))
                self._add(now, _of_disk(node))
            self._add(now, _of_tables(self._engine))

    def _add(self, now: float, figures: Iterable[tuple[str, float]]) -> None:
        for name, value in figures:
            self.series[name].append((now, value))


def _of_processes(node: NodeUnderTest) -> Iterator[tuple[str, float]]:
    figures: dict[str, float] = defaultdict(float)
    for process in _processes(node):
        with contextlib.suppress(psutil.Error, FileNotFoundError):
            part = part_of(process)
            figures[f"{node.name}: memory of {part}, MiB"] += process.memory_info().rss / MIB
            figures[f"{node.name}: open files of {part}, files"] += process.num_fds()
            figures[f"{node.name}: threads of {part}, threads"] += process.num_threads()
    yield from figures.items()


def _processes(node: NodeUnderTest) -> list[psutil.Process]:
    """Return the living processes of a node. Spark's workers are in the session of the query
    process."""
    found: list[psutil.Process] = []
    if node.process is None or node.process.poll() is not None:
        return found
    with contextlib.suppress(psutil.Error):
        supervisor = psutil.Process(node.process.pid)
        leaders = [supervisor, *supervisor.children()]
        for leader in leaders:
            found += [one for one in session_of(leader.pid) if one not in found]
    return found


def _of_disk(node: NodeUnderTest) -> Iterator[tuple[str, float]]:
    if node.data_dir.is_dir():
        for part in sorted(node.data_dir.iterdir()):
            if part.is_dir():
                yield f"{node.name}: {part.name} on disk, MiB", bytes_of(part) / MIB


def bytes_of(directory: Path) -> int:
    """Return the size of the files below a directory, in which a node makes and deletes others."""
    total = 0
    for place, _, names in os.walk(directory):  # it passes over a directory that is gone meanwhile
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


def _of_tables(engine: Engine) -> Iterator[tuple[str, float]]:
    with engine.connect() as connection:
        for name, size, dead in connection.execute(TABLES):
            yield f"table {name}, MiB", size / MIB
            yield f"dead rows of {name}, rows", float(dead)


# -- judgement -------------------------------------------------------------------------------------


def growing(series: Series) -> list[str]:
    """Return what has grown from the second third of the run to the last one, each as a sentence.

    Medians of thirds ignore the peaks of single faults and the first third, in which Java compiles
    and the first snapshots are taken.
    """
    found = []
    for name, points in sorted(series.items()):
        third = len(points) // 3
        if third == 0:
            continue
        before = median(value for _, value in points[third : 2 * third])
        after = median(value for _, value in points[2 * third :])
        if after > GROWTH_MAX * before and after - before > LEAST[name.rpartition(" ")[2]]:
            found.append(f"{name} grew from {before:.1f} to {after:.1f}")
    return found


# -- output ----------------------------------------------------------------------------------------

WIDTH, PANEL, GAP, LEFT = 900, 60, 26, 12
POINTS_MAX = 180


def write_csv(series: Series, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("series", "seconds", "value"))
        for name, points in sorted(series.items()):
            writer.writerows((name, f"{at:.1f}", f"{value:.3f}") for at, value in points)


def draw(series: Series, path: Path) -> None:
    """Draw one panel for each figure, from zero to its greatest value."""
    parts, top = list[str](), GAP
    for name, points in sorted(series.items()):
        parts += _panel(name, points, top)
        top += PANEL + GAP
    path.write_text(svg.document(WIDTH, top, "Figures of a pair under load and faults", parts))


def _panel(name: str, points: Sequence[tuple[float, float]], top: int) -> list[str]:
    end, most = points[-1][0] or 1.0, max(value for _, value in points) or 1.0
    last = points[-1][1]
    points = _thinned(points)
    across, bottom = WIDTH - 2 * LEFT, top + PANEL
    corners = " ".join(
        f"{LEFT + across * at / end:.1f},{bottom - PANEL * value / most:.1f}"
        for at, value in points
    )
    title = f"{name}: most {most:.1f}, last {last:.1f}, in {end / 3600:.2f} h"
    return [
        svg.text(Point(LEFT, top - 6), title, anchor="start"),
        svg.line("axis", Point(LEFT, bottom), Point(WIDTH - LEFT, bottom)),
        f'<polyline fill="none" stroke="#4338ca" points="{corners}"/>',
    ]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The greatest point of each POINTS_MAX-th part of the time, so that no peak is missing."""
    step = max(1, -(-len(points) // POINTS_MAX))
    parts = (points[at : at + step] for at in range(0, len(points), step))
    return [max(part, key=lambda point: point[1]) for part in parts]


def _table(series: Series) -> Table:
    table = Table("figure", "first third", "second third", "last third", "most")
    for name, points in sorted(series.items()):
        third = max(1, len(points) // 3)
        parts = points[:third], points[third : 2 * third] or points, points[2 * third :] or points
        cells = [f"{median(value for _, value in part):.1f}" for part in parts]
        table.add_row(name, *cells, f"{max(value for _, value in points):.1f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=120.0, help="seconds between faults")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--out", type=Path, help="directory of soak.csv and soak.svg")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # the nodes end with it
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-soak-"))
    out = given.out or directory
    out.mkdir(parents=True, exist_ok=True)
    print(f"seed {given.seed}, results in {out}")
    faults = in_random_order(int(given.hours * 3600 / given.every), given.seed, FAULTS)
    with EmbeddedPostgres(directory / "postgres") as server:
        samples = Samples(server.url)
        try:
            report = run_failovers(
                directory,
                server.url,
                faults,
                minutes=60 * given.hours,
                load=LOAD,
                every_seconds=given.every,
                beside=samples.watching,
                snapshot={"interval": "60s"},
                # A journal is trimmed by whole segments, of which the run must see many.
                journal={"segment_size": "4MiB"},
            )
        finally:
            write_csv(samples.series, out / "soak.csv")
            draw(samples.series, out / "soak.svg")
    series = samples.series
    Console(width=140).print(_table(series))
    wrong = [*report.wrong, *growing(series)]
    print("\n".join(wrong) or "equal and flat: nothing lost, nothing twice, nothing grows")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
