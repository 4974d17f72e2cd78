"""The settings with which Spark keeps checkpoints on a test's server of S3."""

from __future__ import annotations

from pathlib import Path

from tests.connectors.kafka_jars import fetch, spark_jars
from tests.connectors.s3_broker import S3Broker

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "writer", "AWS_SECRET_ACCESS_KEY": "secret"}
"""In the environment of the nodes and, by Spark's driver, of the executors."""
JARS = Path(__file__).parent / "s3a_jars.txt"
"""What Spark needs for s3a, but Amazon's library in parts, since its bundle is large."""


def settings(broker: S3Broker) -> dict[str, str]:
    """Fetch the jars that are missing, and return the content of ``query.spark``."""
    fetch(JARS)
    return {"spark.jars": spark_jars(JARS)} | {
        f"spark.hadoop.fs.s3a.{name}": value
        for name, value in {
            "endpoint": broker.url,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "performance.flags": "create,delete,mkdir",
        }.items()
    }
