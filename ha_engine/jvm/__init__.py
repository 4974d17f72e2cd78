"""Classes for Spark's JVM. ``haengine.kafka`` reads Kafka at the offsets that the node decides,
``haengine.shuffle`` reads the blocks of a shuffle in one order, and ``haengine.kubernetes``
lists and deletes the pods of executors.

- build: compile them to a jar.
"""

from __future__ import annotations

from pathlib import Path

from ha_engine.errors import ClusterJarMissing

JAR = Path(__file__).parent / "ha-engine.jar"


def cluster_jar() -> Path:
    """The absolute path of the jar with these classes. Raises ClusterJarMissing."""
    if not JAR.is_file():
        raise ClusterJarMissing(
            f"{JAR} is missing, which Spark needs on a cluster; install ha_engine from its wheel, "
            "or build the jar with 'python -m ha_engine.jvm.build', which needs a JDK"
        )
    return JAR.resolve()
