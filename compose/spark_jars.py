"""Copies the jars of Spark's Kafka source, with the pinned digests, into a new directory."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.connectors.kafka_jars import fetch, paths

PINS = Path(__file__).parents[1] / "benchmarks" / "spark_kafka_jars.txt"
target = Path(sys.argv[1])
target.mkdir(parents=True)
fetch(PINS)
for jar in paths(PINS):
    shutil.copy(jar, target)
