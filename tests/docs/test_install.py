"""The tests execute the commands and files of the install guide, as far as one machine can."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from ha_engine.config.load import load_config
from tests.docs.pages import INSTALL, ROOT, installed_config
from tests.programs import needs

GUIDE = INSTALL.read_text()
NODES = ("node-a", "node-b")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


def openssl(*words: str, cwd: Path) -> str:
    done = subprocess.run(["openssl", *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("node", NODES)
def test_config_of_the_guide_is_valid_on_either_node(node: str, tmp_path: Path) -> None:
    (url,) = re.findall(r"^postgresql://.*$", GUIDE, flags=re.MULTILINE)
    path = tmp_path / "ha-engine.yaml"
    path.write_text(installed_config(node))
    loaded = load_config(path, {"HA_ENGINE_DATABASE_URL": url})
    assert {loaded.node.id, *loaded.event_sync.peers} == set(NODES)
    assert loaded.event_sync.tls.certificate == tmp_path / f"{node}.pem"


@needs("openssl")
def test_certificates_of_the_guide_fit_the_links_of_the_nodes(tmp_path: Path) -> None:
    commands = re.findall(r"^\$ openssl (.*)$", GUIDE, flags=re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        openssl(*shlex.split(command), cwd=tmp_path)
    for node in NODES:
        openssl("verify", "-CAfile", "ca.pem", f"{node}.pem", cwd=tmp_path)
        names = openssl(
            "x509", "-in", f"{node}.pem", "-noout", "-ext", "subjectAltName", cwd=tmp_path
        )
        assert names.split()[-1] == f"DNS:{node}"


def test_files_that_the_guide_installs_exist() -> None:
    names = re.findall(r"\bconf/[\w./-]+\w", GUIDE)
    assert len(names) > 5
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_table_of_ports_has_the_ports_of_the_config() -> None:
    config, _ = blocks("yaml")
    for port in set(re.findall(r":(\d{4})\b", config)):
        assert f"| {port} |" in GUIDE


@needs("promtool")
def test_prometheus_accepts_the_configuration_of_the_guide(tmp_path: Path) -> None:
    _, config = blocks("yaml")
    rules = tmp_path / "alerts.yaml"
    rules.write_text((ROOT / "conf" / "prometheus" / "alerts.yaml").read_text())
    path = tmp_path / "prometheus.yml"
    path.write_text(config.replace("/etc/prometheus/alerts.yaml", str(rules)))
    command = ["promtool", "check", "config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
