"""The plain job from Kafka to Kafka: Spark's own connector reads, decodes, encodes, and writes.

    python -m benchmarks.plain_kafka_job SETTINGS.json

Written in good faith: the engine's own Spark settings, the same batch size, and no Python in the
way of a row. Its Kafka sink has no transactions: after a crash it may write a batch twice.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.workload import DDL, WORKLOADS
from ha_engine.query.session import SparkSettings, spark_conf


def rows_of(spark: SparkSession, settings: dict[str, Any]) -> DataFrame:
    reader = spark.readStream.format("kafka").option("subscribe", settings["input"])
    reader = reader.option("kafka.bootstrap.servers", settings["brokers"])
    reader = reader.option("startingOffsets", "earliest")
    reader = reader.option("maxOffsetsPerTrigger", settings["batch_events"])
    return reader.load().selectExpr(f"from_json(string(value), '{DDL}') AS row").select("row.*")


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = spark_conf(SparkSettings()) | {"spark.jars": settings["jars"]}
    spark = SparkSession.builder.config(map=conf).getOrCreate()
    (workload,) = (one for one in WORKLOADS if one.name == settings["workload"])
    rows_of(spark, settings).createOrReplaceTempView(workload.name)
    values = spark.sql(workload.sql).selectExpr("to_json(struct(*)) AS value")
    writer = values.writeStream.format("kafka").option("topic", settings["output"])
    writer = writer.option("kafka.bootstrap.servers", settings["brokers"])
    writer.option("checkpointLocation", settings["checkpoint"]).start().awaitTermination()


if __name__ == "__main__":
    main()
