"""Spark on YARN: the place of YARN's addresses, and settings that other clusters do not need.

Spark's driver runs in the query process. YARN runs one container with Spark's ApplicationMaster for
it, which asks YARN for the containers of the executors.
"""

from __future__ import annotations

import os
from pathlib import Path

from ha_engine.errors import HadoopConfigMissing

YARN = "yarn"
"""The value of ``spark.master``."""
VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_ADDRESSES = "yarn-site.xml"
_ARCHIVES = "PYSPARK_ARCHIVES_PATH"


def hadoop_config() -> Path:
    """The directory with YARN's addresses. Raises HadoopConfigMissing."""
    given = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    for directory in map(Path, given.values()):
        if (directory / _ADDRESSES).is_file():
            return directory.absolute()
    shown = " and ".join(f"{name}={value}" for name, value in given.items())
    raise HadoopConfigMissing(
        f"{shown or 'the environment'} names no directory with {_ADDRESSES}, which has the "
        f"addresses of YARN; set {VARIABLES[0]} in the environment of the node"
    )


def yarn_settings() -> dict[str, str]:
    """Settings that a user may override."""
    from pyspark.find_spark_home import _find_spark_home

    jars = Path(_find_spark_home(), "jars").resolve()
    return {
        # Each host has PySpark at the same path. Spark would upload its jars at each start.
        "spark.yarn.jars": f"local:{jars}/*",
        # As for the failures of executors.
        "spark.yarn.am.attemptFailuresValidityInterval": "1h",
    }


def use_installed_pyspark() -> None:
    """Let executors import PySpark from its path on each host, instead of an uploaded archive.

    Python keeps no compiled modules of an archive (see ``spark_home``).
    """
    import pyspark

    os.environ[_ARCHIVES] = f"local:{Path(pyspark.__file__).parents[1]}"
