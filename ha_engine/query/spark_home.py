"""A Spark home without the archives of Python sources that Spark's Python workers import first.

Spark puts ``python/lib/pyspark.zip`` of its home before everything else on a worker's path. Python
keeps no compiled modules of an archive, so each worker would compile PySpark again. That takes
0.4 s of CPU each, and a query needs four workers before its first row. Without the archive the
workers import the files that the driver imports.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_VARIABLE, _LEFT_OUT = "SPARK_HOME", "python"


@contextmanager
def lean_spark_home(directory: Path) -> Iterator[None]:
    """Make ``directory`` the Spark home of what starts inside; it links into PySpark's own home.

    A home that the user chose is left as it is: its workers may run another Python.
    """
    if _VARIABLE in os.environ or not _made(directory):
        yield
        return
    os.environ[_VARIABLE] = str(directory)
    try:
        yield
    finally:
        del os.environ[_VARIABLE]


def _made(directory: Path) -> bool:
    try:
        link_spark_home(directory)
    except OSError as error:
        log.warning("Spark's workers start more slowly", reason=str(error))
        return False
    return True


def link_spark_home(directory: Path) -> None:
    """Make ``directory`` a lean home. Raises OSError."""
    from pyspark.find_spark_home import _find_spark_home

    directory.mkdir()
    for entry in Path(_find_spark_home()).iterdir():
        if entry.name != _LEFT_OUT:
            (directory / entry.name).symlink_to(entry)
