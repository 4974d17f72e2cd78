"""Run an executor of Spark in its pod on Kubernetes.

Spark's driver gives the container of an executor one argument, ``executor``, and everything else in
environment variables. Spark's own images have a shell script for it. The image of the engine starts
``ha-engine`` instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from ha_engine.errors import NotInExecutorPod
from ha_engine.query.session import find_java

_MAIN = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_MEMORY, _DIRECTORIES = "SPARK_EXECUTOR_MEMORY", "SPARK_LOCAL_DIRS"
_JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
_CLASS_PATH = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "SPARK_CLASSPATH")


def run() -> NoReturn:
    """Become the JVM of the executor. Raises NotInExecutorPod and JavaMissing."""
    command = java_command(os.environ)
    # The executor writes its files into its working directory. The image has no other place for it.
    os.chdir(os.environ[_DIRECTORIES].split(",")[0])
    os.execv(command[0], command)  # noqa: S606 - the words of a command, without a shell


def java_command(environ: Mapping[str, str]) -> list[str]:
    """The command line of the executor's JVM. Raises NotInExecutorPod and JavaMissing."""
    from pyspark.find_spark_home import _find_spark_home

    missing = [
        name for name in (*_ARGUMENTS.values(), _MEMORY, _DIRECTORIES) if name not in environ
    ]
    if missing:
        raise NotInExecutorPod(
            f"{', '.join(missing)} is missing in the environment; only Spark on Kubernetes calls "
            "'ha-engine executor', in the pods that it makes"
        )
    options = {
        int(found[1]): environ[found[0]] for found in map(_JAVA_OPTION.fullmatch, environ) if found
    }
    jars = Path(_find_spark_home(), "jars", "*")
    places = [*(environ[name] for name in _CLASS_PATH if environ.get(name)), str(jars)]
    return [
        find_java(),
        *(options[number] for number in sorted(options)),
        *(f"{option}{environ[_MEMORY]}" for option in ("-Xms", "-Xmx")),
        *("-cp", os.pathsep.join(places)),
        _MAIN,
        *(word for option, name in _ARGUMENTS.items() for word in (option, environ[name])),
    ]
