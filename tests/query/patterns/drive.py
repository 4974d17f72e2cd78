"""Run a pattern over events in given batches, in the JVM of a Spark session but without a streaming
query."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark.find_spark_home import _find_spark_home

from ha_engine.jvm import JAR
from ha_engine.jvm.build import SOURCES, build
from ha_engine.query.patterns.pattern import Pattern
from ha_engine.query.patterns.plan import Planner
from tests.programs import found
from tests.query.patterns.oracle import Event

START = 1_000_000
"""Time 0 of the events, in seconds since 1970."""
END = 10_000
"""A time after all events and all patterns."""
_SCHEMA = pa.schema(
    {
        "key": pa.int32(),
        "number": pa.int32(),
        "kind": pa.string(),
        "value": pa.int32(),
        "at": pa.timestamp("us", "UTC"),
        "_event_id": pa.string(),
    }
)


def pattern_jars(directory: Path) -> tuple[Path, ...]:
    """Return the engine's jar and the one of ``Drive``, which is compiled to ``directory``, or none
    without a compiler."""
    if not found("javac"):
        return ()
    if not JAR.exists() or JAR.stat().st_mtime < max(map(_changed, SOURCES.rglob("*.java"))):
        build(JAR)
    return JAR, driver_jar(directory, JAR)


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def driver_jar(directory: Path, engine: Path) -> Path:
    """Compile ``Drive`` with the jar ``engine``."""
    source, classes = Path(__file__).with_name("Drive.java"), directory / "classes"
    libraries = f"{Path(_find_spark_home(), 'jars', '*')}:{engine}"
    options = ["--release", "17", "-cp", libraries, "-d", str(classes)]
    subprocess.run(["javac", *options, str(source)], check=True)
    jar = directory / "drive.jar"
    subprocess.run(["jar", "cf", str(jar), "-C", str(classes), "."], check=True)
    return jar


@contextmanager
def interpreted(spark: Any) -> Iterator[None]:
    """Let Spark interpret expressions, since compiling them takes a second for each pattern."""
    settings = {
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def matches(
    spark: Any,
    pattern: Pattern,
    keys: Mapping[int, Sequence[Event]],
    cuts: Sequence[int],
    limits: Mapping[int, Sequence[Event]] = MappingProxyType({}),
) -> list[list[Any]]:
    """Return the matches of ``pattern`` in the events of each key. Each has the key, its start and
    its end in seconds, and the columns of the pattern, which must be slots or their fields.

    ``limits`` are the rows of the table of that name. A batch ends before each time of ``cuts``,
    whose order is ascending.
    """
    frames = {"events": _frame(spark, keys, cuts), "limits": _frame(spark, limits, cuts)}
    planner = Planner(spark, pattern, frames, {"events": "at", "limits": "at"})
    # The watermark of a batch is that of the events before it, and the last batch has no events.
    watermarks = spark._jvm.java.util.ArrayList()
    for seconds in (0, *(START + cut - 1 for cut in cuts), START + END):
        watermarks.add(seconds)
    lines = spark._jvm.haengine.patterns.Drive.run(planner.plan(), watermarks).splitlines()
    slots = [slot.name for slot in planner.slots]
    answers = []
    for line in lines:
        key, start, end, *values = json.loads(line)
        named = dict(zip(slots, values, strict=True))
        wanted = (_value(text, named) for text in planner.columns.values())
        answers.append([key, _seconds(start), _seconds(end), *wanted])
    return answers


def _value(text: str, slots: Mapping[str, Any]) -> Any:
    """The value of a slot, or of the field ``value`` of a table's row, which has the time first."""
    name, dot, _ = text.partition(".value")
    slot = slots[name.strip("`")]
    return slot and slot[1] if dot else slot


def _frame(spark: Any, keys: Mapping[int, Sequence[Event]], cuts: Sequence[int]) -> Any:
    rows = [
        [key, one.number, one.kind, one.value, _micros(one.time), _id(one, cuts)]
        for key, events in keys.items()
        for one in events
    ]
    table = pa.Table.from_pylist(
        [dict(zip(_SCHEMA.names, row, strict=True)) for row in rows], _SCHEMA
    )
    return spark.createDataFrame(table)


def _id(event: Event, cuts: Sequence[int]) -> str:
    """The id of an event, whose last number is its batch."""
    return f"{event.number}-{sum(cut <= event.time for cut in cuts)}"


def _micros(time: int) -> int:
    return (START + time) * 1_000_000


def _seconds(micros: int) -> float:
    return micros / 1e6 - START
