"""The manifests of the Helm chart, as far as a test can check them without a Kubernetes cluster.

The tests without the mark ``nightly`` read the manifests that ``tests.kubernetes.render`` wrote.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ha_engine import __version__
from ha_engine.config.load import load_config, load_tree
from ha_engine.config.receiver import ReceiverConfig
from ha_engine.query.application import load_application
from tests.docs.pages import yaml_blocks
from tests.kubernetes.programs import VERSIONS, needs_kubernetes, program, schemas
from tests.kubernetes.render import (
    CASES,
    CHART,
    NAMESPACE,
    RELEASE,
    ROOT,
    balancer_config,
    file_of,
    heading,
    helm,
    render,
)
from tests.programs import found, needs
from tests.sync.authority import Authority

Manifest = dict[str, Any]
SECRET = "a-secret-of-the-cluster"
each_case = pytest.mark.parametrize("case", CASES)


@cache
def manifests(case: str) -> list[Manifest]:
    return [one for one in yaml.safe_load_all(file_of(case).read_text()) if one]


def named(case: str, kind: str, name: str) -> Manifest:
    (one,) = (
        one
        for one in manifests(case)
        if (one["kind"], one["metadata"]["name"]) == (kind, f"{RELEASE}{name}")
    )
    return one


def pods(case: str) -> Iterator[tuple[str, Manifest]]:
    """The template of each pod, by the name of its owner."""
    for one in manifests(case):
        if one["kind"] in ("Deployment", "StatefulSet"):
            yield one["metadata"]["name"], one["spec"]["template"]


def containers(template: Manifest) -> list[Manifest]:
    spec = template["spec"]
    return [*spec["containers"], *spec.get("initContainers", ())]


def files(case: str, name: str, directory: Path) -> Path:
    """Write the files of a ConfigMap."""
    for file, text in named(case, "ConfigMap", name)["data"].items():
        (directory / file).write_text(text)
    return directory


@each_case
def test_the_manifests_were_rendered_from_the_present_chart(case: str) -> None:
    first = file_of(case).read_text().partition("\n")[0] + "\n"
    assert first == heading(case), "run python -m tests.kubernetes.render"


def test_the_chart_has_the_version_of_the_engine() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


@each_case
@pytest.mark.parametrize("number", [0, 1])
def test_the_config_of_each_node_is_valid_and_names_the_other(
    case: str, number: int, tmp_path: Path
) -> None:
    node, other = f"{RELEASE}-{number}", f"{RELEASE}-{1 - number}"
    environment = {
        "HA_ENGINE_NODE_ID": node,
        "HA_ENGINE_DATABASE_URL": "postgresql://user@host/name",
        "HA_ENGINE_EXECUTION_SECRET": SECRET,
    }
    template = named(case, "StatefulSet", "")["spec"]["template"]["spec"]
    given = {one["name"]: one.get("value") for one in template["containers"][0]["env"]}
    assert given.pop("HA_ENGINE_CONFIG") == "/etc/ha-engine/$(HA_ENGINE_NODE_ID).yaml"
    assert given.keys() <= environment.keys()
    used = {name: environment[name] for name in given}
    config = load_config(files(case, "-config", tmp_path) / f"{node}.yaml", used)
    domain = f"{RELEASE}-nodes.{NAMESPACE}.svc"
    assert config.node.id == node
    assert config.event_sync.peers == {other: f"{other}.{domain}:9893"}
    assert config.http.advertise == f"{template_scheme(case)}://{node}.{domain}:8080"
    ports = {one["name"]: one["containerPort"] for one in template["containers"][0]["ports"]}
    assert config.http.listen == f"0.0.0.0:{ports['http']}"
    assert config.ingest.listen == f"0.0.0.0:{ports['grpc']}"
    assert config.event_sync.listen == f"0.0.0.0:{ports['sync']}"
    if case == "plain":
        assert config.query.heap == 2 << 30
    else:
        assert config.execution.listen == f"0.0.0.0:{ports['executors']}"
        assert "events.example.com" in config.http.host_names
    load_application(files(case, "-application", tmp_path) / config.application.name)


def template_scheme(case: str) -> str:
    return "https" if CASES[case][1]["tls"].get("secretName") else "http"


def test_the_config_of_a_receiver_is_valid(tmp_path: Path) -> None:
    directory = files("cluster", "-config", tmp_path)
    config = load_tree(ReceiverConfig, directory / "receiver.yaml", {}).config
    service = named("cluster", "Service", "-receivers")["metadata"]["name"]
    assert config.http.advertise == f"https://{service}.{NAMESPACE}.svc:8080"


@needs("haproxy")
@each_case
def test_haproxy_takes_the_config_of_the_balancer(case: str, tmp_path: Path) -> None:
    text = balancer_config(case)
    ca = Authority(tmp_path).files("a", san="IP:127.0.0.1")["ca"]
    file = tmp_path / "haproxy.cfg"
    file.write_text(text.replace("/etc/ha-engine/tls/ca.crt", str(ca)))
    haproxy = found("haproxy")
    assert haproxy, "apt-get install haproxy"
    done = subprocess.run([haproxy, "-c", "-f", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ("check-ssl" in text) == (template_scheme(case) == "https")


@each_case
def test_every_pod_is_restricted_and_gets_no_variables_of_services(case: str) -> None:
    assert dict(pods(case)).keys() >= {RELEASE, f"{RELEASE}-balancer"}
    for name, template in pods(case):
        spec = template["spec"]
        uses_the_api = (case, name) == ("executors", RELEASE)
        assert spec["automountServiceAccountToken"] is uses_the_api
        require_restricted(template)
        for container in containers(template):
            assert container["resources"]["limits"]["memory"]


def require_restricted(pod: Manifest) -> None:
    spec = pod["spec"]
    assert spec["enableServiceLinks"] is False, "HA_ENGINE_PORT of a Service would be a setting"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(pod):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@each_case
def test_every_mount_has_its_volume_and_is_not_within_another(case: str) -> None:
    claims = {
        one["metadata"]["name"]: {claim["metadata"]["name"] for claim in found}
        for one in manifests(case)
        if (found := one["spec"].get("volumeClaimTemplates") if "spec" in one else None)
    }
    for name, template in pods(case):
        require_mountable(template, claims.get(name, set()))


def require_mountable(pod: Manifest, claims: Set[str] = frozenset()) -> None:
    volumes = {one["name"] for one in pod["spec"]["volumes"]} | claims
    for container in containers(pod):
        mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert mounts.keys() <= volumes
        paths = [Path(path) for path in mounts.values()]
        # The runtime cannot make a directory in a ConfigMap.
        assert not [one for one in paths if set(one.parents) & set(paths)]


@each_case
def test_every_selector_selects_a_pod_and_every_port_exists(case: str) -> None:
    templates = [template for _, template in pods(case)]

    def selected(labels: dict[str, str]) -> list[Manifest]:
        found = [one for one in templates if labels.items() <= one["metadata"]["labels"].items()]
        assert found, labels
        return found

    for one in manifests(case):
        selector = one.get("spec", {}).get("selector", {})
        if one["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            assert len(selected(selector["matchLabels"])) == 1
        if one["kind"] == "Service":
            (template,) = selected(selector)
            ports = {
                p["name"]: p["containerPort"]
                for c in containers(template)
                for p in c.get("ports", ())
            }
            for port in one["spec"]["ports"]:
                target = port.get("targetPort", port["port"])
                assert target in ports or target in ports.values()
    for template in templates:
        for container in containers(template):
            names = {port["name"] for port in container.get("ports", ())}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                for action in container.get(probe, {}).values():
                    if isinstance(action, dict):
                        assert action["port"] in names


@each_case
def test_nodes_start_together_and_are_never_disrupted_together(case: str) -> None:
    nodes = named(case, "StatefulSet", "")["spec"]
    assert (nodes["replicas"], nodes["podManagementPolicy"]) == (2, "Parallel")
    # systemd waits as long.
    unit = (ROOT / "conf" / "systemd" / "ha-engine.service").read_text()
    spec = nodes["template"]["spec"]
    assert f"TimeoutStopSec={spec['terminationGracePeriodSeconds']}s" in unit
    assert spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert named(case, "PodDisruptionBudget", "-nodes")["spec"]["maxUnavailable"] == 1
    assert named(case, "Service", "-nodes")["spec"]["publishNotReadyAddresses"] is True


def test_masters_workers_and_nodes_use_one_cluster() -> None:
    config = yaml.safe_load(named("cluster", "ConfigMap", "-config")["data"][f"{RELEASE}-0.yaml"])
    master = config["execution"]["master"]
    worker = named("cluster", "Deployment", "-workers")["spec"]["template"]["spec"]
    assert worker["containers"][0]["args"][-1] == master
    masters = named("cluster", "StatefulSet", "-master")["spec"]
    addresses = [
        f"{RELEASE}-master-{number}.{masters['serviceName']}:7077"
        for number in range(masters["replicas"])
    ]
    assert master == "spark://" + ",".join(addresses)
    mounted = {one["mountPath"] for one in worker["containers"][0]["volumeMounts"]}
    assert config["execution"]["checkpoint"] in mounted


def test_a_node_may_make_pods_of_executors_which_reach_it_and_its_state(tmp_path: Path) -> None:
    directory = files("executors", "-config", tmp_path)
    node = yaml.safe_load((directory / f"{RELEASE}-1.yaml").read_text())
    execution, spark = node["execution"], node["query"]["spark"]
    nodes = named("executors", "StatefulSet", "")["spec"]["template"]
    assert execution["master"] == "k8s://https://kubernetes.default.svc"
    assert execution["kubernetes"] == {
        "image": nodes["spec"]["containers"][0]["image"],
        "pod": f"{RELEASE}-1",
    }

    template = Path(spark["spark.kubernetes.executor.podTemplateFile"])
    mounts = {one["mountPath"] for one in nodes["spec"]["containers"][0]["volumeMounts"]}
    assert str(template.parent) in mounts
    executor = yaml.safe_load((directory / template.name).read_text())
    require_restricted(executor)
    require_mountable(executor)
    assert executor["spec"]["automountServiceAccountToken"] is False
    values = CASES["executors"][1]["spark"]
    assert executor["metadata"]["annotations"] == values["executorAnnotations"]
    assert executor["spec"]["containers"][0]["env"] == values["executorEnv"]
    assert executor["spec"]["nodeSelector"] == values["executorNodeSelector"]
    assert executor["spec"]["tolerations"] == values["executorTolerations"]
    mounted = {one["mountPath"] for one in executor["spec"]["containers"][0]["volumeMounts"]}
    assert execution["checkpoint"] in mounted & mounts

    admitted = named("executors", "NetworkPolicy", "-nodes")["spec"]["ingress"][-1]["from"]
    (one,) = (peer["podSelector"]["matchLabels"] for peer in admitted)
    assert one.items() <= executor["metadata"]["labels"].items()
    account = named("executors", "RoleBinding", "-nodes")["subjects"][0]["name"]
    assert nodes["spec"]["serviceAccountName"] == account


# -- with Helm -------------------------------------------------------------------------------------


@needs_kubernetes()
@pytest.mark.nightly("test_the_manifests_were_rendered_from_the_present_chart")
@each_case
def test_helm_renders_the_committed_manifests(case: str) -> None:
    assert heading(case) + render(case) == file_of(case).read_text()


@needs_kubernetes()
@pytest.mark.nightly("test_every_selector_selects_a_pod_and_every_port_exists")
@each_case
def test_helm_lint_has_no_objection(case: str) -> None:
    application, values = CASES[case]
    said = helm("lint", {**values, "application": {"application.yaml": application}})
    assert "1 chart(s) linted, 0 chart(s) failed" in said


@needs_kubernetes()
@pytest.mark.nightly("test_every_selector_selects_a_pod_and_every_port_exists")
@each_case
@pytest.mark.parametrize("version", VERSIONS)
def test_kubeconform_finds_the_manifests_valid(case: str, version: str) -> None:
    words = ["-strict", "-summary", f"-kubernetes-version={version}.0"]
    command = [program("kubeconform"), *words, f"-schema-location={schemas()}", file_of(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Valid: {len(manifests(case))}, Invalid: 0" in done.stdout


@needs_kubernetes()
@pytest.mark.nightly("test_alerts_pass_their_promtool_tests reads the same file")
def test_the_rules_and_jobs_of_prometheus_are_those_of_the_alerts() -> None:
    rendered = list(yaml.safe_load_all(render("cluster", monitoring={"enabled": True})))
    alerts = yaml.safe_load((ROOT / "conf" / "prometheus" / "alerts.yaml").read_text())
    assert [one["spec"] for one in rendered if one["kind"] == "PrometheusRule"] == [alerts]
    jobs = {
        endpoint["relabelings"][0]["replacement"]
        for one in rendered
        if one["kind"] == "PodMonitor"
        for endpoint in one["spec"]["podMetricsEndpoints"]
    }
    assert jobs == {"ha-engine", "ha-engine-receivers", "spark-masters", "spark-workers"}


@needs_kubernetes()
@pytest.mark.nightly("test_snippets.py::test_configs_in_the_documents_load")
def test_helm_takes_the_values_of_the_documents(tmp_path: Path) -> None:
    found = [tree for _, tree in yaml_blocks(ROOT / "docs" / "KUBERNETES.md")]
    assert len(found) == 3
    for values in found:
        rendered = yaml.safe_load_all(render("plain", **values))
        (config,) = [
            one
            for one in rendered
            if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", f"{RELEASE}-config")
        ]
        if "config" in values:
            (tmp_path / "node.yaml").write_text(config["data"][f"{RELEASE}-0.yaml"])
            secrets = {
                "HA_ENGINE_DATABASE_URL": "postgresql://user@host/name",
                "HA_ENGINE_EXECUTION_SECRET": SECRET,
            }
            load_config(tmp_path / "node.yaml", secrets)
        else:
            (tmp_path / "receiver.yaml").write_text(config["data"]["receiver.yaml"])
            load_tree(ReceiverConfig, tmp_path / "receiver.yaml", {})


@needs_kubernetes()
@pytest.mark.nightly("a case of the chart that has no file of its own")
def test_state_in_a_bucket_needs_no_claim() -> None:
    spark = {"enabled": True, "secretName": "pair-spark", "checkpoint": "s3a://states/ha"}
    rendered = render("plain", spark=spark)
    assert "checkpoint: s3a://states/ha" in rendered
    assert "persistentVolumeClaim" not in rendered
    assert "/var/lib/ha-engine-checkpoint" not in rendered


@needs_kubernetes()
@pytest.mark.nightly("the chart's own advice, which no other test reads")
@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ({"application": {}}, "application is empty"),
        ({"database": {"secretName": ""}}, "database.secretName is missing"),
        ({"tls": {"secretName": ""}}, "tls.secretName is missing"),
        ({"spark": {"enabled": True}}, "spark.secretName is missing"),
        ({"spark": {"enabled": True, "manager": "yarn"}}, "spark.manager is yarn"),
        ({"spark": {"enabled": True, "secretName": "a"}}, "spark.checkpointClaim is missing"),
        (
            {
                "spark": {
                    "enabled": True,
                    "secretName": "a",
                    "checkpointClaim": "b",
                    "checkpoint": "s3a://states/ha",
                }
            },
            "spark.checkpointClaim and spark.checkpoint are set",
        ),
        (
            {"spark": {"enabled": True, "secretName": "a", "checkpointClaim": "b", "masters": 2}},
            "spark.zookeeper is missing",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_missing_values_are_named_with_advice(values: dict[str, Any], advice: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        render("plain", **values)
    assert advice in caught.value.stderr
