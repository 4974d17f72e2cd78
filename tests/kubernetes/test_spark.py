"""Spark's daemons with the files and the variables that the chart gives them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from tests.cluster.standalone import SECRET, Daemon, Master, Worker, ZooKeeper
from tests.kubernetes.render import RELEASE, file_of
from tests.waiting import wait_until

PATIENCE = 60.0


def config() -> str:
    """The settings of masters and workers."""
    (found,) = (
        one
        for one in yaml.safe_load_all(file_of("cluster").read_text())
        if one and one["metadata"]["name"] == f"{RELEASE}-spark" and one["kind"] == "ConfigMap"
    )
    return str(found["data"]["spark.conf"])


@pytest.mark.nightly("test_chart.py::test_masters_workers_and_nodes_use_one_cluster")
def test_a_worker_registers_with_the_secret_of_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_SPARK_AUTH_SECRET", SECRET)
    directories = [tmp_path / name for name in ("zookeeper", "master", "worker")]
    for directory in directories:
        directory.mkdir()
    with ExitStack() as stack:
        stack.callback((keeper := ZooKeeper(directories[0])).kill)
        keeper.start()

        def start(daemon: Daemon) -> None:
            text = config().replace("zookeeper:2181", f"127.0.0.1:{keeper.port}")
            assert SECRET not in text
            daemon._settings.write_text(text)
            stack.callback(daemon.kill)
            daemon.start()

        start(master := Master(directories[1], {}))
        start(Worker(directories[2], f"spark://127.0.0.1:{master.port}", 1, "600m"))
        url = f"http://127.0.0.1:{master.web_port}/json/"
        wait_until(
            lambda: [one["state"] for one in httpx.get(url).json()["workers"]] == ["ALIVE"],
            within=PATIENCE,
        )
