"""Check Python, Java, Spark and the memory that they need."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from rich.filesize import decimal

from ha_engine import __version__
from ha_engine.doctor.finding import Finding, failed, ok, warning
from ha_engine.query.session import check_java, find_java

BESIDE_THE_HEAP = 1 << 30
"""Memory that the node process and Spark's Python workers need beside the heap of the JVM."""
_PACKAGES = ("pyspark", "pyarrow", "pandas", "grpcio")


def python() -> Finding:
    """The versions of the engine, of Python and of the packages that compute batches."""
    try:
        versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    except PackageNotFoundError as error:
        return failed(
            f"the package {error.name} is not installed",
            "install ha-engine and its packages again: pip install -r constraints.txt",
        )
    return ok(f"ha-engine {__version__}, Python {platform.python_version()}, {versions}")


def java() -> Finding:
    """The Java that Spark will start. Raises JavaMissing."""
    return ok(f"Java {check_java()} at {find_java()}")


def spark() -> Finding:
    """The files of Spark, without a start of Spark."""
    from pyspark.find_spark_home import _find_spark_home

    home = Path(_find_spark_home())
    jars = len(list((home / "jars").glob("spark-core_*.jar")))
    if not jars:
        return failed(
            f"{home} has no jars/spark-core_*.jar, so Spark cannot start",
            "unset SPARK_HOME, or install the package pyspark again",
        )
    return ok(f"Spark {version('pyspark')} in {home}; 'ha-engine app check' starts it")


def memory(heap: int) -> Finding:
    """Compare the memory of this host with ``query.heap``, in bytes."""
    total, needed = psutil.virtual_memory().total, heap + BESIDE_THE_HEAP
    if total < heap:
        return failed(
            f"this host has {decimal(total)} of memory, less than query.heap ({decimal(heap)})",
            "lower query.heap, or use a host with more memory",
        )
    if total < needed:
        return warning(
            f"this host has {decimal(total)} of memory, and a node with this query.heap needs "
            f"about {decimal(needed)}",
            "lower query.heap, or use a host with more memory",
        )
    return ok(f"this host has {decimal(total)} of memory; query.heap is {decimal(heap)}")
