"""Check whether a node can listen on the addresses of its config."""

from __future__ import annotations

from collections.abc import Iterator
from errno import EACCES, EADDRINUSE
from pathlib import Path
from typing import Any

import psutil

from ha_engine.config.quantities import split_address
from ha_engine.doctor.finding import Finding, failed, ok, warning
from ha_engine.errors import AddressInUse
from ha_engine.system.file_lock import NODE_LOCK, holder_of
from ha_engine.web.listening import listen


def listening(setting: str, address: str, home: Path, *, required: bool = True) -> Finding:
    """Whether ``address`` is free, or this host's node already listens on it.

    A node starts without an address that is not ``required``.
    """
    port = split_address(address)[1]
    try:
        listen(address).close()
    except AddressInUse as error:
        number = getattr(error.__cause__, "errno", None)
        reason = getattr(error.__cause__, "strerror", None) or str(error)
        if number == EADDRINUSE:
            return _of_user(setting, address, port, holder_of(home / NODE_LOCK), required)
        if number == EACCES:
            advice = "choose a port from 1024 on, or permit this user to use the port"
        else:
            advice = f"set {setting} to an address of this host"
        return failed(f"{address} cannot be used: {reason}", advice)
    return ok(f"{address} is free")


def _of_user(setting: str, address: str, port: int, node: int | None, required: bool) -> Finding:
    """The finding for an address that a process uses; ``node`` is the pid of this host's node."""
    try:
        if node is not None and port in _ports(node):
            return ok(f"this host's node (process {node}) listens on {address}")
    except psutil.AccessDenied:
        return warning(
            f"{address} is in use; this host's node runs as another user, so it is not known "
            "whether the node uses the address",
            "run this command as the node's user",
        )
    except psutil.NoSuchProcess:
        pass
    text = f"{address} is in use by {_users(port) or 'another process'}"
    remedy = f"stop that process, or choose another port for {setting}"
    if required:
        return failed(text, remedy)
    return warning(f"{text}, so the node will not listen there", remedy)


def _ports(pid: int) -> set[int]:
    """The TCP ports on which a process listens. Raises psutil.Error."""
    return {port for port, _ in _listeners(psutil.Process(pid).net_connections(kind="tcp"))}


def _users(port: int) -> str:
    """The processes that listen on a port, as far as this user may see them."""
    everything = _listeners(psutil.net_connections(kind="tcp"))
    pids = {pid for number, pid in everything if number == port and pid is not None}
    return " and ".join(f"process {pid} ({psutil.Process(pid).name()})" for pid in sorted(pids))


def _listeners(connections: list[Any]) -> Iterator[tuple[int, int | None]]:
    """The port of each listening socket, with the pid of its process if it is known."""
    for one in connections:
        if one.status == psutil.CONN_LISTEN:
            yield one.laddr.port, getattr(one, "pid", None)
