"""The engine counts the sources of a query as Spark does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ha_engine.query.plan import sources_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly("starts a query for each shape; make test runs test_offsets.py"),
]
SHAPES = {
    "one": "SELECT * FROM a",
    "both": "SELECT * FROM a UNION ALL SELECT * FROM b",
    "twice": "SELECT * FROM a UNION ALL SELECT * FROM a",
    "joined": "SELECT x.value FROM a x JOIN a y ON x.value = y.value",
    "named": "WITH c AS (SELECT * FROM a) SELECT * FROM c UNION ALL SELECT * FROM c",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_sources_are_as_many_as_the_offsets_in_sparks_log(
    spark: Any, tmp_path: Path, shape: str
) -> None:
    for name in ("a", "b"):
        spark.readStream.format("rate").load().createOrReplaceTempView(name)
    frame = spark.sql(SHAPES[shape])
    streaming = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        streaming.processAllAvailable()
    finally:
        streaming.stop()
    _, _, *offsets = (tmp_path / "offsets" / "0").read_text().splitlines()
    assert sources_of(frame) == len(offsets)
