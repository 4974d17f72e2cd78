"""Copy the jars of Spark's Kafka source, with the pinned digests, into a new directory."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.connectors.kafka_jars import SPARK, fetch, paths

target = Path(sys.argv[1])
target.mkdir(parents=True)
fetch(SPARK)
for jar in paths(SPARK):
    shutil.copy(jar, target)
