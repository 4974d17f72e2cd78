"""Which results of a query differ between two runs of the same batches on executors.

    python -m tests.cluster.repeatability --batches 1000

A hot standby needs equal results on both nodes. On one machine every run of a batch gives the same
rows. On a cluster a task fetches the blocks of a shuffle from other executors in random order, so a
result may depend on the order in which its rows arrive.

The command runs each query of SHAPES twice over the same batches, on a standalone cluster, and
compares each column of each batch. ``--ordered`` uses the engine's shuffle, ``--executors 1`` one
executor, and ``--local`` no executors in the second run.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ha_engine.jvm.build import build
from tests.cluster.repeatability_job import ORDER, SHAPES, Run
from tests.cluster.standalone import running_cluster

console = Console()
WIDTH, LOCAL = 100, "local[2]"


def main(
    batches: Annotated[int, typer.Option(help="Batches of each query.")] = 1000,
    executors: Annotated[int, typer.Option(help="Executors with a core each.")] = 2,
    only: Annotated[list[str] | None, typer.Option(help="Queries to run; all by default.")] = None,
    local: Annotated[bool, typer.Option("--local", help="Second run without executors.")] = False,
    ordered: Annotated[bool, typer.Option("--ordered", help="With the engine's shuffle.")] = False,
) -> None:
    """Run each query twice, and say which columns differ in how many batches."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # the cluster ends with it
    names = only or list(SHAPES)
    with (
        tempfile.TemporaryDirectory() as home,
        running_cluster(executors, cores=1, memory="1g") as cluster,
    ):
        jar = Path(home, "ha-engine.jar")
        if ordered:
            build(jar)
        results = list[Path]()
        for number, master in enumerate((cluster.url, LOCAL if local else cluster.url), 1):
            directory = Path(home, str(number))
            directory.mkdir()
            run = Run(master, str(directory), batches, names, str(jar) if ordered else None)
            console.print(f"run {number} of 2: {batches} batches of {', '.join(names)}")
            command = [sys.executable, "-m", "tests.cluster.repeatability_job", run.to_text()]
            subprocess.run(command, check=True)
            results.append(directory)
        _show(names, *results)


def _show(names: list[str], one: Path, other: Path) -> None:
    table = Table("query", "result", "batches that differ", "of")
    for name in names:
        counts, total = Counter[str](), 0
        for these, those in zip(_digests(one / name), _digests(other / name), strict=True):
            total += 1
            counts.update({column: these[column] != those[column] for column in these})
        for column, count in counts.items():
            shown = "order of the rows" if column == ORDER else column
            table.add_row(name, shown, str(count), str(total))
    Console(width=WIDTH).print(table)


def _digests(file: Path) -> Iterator[dict[str, str]]:
    """The digest of each column, for each batch in its order."""
    yield from map(json.loads, file.read_text().splitlines())


if __name__ == "__main__":
    typer.run(main)
