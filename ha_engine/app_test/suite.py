"""Run all tests of a file with one Spark session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ha_engine.app_test.cases import Case, CaseFile
from ha_engine.app_test.comparison import Difference, Near, Row, compare, plain
from ha_engine.app_test.events import DecodedBatch, decode_batches
from ha_engine.app_test.file import read_cases
from ha_engine.app_test.run import run_case
from ha_engine.jvm import engine_jar
from ha_engine.query.application import StreamApplication
from ha_engine.query.check import BRIEF_JAVA
from ha_engine.query.session import SparkSettings, check_java, start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HEAP = 512 << 20
_PROGRESS_KEPT = 1_000_000
"""Spark keeps the progress of so many batches, in which it counts the late rows."""

Say = Callable[[str], None]
"""Takes a line that says what the command does."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one test. ``notes`` are for people, by query."""

    name: str
    differences: tuple[Difference, ...]
    notes: Mapping[str, tuple[str, ...]]
    seconds: float

    @property
    def passed(self) -> bool:
        return all(one.is_none for one in self.differences)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "passed": self.passed,
            "seconds": round(self.seconds, 1),
            "queries": [
                {**_difference(one), "notes": list(self.notes[one.expectation.query])}
                for one in self.differences
            ],
        }


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The results of the tests of a file."""

    file: CaseFile
    results: tuple[CaseResult, ...]
    seconds: float

    @property
    def failed(self) -> int:
        return sum(not result.passed for result in self.results)

    def to_json(self) -> dict[str, Any]:
        return {
            "file": str(self.file.path),
            "application": self.file.application.name,
            "passed": len(self.results) - self.failed,
            "failed": self.failed,
            "tests": [result.to_json() for result in self.results],
            "seconds": round(self.seconds, 1),
        }


def run_suite(path: Path, names: Sequence[str], say: Say) -> SuiteResult:
    """Run the tests ``names`` of a file, or all of them.

    All events are decoded before Spark starts, so that an error in the file shows at once. Raises
    BadTestFile, ApplicationError, JavaMissing, JarMissing.
    """
    began = time.monotonic()
    check_java()
    file = read_cases(path, names)
    inputs = [decode_batches(case, file.application) for case in file.cases]
    with _spark(file.application, say) as spark:
        results = list[CaseResult]()
        for case, batches in zip(file.cases, inputs, strict=True):
            results.append(_run(spark, file.application, case, batches))
            verdict = "passed" if results[-1].passed else "failed"
            say(f"test {case.name}: {verdict} in {results[-1].seconds:.1f} s")
    return SuiteResult(file, tuple(results), time.monotonic() - began)


@contextmanager
def _spark(application: StreamApplication, say: Say) -> Iterator[SparkSession]:
    with TemporaryDirectory(prefix="ha-engine-") as scratch:
        settings = SparkSettings(
            master="local[1]",
            heap=_HEAP,
            spark={"spark.sql.streaming.numRecentProgressUpdates": str(_PROGRESS_KEPT)},
            scratch=Path(scratch) / "spark",
            java_options=BRIEF_JAVA,
            jars=(engine_jar(),) if application.has_patterns else (),
        )
        say("starting Spark")
        began = time.monotonic()
        spark = start_spark(settings, *application.directories)
        say(f"Spark: started in {time.monotonic() - began:.1f} s")
        try:
            yield spark
        finally:
            spark.stop()


def _run(
    spark: SparkSession,
    application: StreamApplication,
    case: Case,
    batches: Sequence[DecodedBatch],
) -> CaseResult:
    began = time.monotonic()
    outputs = run_case(spark, application, case, batches)
    differences = tuple(
        compare(one, application.queries[one.query], outputs[one.query]) for one in case.expected
    )
    notes = {name: output.notes for name, output in outputs.items()}
    return CaseResult(case.name, differences, notes, time.monotonic() - began)


# -- JSON ------------------------------------------------------------------------------------------


def _difference(found: Difference) -> dict[str, Any]:
    def row(one: Row) -> dict[str, Any]:
        return {name: plain(one[name]) for name in found.columns}

    def near(one: Near) -> dict[str, Any]:
        columns = list(one.columns)
        return {"expected": row(one.expected), "actual": row(one.actual), "columns": columns}

    return {
        "query": found.expectation.query,
        "passed": found.is_none,
        "rows": len(found.actual),
        "missing": [row(one) for one in found.missing],
        "unexpected": [row(one) for one in found.unexpected],
        "differing": [near(one) for one in found.near],
        "reordered": None if found.reordered is None else near(found.reordered),
        "error": found.error,
    }
