"""Classes for Spark's JVM. ``haengine.kafka`` reads Kafka at the offsets that the node decides,
``haengine.shuffle`` reads the blocks of a shuffle in one order, ``haengine.kubernetes`` lists and
deletes the pods of executors, ``haengine.patterns`` finds patterns of events, and
``haengine.streaming`` keeps the watermarks of a query's streams.

- build: compile them to a jar.
"""

from __future__ import annotations

from pathlib import Path

from ha_engine.errors import JarMissing

JAR = Path(__file__).parent / "ha-engine.jar"


def engine_jar() -> Path:
    """The absolute path of the jar with these classes. Raises JarMissing."""
    if not JAR.is_file():
        raise JarMissing(
            f"{JAR} is missing, which Spark needs here; install ha_engine from its wheel, "
            "or build the jar with 'python -m ha_engine.jvm.build', which needs a JDK"
        )
    return JAR.resolve()


def installed_jars() -> tuple[Path, ...]:
    """The jar, or nothing in an installation from source that did not build it."""
    return (JAR.resolve(),) if JAR.is_file() else ()
