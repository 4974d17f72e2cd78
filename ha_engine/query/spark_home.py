"""Make a Spark home without PySpark's archives, which Spark's Python workers would import first.

Spark puts ``python/lib/pyspark.zip`` of its home first on a worker's module path. Python keeps no
compiled modules of an archive, so each worker would compile PySpark again. Compiling takes 0.4 s of
CPU in each worker, and a query needs four workers before its first row. Without the archive the
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
    """Make ``directory`` the Spark home of each process that starts within the context.

    ``directory`` has links to the files of PySpark's own home.

    A Spark home that the user chose remains in use, because its workers may run another Python.
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
    """Make ``directory`` a Spark home without PySpark's archives. Raises OSError."""
    from pyspark.find_spark_home import _find_spark_home

    directory.mkdir()
    for entry in Path(_find_spark_home()).iterdir():
        if entry.name != _LEFT_OUT:
            (directory / entry.name).symlink_to(entry)
