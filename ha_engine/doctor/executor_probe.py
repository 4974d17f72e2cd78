"""Look at a worker from inside an executor, for ``ha-engine cluster check``.

Spark sends these functions by value, so that they also run on a worker that has another release of
the engine, or none. So this module imports only the standard library, and functions import the
rest. A report is a dict of plain values for the same reason.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CONNECT_SECONDS = 5.0
CALL_SECONDS = 10.0
DRIVER_FILE = "driver"
"""The file that the driver writes into the directory of the check, and each executor reads."""
PACKAGES = ("pyspark", "pyarrow", "pandas", "grpcio")


def look(
    number: int,
    modules: Sequence[str],
    nodes: Mapping[str, str],
    token: str,
    ca: bytes | None,
    directory: str,
    content: str,
) -> dict[str, Any]:
    """Look at the worker of this executor, and return the fields of ``executors.Report``.

    ``nodes`` has the address of each node's service for executors, with the id of its group. The
    executor writes ``content`` into a file of the shared ``directory``.
    """
    name = f"executor-{number}"
    return {
        "host": socket.gethostname(),
        # The daemon of Python's workers: each executor has one.
        "process": os.getppid(),
        "interpreter": sys.executable,
        "versions": versions(),
        "modules": {one: problem for one in modules if (problem := _import_problem(one))},
        "nodes": {
            address: problem
            for address, group_id in nodes.items()
            if (problem := _node_problem(address, group_id, token, ca))
        },
        "file": name,
        "directory": _directory_problem(Path(directory), name, content),
    }


def now(number: int) -> dict[str, Any]:
    """The Unix time on this executor's host."""
    return {"host": socket.gethostname(), "process": os.getppid(), "time": time.time()}


def versions() -> dict[str, str]:
    """The versions that must be equal on the node and on each worker, by the name for people."""
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    try:
        engine = importlib.import_module("ha_engine")
    except ImportError:
        return found | {"ha-engine": "none", "files of ha-engine": "none"}
    directory = Path(str(engine.__file__)).parent
    return found | {"ha-engine": engine.__version__, "files of ha-engine": digest_of(directory)}


def digest_of(package: Path) -> str:
    """A digest of the files of an installed package, without what Python and a build add."""
    digest = hashlib.sha256()
    for file in sorted(_files(package)):
        digest.update(f"{file.relative_to(package)}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _files(package: Path) -> Iterator[Path]:
    for file in package.rglob("*"):
        if file.suffix not in (".pyc", ".jar") and file.is_file():
            yield file


def _import_problem(module: str) -> str:
    try:
        importlib.import_module(module)
    except Exception as error:  # a module of the application may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def _node_problem(address: str, group_id: str, token: str, ca: bytes | None) -> str:
    """The reason why the node at ``address`` sends this executor no events; empty if it would."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        return f"no connection ({error})"
    try:
        return _answer(address, group_id, token, ca)
    except ImportError as error:
        return f"not asked ({error})"


def _answer(address: str, group_id: str, token: str, ca: bytes | None) -> str:
    import grpc

    from ha_engine import __version__
    from ha_engine.v1 import ranges_pb2, ranges_pb2_grpc

    # No journal has this range, so a node that finds nothing else to refuse refuses the range.
    request = ranges_pb2.ReadRequest(release=__version__, group_id=group_id)
    if ca is None:
        channel = grpc.insecure_channel(address)
    else:
        credentials = grpc.ssl_channel_credentials(root_certificates=ca)
        channel = grpc.secure_channel(address, credentials)
    with channel:
        metadata = (("authorization", f"Bearer {token}"),)
        stub = ranges_pb2_grpc.RangesStub(channel)
        try:
            for _ in stub.Read(request, timeout=CALL_SECONDS, metadata=metadata):
                pass
        except grpc.RpcError as error:
            code = error.code()
            if code is grpc.StatusCode.INVALID_ARGUMENT:
                return ""
            return f"{code.name}, {(error.details() or '').rpartition('last error: ')[2]}"
    return "it answers, but not like a node"


def _directory_problem(directory: Path, name: str, content: str) -> str:
    """The reason why this executor cannot keep state beside ``directory``; empty if it can."""
    try:
        if (directory / DRIVER_FILE).read_text() != content:
            return f"{directory / DRIVER_FILE} has other content"
        file = directory / name
        with file.open("w") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        hard, soft = directory / f"{name}.hard", directory / f"{name}.soft"
        os.link(file, hard)
        soft.symlink_to(name)
        for one in (hard, soft):
            if one.read_text() != content:
                return f"the link {one} leads to other content"
        _fsync(directory)
    except OSError as error:
        return str(error)
    return ""


def _fsync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
