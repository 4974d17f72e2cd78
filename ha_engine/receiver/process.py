"""Run a receiver: check its config, start its servers, and stop it when a signal arrives.

A receiver that stops first refuses new requests, so that balancers and clients turn to another one.
It ends when each request that it has taken is answered. The brokers decide each record within the
``timeout`` of its topic, so this wait is short.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
import uvloop

from ha_engine import logs
from ha_engine.api.connection import ConnectionPool
from ha_engine.api.server import WebServer
from ha_engine.api.turns import Turns
from ha_engine.config.load import load_tree
from ha_engine.config.receiver import ReceiverConfig
from ha_engine.errors import ConfigError, ProducerFailed, SourceRefused
from ha_engine.query.application import StreamApplication, load_application
from ha_engine.query.plugin_sections import log_options
from ha_engine.receive.ingest import IngestServer
from ha_engine.receive.intake import Intake
from ha_engine.receiver.metrics import ReceiverMetrics
from ha_engine.receiver.routes import web_application
from ha_engine.receiver.store import TopicStore
from ha_engine.receiver.topic import Topic
from ha_engine.system.systemd import ServiceManager
from ha_engine.web.connection_limits import connection_limits
from ha_engine.web.listening import listen
from ha_engine.web.tls import server_context

log = structlog.get_logger(__name__)

ANSWER_SECONDS = 1.0
"""The time in which the last answers over gRPC are sent. The streams of clients end after it."""


def check(path: Path | None, environ: Mapping[str, str]) -> list[str]:
    """Read all files that a receiver reads at its start, and return the names of the streams whose
    events it takes. Raises ConfigError, ApplicationError."""
    config, application = _read(path, environ)
    server_context(config.http.tls, "http.tls")
    server_context(config.ingest.tls, "ingest.tls")
    return list(_topics(application, lambda reason: None))


def run(path: Path | None, environ: Mapping[str, str]) -> None:
    """Run a receiver until SIGTERM or SIGINT. Raises ConfigError, ApplicationError, AddressInUse,
    ProducerFailed."""
    # gRPC would write lines of its own to stderr, one for each stranger that fails a TLS handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    config, application = _read(path, environ)
    logs.configure(config.log, node=socket.gethostname(), process="receiver")
    uvloop.run(_serve(config, application, ServiceManager(environ)))


def _read(
    path: Path | None, environ: Mapping[str, str]
) -> tuple[ReceiverConfig, StreamApplication]:
    config = load_tree(ReceiverConfig, path, environ).config
    return config, load_application(config.application)


def _topics(application: StreamApplication, on_fatal: Callable[[str], object]) -> dict[str, Topic]:
    """The topic of each stream that has one as its log. Raises ConfigError."""
    topics = {}
    for name, stream in application.streams.items():
        if stream.log is not None:
            options = log_options(name, stream.log, application.directory_of(stream))
            try:
                topics[name] = Topic(options, on_fatal)
            except SourceRefused as refused:
                raise ConfigError(f"stream {name}: log: {refused}") from refused
    if not topics:
        raise ConfigError(
            f"no stream of application {application.name} has a topic as its log, so there is "
            "nothing to receive; send the events to a node, or give a stream a log"
        )
    return topics


async def _serve(
    config: ReceiverConfig, application: StreamApplication, service: ServiceManager
) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, ended, None)
    topics = _topics(
        application,
        lambda reason: loop.call_soon_threadsafe(_end, ended, ProducerFailed(reason)),
    )
    metrics, closed = ReceiverMetrics(), Counter[str]()
    store = TopicStore(application, topics, config.receive, metrics)
    metrics.attach(store, closed)
    intake = Intake(store)
    limits = connection_limits(config.http, config.ingest)
    access = config.access.checks
    grpc = IngestServer(intake, config.ingest, access, lambda _: "", limits.ingest, closed)
    pages = Turns(web_application(config, intake, store, metrics))
    web = WebServer(pages, config.http, ConnectionPool(limits.http, closed))
    http_socket = listen(config.http.listen)
    for topic in topics.values():
        topic.start()
    await grpc.start()
    serving = asyncio.create_task(web.serve(sockets=[http_socket]), name="http")
    service.send("READY=1", f"STATUS=takes events of {', '.join(topics)}")
    log.info("listening", http=config.http.listen, grpc=grpc.address, streams=list(topics))
    try:
        await asyncio.wait({ended, serving}, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping", waiting_rows=store.waiting.total())
        service.stopping()
        store.close("this receiver is stopping")
        await store.idle()
    finally:
        await grpc.stop(ANSWER_SECONDS)
        web.stop()
        await serving
        for topic in topics.values():
            topic.close()
    await ended


def _end(ended: asyncio.Future[None], error: ProducerFailed | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
