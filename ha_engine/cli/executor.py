"""``ha-engine executor``: run an executor of Spark in a pod on Kubernetes."""

from __future__ import annotations


def executor() -> None:
    """Run an executor in a pod that Spark made on Kubernetes. Only Spark calls this command.

    The image of the engine starts it with the variables that Spark's driver gives to the pod.

    Example: ha-engine executor
    """
    from ha_engine.query.executor_pod import run

    run()
