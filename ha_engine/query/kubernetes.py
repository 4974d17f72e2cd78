"""Spark on Kubernetes: settings that other clusters do not need, and the pods of former drivers.

Spark's driver runs in the query process. It asks the API of Kubernetes for one pod for each
executor. The container of such a pod runs ``executor_pod``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from py4j.protocol import Py4JError, Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

KUBERNETES = "k8s://"
"""How ``spark.master`` begins. The rest is the URL of the API."""
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Kubernetes writes it into the containers of pods that may use the API."""


def kubernetes_settings(image: str, pod: str, namespace: Path = _NAMESPACE) -> dict[str, str]:
    """Settings that a user may override. ``namespace`` is a file that may be missing."""
    settings = {"spark.kubernetes.container.image": image}
    if pod:
        # Kubernetes deletes the pods of the executors with the pod of their driver.
        settings["spark.kubernetes.driver.pod.name"] = pod
    if namespace.is_file():
        settings["spark.kubernetes.namespace"] = namespace.read_text().strip()
    return settings


class Applications:
    """The ids of the applications whose pods Kubernetes may still have, in a file.

    A driver deletes its executors' pods when it stops. If the driver is killed, its executors end,
    but Kubernetes keeps their pods, and nobody deletes them.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def add(self) -> str:
        """Return the id for a new application."""
        application = f"ha-engine-{secrets.token_hex(8)}"
        with self._file.open("a") as file:
            file.write(f"{application}\n")
        return application

    def delete_former(self, spark: SparkSession) -> None:
        """Delete the pods of all applications but that of ``spark``."""
        own = spark.sparkContext.applicationId
        former = set(self._file.read_text().split()) - {own}
        if not former:
            return
        try:
            with executor_pods(spark) as pods:
                for application in sorted(former):
                    pods.delete(application)
        except Py4JError as error:
            log.warning("pods of former executors remain", reason=reason_of(error))
        else:
            self._file.write_text(f"{own}\n")


@contextmanager
def executor_pods(spark: SparkSession) -> Iterator[Any]:
    """The Java object ExecutorPods of this driver."""
    jvm: Any = spark.sparkContext._jvm
    with closing(jvm.haengine.kubernetes.ExecutorPods(spark.sparkContext._jsc.getConf())) as pods:
        yield pods


def reason_of(error: Py4JError) -> str:
    """The first line of what Java says, of its innermost cause."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else None
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    return str(error if cause is None else cause.getMessage()).partition("\n")[0]
