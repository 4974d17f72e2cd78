"""Spark on Kubernetes: settings that other clusters do not need, and the pods of former drivers.

Spark's driver runs in the query process. It asks the API of Kubernetes for one pod for each
executor. The container of such a pod runs ``executor_pod``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from py4j.protocol import Py4JError, Py4JJavaError

from ha_engine.query.failure import one_line
from ha_engine.system.files import replace_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

KUBERNETES = "k8s://"
"""How ``spark.master`` begins. The rest is the URL of the API."""
_CLIENT_ERROR = "KubernetesClientException"
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Kubernetes writes it into the containers of pods that may use the API."""


def kubernetes_settings(image: str, pod: str, namespace: Path = _NAMESPACE) -> dict[str, str]:
    """Settings that a user may override. ``namespace`` is a file that may be missing."""
    settings = {
        "spark.kubernetes.container.image": image,
        # Spark would tell the executors the address on which the driver listens, such as 0.0.0.0.
        "spark.kubernetes.executor.useDriverPodIP": "false",
        # By default the driver exits after some pods failed or were refused, even if others work.
        "spark.executor.maxNumFailures": str((1 << 31) - 1),
    }
    if pod:
        # Kubernetes deletes the pods of the executors with the pod of their driver.
        settings["spark.kubernetes.driver.pod.name"] = pod
    if namespace.is_file():
        settings["spark.kubernetes.namespace"] = namespace.read_text().strip()
    return settings


class Applications:
    """The ids of the applications whose pods Kubernetes may still have, in a file.

    A query process ends by killing its JVM, so Spark's driver does not delete its executors' pods.
    The executors end, but Kubernetes keeps their pods.
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
        try:
            if former := set(self._file.read_text().split()) - {own}:
                delete_pods(spark, former)
                replace_file(self._file, [f"{own}\n".encode()])
        except (OSError, Py4JError) as error:
            log.warning("pods of former executors remain", reason=one_line(error))


def delete_pods(spark: SparkSession, applications: Iterable[str]) -> None:
    """Delete the executors' pods of these applications. Raises Py4JError."""
    with executor_pods(spark) as pods:
        for application in applications:
            pods.delete(application)


@contextmanager
def executor_pods(spark: SparkSession) -> Iterator[Any]:
    """The Java object ExecutorPods of this driver."""
    jvm: Any = spark.sparkContext._jvm
    with closing(jvm.haengine.kubernetes.ExecutorPods(spark.sparkContext._jsc.getConf())) as pods:
        yield pods


def start_problem(error: Py4JJavaError) -> str:
    """The reason why Spark did not start, and advice."""
    causes = list(_causes(error))
    reason = str(causes[-1].getMessage()).partition("\n")[0]
    if any(one.getClass().getSimpleName() == _CLIENT_ERROR for one in causes):
        return (
            f"Kubernetes did not accept Spark's driver ({reason}); check that execution.master is "
            "the URL of the API, and that the service account or the kubeconfig of this node may "
            "create pods and ConfigMaps"
        )
    return (
        f"Spark did not start ({reason}); check execution.kubernetes, and the settings of "
        "Kubernetes below query.spark"
    )


def _causes(error: Py4JJavaError) -> Iterator[Any]:
    cause = error.java_exception
    while cause is not None:
        yield cause
        cause = cause.getCause()
