"""Run an observer: check its config, follow the nodes, serve HTTP, and stop at a signal."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import httpx
import structlog
import uvloop

from ha_engine import logs
from ha_engine.api.connection import ConnectionPool
from ha_engine.api.server import WebServer
from ha_engine.client.token import trusted
from ha_engine.config.load import load_tree
from ha_engine.config.observer import ObserverConfig, WatchConfig
from ha_engine.observer.asking import AskedNode
from ha_engine.observer.following import Following
from ha_engine.observer.routes import web_application
from ha_engine.observer.store import OutputStore
from ha_engine.system.file_lock import lock_directory
from ha_engine.system.open_files import allow_open_files
from ha_engine.system.systemd import ServiceManager
from ha_engine.web.listening import listen
from ha_engine.web.tls import server_context

log = structlog.get_logger(__name__)

_LOCK = "observer.lock"
_OWN_FILES = 100
"""The files that the observer needs besides the connections of its clients."""


def check(path: Path | None, environ: Mapping[str, str]) -> list[str]:
    """Read all files that an observer reads at its start, and return the names of the nodes that it
    watches. Raises ConfigError."""
    config = load_tree(ObserverConfig, path, environ).config
    server_context(config.http.tls, "http.tls")
    return list(config.watch.nodes)


def run(path: Path | None, environ: Mapping[str, str]) -> None:
    """Run an observer until SIGTERM or SIGINT. Raises ConfigError, AddressInUse, DiskFailed,
    DataDirectoryLocked."""
    config = load_tree(ObserverConfig, path, environ).config
    logs.configure(config.log, node=socket.gethostname(), process="observer")
    uvloop.run(_serve(config, ServiceManager(environ)))


async def _serve(config: ObserverConfig, service: ServiceManager) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    watch = config.watch
    lock_directory(watch.data_dir, _LOCK)  # until the process ends
    store = OutputStore(watch.data_dir, watch.keep_rows, watch.keep_size)
    async with _client(watch) as client:
        nodes = [
            AskedNode(name, url.rstrip("/"), client, watch.timeout)
            for name, url in watch.nodes.items()
        ]
        following = Following(nodes, store, watch.interval)
        files = allow_open_files(config.http.max_connections + _OWN_FILES)
        pool = ConnectionPool(min(config.http.max_connections, files - _OWN_FILES), Counter())
        web = WebServer(web_application(config, following), config.http, pool)
        web_socket = listen(config.http.listen)
        serving = asyncio.create_task(web.serve(sockets=[web_socket]), name="http")
        following_nodes = asyncio.create_task(following.run(), name="following")
        stopping = asyncio.create_task(stopped.wait(), name="signal")
        service.send("READY=1", f"STATUS=watches {', '.join(watch.nodes)}")
        log.info("listening", http=config.http.listen, nodes=list(watch.nodes))
        await asyncio.wait(
            {serving, following_nodes, stopping}, return_when=asyncio.FIRST_COMPLETED
        )
        log.info("stopping")
        service.stopping()
        stopping.cancel()
        web.stop()
        await serving
        if following_nodes.done():
            following_nodes.result()
        following_nodes.cancel()
        await asyncio.wait({following_nodes})
        await following.save()


def _client(watch: WatchConfig) -> httpx.AsyncClient:
    """The client for all nodes. It trusts the authorities of SSL_CERT_FILE, else the system's."""
    headers = {}
    if watch.token is not None:
        headers["Authorization"] = f"Bearer {watch.token.get_secret_value()}"
    return httpx.AsyncClient(headers=headers, verify=trusted(), timeout=watch.timeout)
