"""A Spark home without the archives of Python sources that Spark's Python workers import first.

Spark puts ``python/lib/pyspark.zip`` of its home before everything else on a worker's path. Python
keeps no compiled modules of an archive, so each worker would compile PySpark anew, 0.4 s of CPU
each, and a query needs four before its first row. Without it they import what the driver does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VARIABLE, _LEFT_OUT = "SPARK_HOME", "python"


@contextmanager
def lean_spark_home(directory: Path) -> Iterator[None]:
    """What is started meanwhile takes ``directory`` for its Spark home: links into the real one."""
    from pyspark.find_spark_home import _find_spark_home

    before = os.environ.get(_VARIABLE)
    _link(Path(_find_spark_home()), directory)
    os.environ[_VARIABLE] = str(directory)
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE)
        if before is not None:
            os.environ[_VARIABLE] = before


def _link(home: Path, directory: Path) -> None:
    directory.mkdir(parents=True)
    for entry in home.iterdir():
        if entry.name != _LEFT_OUT:
            (directory / entry.name).symlink_to(entry.resolve())
