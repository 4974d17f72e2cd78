"""Where Spark says the time of its batches goes, from its own event log, for either side.

Spark waits for input inside ``latestOffset``; the rest of a batch is work.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_PROGRESS = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"


def event_log(directory: Path) -> dict[str, str]:
    """Spark settings that make it keep an event log below ``directory``."""
    directory.mkdir(parents=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": directory.resolve().as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


def show_phases(logs: dict[str, Path], console: Console, rows_min: int) -> None:
    """Median milliseconds of each phase of the batches with at least ``rows_min`` rows."""
    phases = {side: _phases(directory, rows_min) for side, directory in logs.items()}
    queries = sorted({query for found in phases.values() for query in found})
    for query in queries:
        table = Table(title=f"{query}: median ms of a batch of at least {rows_min:,} rows")
        table.add_column("phase")
        for side in logs:
            table.add_column(side, justify="right")
        names = {name for found in phases.values() for name in found.get(query, {})}
        for name in sorted(names):
            row = [found.get(query, {}).get(name, []) for found in phases.values()]
            table.add_row(name, *(f"{statistics.median(ms):,.0f}" if ms else "" for ms in row))
        console.print(table)


def _phases(directory: Path, rows_min: int) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for progress in _progress(directory):
        rows = sum(source["numInputRows"] for source in progress["sources"])
        if rows < max(1, rows_min):
            continue
        query = found[progress["name"]]
        phases = progress["durationMs"]
        for name, ms in phases.items():
            query[name].append(ms)
        query["work (trigger - latestOffset)"].append(
            phases["triggerExecution"] - phases.get("latestOffset", 0)
        )
        query["rows / 1000"].append(rows / 1000)
        query["batches"] = [len(query["rows / 1000"])]
    return found


def _progress(directory: Path) -> list[dict[str, Any]]:
    lines = [line for log in directory.iterdir() for line in log.read_text().splitlines()]
    events = (json.loads(line) for line in lines if _PROGRESS in line)
    return [event["progress"] for event in events]
