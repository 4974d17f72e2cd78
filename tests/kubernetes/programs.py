"""Helm, kubeconform and the JSON schemas of Kubernetes, in the cache of the tests.

    python -m tests.kubernetes.programs

``make kubernetes`` runs this command, which builds the two programs with Go 1.26 or newer.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

MODULES = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.16.4",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0",
}
SCHEMAS = (
    "kubernetes-validate==1.37.0 "
    "--hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
)
VERSIONS = ("1.30", "1.37")
"""The versions of Kubernetes whose API the manifests must fit."""
KINDS = (
    "configmap-v1",
    "deployment-apps-v1",
    "networkpolicy-networking-v1",
    "poddisruptionbudget-policy-v1",
    "role-rbac-v1",
    "rolebinding-rbac-v1",
    "service-v1",
    "serviceaccount-v1",
    "statefulset-apps-v1",
)
_ELSEWHERE = re.compile(r'"\$ref": "[^"#]*#')
CACHE = Path(os.environ.get("HA_ENGINE_TEST_CACHE", "~/.cache/ha-engine-tests")).expanduser()
_HOME = CACHE / "kubernetes" / "-".join(one.rpartition("@")[2] for one in MODULES.values())


def program(name: str) -> Path:
    return _HOME / "bin" / name


def schemas() -> str:
    """The place of the schemas, as kubeconform wants it."""
    file = "{{ .NormalizedKubernetesVersion }}/{{ .ResourceKind }}{{ .KindSuffix }}.json"
    return f"{_HOME}/schemas/{file}"


def _schema(version: str, kind: str) -> Path:
    return _HOME / "schemas" / f"v{version}.0" / f"{kind}.json"


def _have_programs() -> bool:
    return all(program(name).exists() for name in MODULES)


def _have_schemas() -> bool:
    return all(_schema(version, kind).exists() for version in VERSIONS for kind in KINDS)


def needs_kubernetes() -> pytest.MarkDecorator:
    """Skip a test if the programs are missing, unless no test may be skipped."""
    missing = (
        not (_have_programs() and _have_schemas()) and os.environ.get("TEST_PROGRAMS") != "all"
    )
    return pytest.mark.skipif(missing, reason="needs helm and kubeconform; make kubernetes")


def fetch() -> None:
    """Build the programs and fetch the schemas, if they are missing."""
    if not _have_programs():
        environment = os.environ | {"GOBIN": str(_HOME / "bin"), "CGO_ENABLED": "0"}
        for module in MODULES.values():
            subprocess.run(["go", "install", module], env=environment, check=True)
    if not _have_schemas():
        _fetch_schemas()


def _fetch_schemas() -> None:
    with tempfile.TemporaryDirectory() as home:
        pins = Path(home, "pins.txt")
        pins.write_text(SCHEMAS)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "--dest", home, "-r", str(pins)], check=True)
        (wheel,) = Path(home).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for version in VERSIONS:
                _write_schemas(archive, version)


def _write_schemas(archive: zipfile.ZipFile, version: str) -> None:
    """Write the schema of each kind with all definitions that it refers to."""
    origin = f"kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict"

    def read(name: str) -> dict[str, Any]:
        text = archive.read(f"{origin}/{name}.json").decode()
        found: dict[str, Any] = json.loads(_ELSEWHERE.sub('"$ref": "#', text))
        return found

    definitions = read("_definitions")["$defs"]
    for kind in KINDS:
        schema = read(kind) | {"$defs": definitions}
        del schema["$id"]
        file = _schema(version, kind)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(schema))


if __name__ == "__main__":
    fetch()
