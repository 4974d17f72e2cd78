"""The API of a real Kubernetes for tests, and a host that runs the pods of executors.

etcd and kube-apiserver are real. A kubelet needs root and a container runtime, so ``Host`` stands
for scheduler and kubelet: it runs the command of each pod as a process of this host.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.connectors.server import Server, new_directory
from tests.kubernetes import api_programs
from tests.waiting import wait_until

NAMESPACE = "streams"
DRIVER = "pair-0"
"""A pod of the namespace, in which the drivers of the tests seem to run."""
LOOK_SECONDS = 0.1
READY_SECONDS = 120.0
ANSWER_SECONDS = 30.0
ADDRESS = "127.0.0.1"
MANIFESTS = Path(__file__).parents[1] / "kubernetes" / "executors.yaml"
"""The chart's, which have the rights of a driver and the template of its pods."""
_ADMIN, _DRIVER = "token-of-the-administrator", "token-of-a-driver"
_TOKENS = f'{_ADMIN},admin,1,"system:masters"\n{_DRIVER},driver,2\n'
_ENDED = {True: "Succeeded", False: "Failed"}


class Program(Server):
    """A program of the API."""

    ready_seconds = READY_SECONDS

    def command(self) -> list[str]:
        return [str(api_programs.program(self.program)), *self.arguments()]


class Etcd(Program):
    program = "etcd"

    def arguments(self) -> list[str]:
        url = f"http://{ADDRESS}:{self.port}"
        return [
            f"--data-dir={self.directory / 'data'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls=http://{ADDRESS}:0",
            "--unsafe-no-fsync",
        ]

    def answers(self, connection: socket.socket) -> bool:
        return True


class ApiServer(Program):
    """The API, with a certificate that it makes for itself."""

    program = "kube-apiserver"

    def __init__(self, directory: Path, etcd: Etcd) -> None:
        super().__init__(directory)
        self._etcd = etcd
        self.url = f"https://{ADDRESS}:{self.port}"
        (directory / "tokens.csv").write_text(_TOKENS)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (directory / "accounts.key").write_bytes(pem)

    def arguments(self) -> list[str]:
        accounts = self.directory / "accounts.key"
        return [
            f"--etcd-servers=http://{ADDRESS}:{self._etcd.port}",
            f"--bind-address={ADDRESS}",
            f"--secure-port={self.port}",
            f"--cert-dir={self.directory}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={accounts}",
            f"--service-account-signing-key-file={accounts}",
            # The controllers that make the accounts of namespaces do not run.
            "--disable-admission-plugins=ServiceAccount",
        ]

    def answers(self, connection: socket.socket) -> bool:
        with suppress(httpx.HTTPError), self.client() as client:
            return client.get("/readyz").is_success
        return False

    @property
    def certificate(self) -> Path:
        return self.directory / "apiserver.crt"

    def client(self) -> httpx.Client:
        """A client of an administrator."""
        return httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {_ADMIN}"},
            verify=False,
            timeout=ANSWER_SECONDS,
            trust_env=False,
        )

    def write_kubeconfig(self, file: Path) -> None:
        """Write the config of a client with the rights of a driver."""
        cluster = {"server": self.url, "certificate-authority": str(self.certificate)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "driver", "user": {"token": _DRIVER}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "driver"}}],
            "current-context": "tests",
        }
        file.write_text(yaml.safe_dump(content))


