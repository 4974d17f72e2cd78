"""Mutants of the classes that match patterns: the oracle must find each of them.

    python -m tests.query.patterns.test_java_mutants ENGINE_JAR DRIVER_JAR

compares random patterns with the classes of these jars.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.find_spark_home import _find_spark_home

from ha_engine.jvm.build import SOURCES
from ha_engine.query.session import SparkSettings, start_spark
from tests.programs import needs
from tests.query.patterns.drive import driver_jar
from tests.query.patterns.test_oracle import compare_many

PATTERNS = 600
MUTANTS = (
    ("Matcher", "pass(state, event.micros() - 1, found);", "pass(state, event.micros(), found);"),
    ("Matcher", "if (deadline > now) {", "if (deadline >= now) {"),
    ("Matcher", "way.endsAt() == Way.NEVER ? null : way.awaiting(0, way.endsAt())", "null"),
    ("Matcher", "take.adjacent() || acceptsAny", "acceptsAny"),
    ("Matcher", "|| acceptsAny(take.absent(), event, way.memory(), history)", ""),
    ("Matcher", "way.state(), way.alive(), way.endsAt(), decides", "way.state(), -1, 0, decides"),
    ("Matcher", "deciding.apply(way.memory()).copy()", "null"),
    ("Matcher", "state.endAfter() == null ? deadline", "state.endAfter() != null ? deadline"),
    ("Matcher", "case PAST_LAST -> match.last() + 1;", "case PAST_LAST -> match.last();"),
    ("Matcher", "Math.max(match.after(), run.first() + 1)", "run.first() + 1"),
    ("Matcher", "AfterMatch.TO_LAST || after < 0", "AfterMatch.TO_LAST && after < 0"),
    ("Matcher", "state.lastMicros + automaton.within() <= now", "true"),
    ("Matcher", "expired.apply(state.history)", "emptyHistory"),
    ("Matcher", "automaton.tables()[event.stream()]", "false"),
    ("KeyState", "out.writeLong(way.endsAt());", "out.writeLong(Way.NEVER);"),
    ("KeyState", "out.writeLong(way.alive());", "out.writeLong(-1);"),
    ("Event", "int order = Long.compare(micros, other.micros);", "int order = 0;"),
)

pytestmark = [
    needs("javac"),
    pytest.mark.nightly("test_oracle.py compares patterns with the classes as they are"),
    pytest.mark.spark,
]


def mutated(directory: Path, name: str, old: str, new: str) -> tuple[Path, Path]:
    """Compile the classes with one change, and the driver of the tests."""
    sources, classes = directory / "sources", directory / "engine"
    shutil.copytree(SOURCES / "haengine" / "patterns", sources)
    file = sources / f"{name}.java"
    text = file.read_text()
    assert text.count(old) == 1, f"{name}.java has {old!r} {text.count(old)} times"
    file.write_text(text.replace(old, new))
    libraries = str(Path(_find_spark_home(), "jars", "*"))
    options = ["--release", "17", "-cp", libraries, "-d", str(classes)]
    subprocess.run(["javac", *options, *map(str, sources.glob("*.java"))], check=True)
    jar = directory / "engine.jar"
    subprocess.run(["jar", "cf", str(jar), "-C", str(classes), "."], check=True)
    return jar, driver_jar(directory, jar)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: f"{one[0]}: {one[1]} -> {one[2]}")
def test_the_oracle_finds_the_mutant(tmp_path: Path, mutant: tuple[str, str, str]) -> None:
    jars = map(str, mutated(tmp_path, *mutant))
    command = [sys.executable, "-m", "tests.query.patterns.test_java_mutants", *jars]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0, "no pattern has other matches"
    assert re.search(r"AssertionError|haengine\.patterns|Timeout timestamp", done.stderr), (
        done.stderr
    )


def main(engine: str, driver: str) -> None:
    scratch = Path(engine).parent / "scratch"
    jars = Path(engine), Path(driver)
    spark = start_spark(SparkSettings(master="local[1]", scratch=scratch, jars=jars))
    try:
        compare_many(spark, PATTERNS)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
