"""etcd and the API server of Kubernetes, in the cache of the tests.

    python -m tests.kubernetes.api_programs

``make kubernetes-api`` runs this command, which builds them with Go 1.26 or newer. On two cores
that takes some tens of minutes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.programs import CACHE

KUBERNETES, LIBRARIES, ETCD = "v1.34.4", "v0.34.4", "v3.6.4"
_HOME = CACHE / "kubernetes-api" / f"{KUBERNETES}-{ETCD}"
PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
}
_STAGED = re.compile(r"^\s*(k8s\.io/\S+) => \./staging/", re.MULTILINE)


def program(name: str) -> Path:
    return _HOME / name


def needs_api() -> pytest.MarkDecorator:
    """Skip a test if the programs are missing, unless no test may be skipped."""
    missing = not all(map(Path.exists, map(program, PROGRAMS)))
    missing = missing and os.environ.get("TEST_PROGRAMS") != "all"
    return pytest.mark.skipif(missing, reason="needs kube-apiserver; make kubernetes-api")


def fetch() -> None:
    """Build the programs that are missing."""
    missing = {name: package for name, package in PROGRAMS.items() if not program(name).exists()}
    if not missing:
        return
    _HOME.mkdir(parents=True, exist_ok=True)
    _write_module(_HOME / "go.mod")
    for name, package in missing.items():
        # Go would write to a program under its name while it links it.
        part = program(f"{name}.part")
        _go("build", "-trimpath", "-ldflags", "-s -w", "-o", str(part), package)
        part.rename(program(name))


def _write_module(file: Path) -> None:
    """Write a module that needs both. ``go install`` refuses the module of Kubernetes, in which
    directories replace its libraries."""
    require = f"\tk8s.io/kubernetes {KUBERNETES}\n\t{PROGRAMS['etcd']} {ETCD}\n"
    head = f"module programs\n\ngo 1.25.0\n\nrequire (\n{require})\n"
    file.write_text(head)
    found = json.loads(_go("mod", "download", "-json", f"k8s.io/kubernetes@{KUBERNETES}"))
    libraries = _STAGED.findall(Path(found["GoMod"]).read_text())
    replaced = "".join(f"\t{one} => {one} {LIBRARIES}\n" for one in libraries)
    file.write_text(f"{head}\nreplace (\n{replaced})\n")


def _go(*arguments: str) -> str:
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
    done = subprocess.run(
        ["go", *arguments],
        cwd=_HOME,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    fetch()