class Host:
    """Runs the pods of the namespace, at most ``room`` at once."""

    def __init__(self, client: httpx.Client, directory: Path, room: int) -> None:
        self._client, self._directory, self._room = client, directory, room
        self._processes: dict[str, psutil.Popen] = {}
        """The processes of pods that run, by the name of the pod."""
        self._stopped = threading.Event()

    def executors(self) -> list[psutil.Popen]:
        return list(self._processes.values())

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        """Do what the API says until ``stop``, then kill the processes of all pods."""
        try:
            while not self._stopped.wait(LOOK_SECONDS):
                with suppress(httpx.HTTPError):  # a test may restart the API
                    self._look()
        finally:
            for name in list(self._processes):
                self._kill(name)

    def _look(self) -> None:
        answer = self._client.get(_PODS).raise_for_status()
        pods = {one["metadata"]["name"]: one for one in answer.json()["items"]}
        for name in self._processes.keys() - pods.keys():
            self._kill(name)
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                self._kill(name)
                self._report(pods[name], _ENDED[process.returncode == 0], process.returncode)
        for name, pod in pods.items():
            if pod["status"]["phase"] == "Pending" and name not in self._processes:
                self._start(name, pod)

    def _start(self, name: str, pod: Mapping[str, Any]) -> None:
        if len(self._processes) >= self._room:
            self._report(pod, "Pending")
            return
        [container] = pod["spec"]["containers"]
        home = self._directory / name
        home.mkdir()
        environment = {one["name"]: _value(one, pod) for one in container["env"]}
        # A volume of the pod is at this path in a container.
        environment |= {"SPARK_LOCAL_DIRS": str(home), "PATH": os.environ["PATH"]}
        with (home / "log").open("wb") as log:
            self._processes[name] = psutil.Popen(
                [sys.executable, "-m", "ha_engine", *container["args"]],
                env=environment,
                cwd=home,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._report(pod, "Running")

    def _kill(self, name: str) -> None:
        """Kill what is left of a pod: the executor and its Python workers."""
        process = self._processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _report(self, pod: Mapping[str, Any], phase: str, code: int | None = None) -> None:
        [container] = pod["spec"]["containers"]
        state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        own = {name: container[name] for name in ("name", "image")}
        seen = {**own, "imageID": "", "ready": code is None, "restartCount": 0, "state": state}
        status: dict[str, Any] = {"phase": phase, "podIP": ADDRESS, "containerStatuses": [seen]}
        if phase == "Pending":
            why = {"reason": "Unschedulable", "message": "0/1 nodes are available"}
            status = {"conditions": [{"type": "PodScheduled", "status": "False", **why}]}
        # The driver may have deleted the pod meanwhile.
        self._client.patch(
            f"{_PODS}/{pod['metadata']['name']}/status",
            json={"status": status},
            headers=_MERGE,
        )


_MERGE = {"content-type": "application/merge-patch+json"}
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


def _value(variable: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """The value of a variable of a container."""
    if "valueFrom" not in variable:
        return str(variable.get("value", ""))
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    return {"status.podIP": ADDRESS, "metadata.name": str(pod["metadata"]["name"])}[path]


class Kubernetes:
    """An API server and the host of its pods."""

    def __init__(self, api: ApiServer, client: httpx.Client, host: Host, template: Path) -> None:
        self.api, self._client, self._host = api, client, host
        self.url = f"k8s://{api.url}"
        """The value of ``execution.master``."""
        self.spark = {
            "spark.kubernetes.namespace": NAMESPACE,
            "spark.kubernetes.executor.podTemplateFile": str(template),
        }
        """The settings of Spark."""

    def executors(self) -> list[psutil.Popen]:
        return self._host.executors()

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of executors that the API has, also of those that ended."""
        found = self._client.get(_PODS).raise_for_status().json()["items"]
        return [one for one in found if one["metadata"]["name"] != DRIVER]

    def config_maps(self) -> list[str]:
        found = self._client.get(_CONFIG_MAPS).raise_for_status().json()["items"]
        # Each namespace has one with the certificate of the API.
        names = [str(one["metadata"]["name"]) for one in found]
        return [name for name in names if name.startswith("spark-exec-")]

    def delete_a_pod(self) -> None:
        self._client.delete(f"{_PODS}/{self.pods()[0]['metadata']['name']}").raise_for_status()

    def refuse_further_pods(self) -> None:
        """Let the namespace have no room for a pod that it does not have yet."""
        quota = {"metadata": {"name": "full"}, "spec": {"hard": {"pods": "1"}}}
        path = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
        self._client.post(path, json=quota).raise_for_status()
        # The controller that would count the pods does not run.
        status = {"status": {"hard": {"pods": "1"}, "used": {"pods": "1"}}}
        self._client.patch(f"{path}/full/status", json=status, headers=_MERGE).raise_for_status()

    def admit_pods(self) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/full"
        self._client.delete(path).raise_for_status()

    def kill_an_executor(self) -> None:
        self.executors()[0].kill()

    def restart_the_api(self) -> None:
        self.api.kill()
        self.api.start()


@contextmanager
def running_kubernetes(room: int = 4) -> Iterator[Kubernetes]:
    """Run the API, with a file in KUBECONFIG for clients, and a host for ``room`` executors."""
    home = Path(tempfile.mkdtemp(prefix="kubernetes-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        etcd = Etcd(new_directory(home / "etcd"))
        stack.callback(etcd.kill)
        etcd.start()
        api = ApiServer(new_directory(home / "api"), etcd)
        stack.callback(api.kill)
        api.start()
        client = stack.enter_context(api.client())
        _give_rights(client)
        (home / "executor.yaml").write_text(executor_template())
        _make_driver_pod(client, yaml.safe_load(executor_template()))
        host = Host(client, new_directory(home / "pods"), room)
        running = stack.enter_context(ThreadPoolExecutor(1)).submit(host.run)
        stack.callback(running.result)
        stack.callback(host.stop)
        api.write_kubeconfig(home / "kubeconfig.yaml")
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("KUBECONFIG", str(home / "kubeconfig.yaml"))
        yield Kubernetes(api, client, host, home / "executor.yaml")


def _give_rights(client: httpx.Client) -> None:
    """Make the namespace, and give a driver the rights that the chart gives to it."""
    group = "rbac.authorization.k8s.io"
    rules = next(one["rules"] for one in _manifests() if one["kind"] == "Role")
    metadata = {"name": "driver", "namespace": NAMESPACE}
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    objects = {
        "/api/v1/namespaces": {"metadata": {"name": NAMESPACE, "labels": restricted}},
        f"/apis/{group}/v1/namespaces/{NAMESPACE}/roles": {"metadata": metadata, "rules": rules},
        f"/apis/{group}/v1/namespaces/{NAMESPACE}/rolebindings": {
            "metadata": metadata,
            "subjects": [{"kind": "User", "name": "driver", "apiGroup": group}],
            "roleRef": {"kind": "Role", "name": "driver", "apiGroup": group},
        },
    }
    for path, content in objects.items():
        # The API makes its own roles and namespaces after it is ready.
        wait_until(lambda: client.post(path, json=content).status_code in (201, 409))  # noqa: B023


def _make_driver_pod(client: httpx.Client, template: Mapping[str, Any]) -> None:
    """Make a pod that is ready, with the spec of an executor's."""
    [container] = template["spec"]["containers"]
    spec = {**template["spec"], "containers": [{**container, "image": "ha-engine:test"}]}
    client.post(_PODS, json={"metadata": {"name": DRIVER}, "spec": spec}).raise_for_status()
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    patch = {"json": {"status": ready}, "headers": _MERGE}
    client.patch(f"{_PODS}/{DRIVER}/status", **patch).raise_for_status()


def _manifests() -> Iterator[dict[str, Any]]:
    yield from filter(None, yaml.safe_load_all(MANIFESTS.read_text()))


def executor_template() -> str:
    """The chart's template for the pods of executors."""
    return next(
        one["data"]["executor.yaml"]
        for one in _manifests()
        if one["kind"] == "ConfigMap" and "executor.yaml" in one["data"]
    )
