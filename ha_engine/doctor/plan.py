"""All checks for a config, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from ha_engine.config import Config
from ha_engine.config.ingest import DEFAULT_LISTEN
from ha_engine.config.load import load_config
from ha_engine.doctor import clock, database, disk, peers, pooler, ports, sinks, stored, tools
from ha_engine.doctor.certificates import certificate
from ha_engine.doctor.check import Check
from ha_engine.doctor.finding import Finding, failed, ok
from ha_engine.errors import ConfigError
from ha_engine.node.check import read_application
from ha_engine.web.certificates import presented

FILES_SECONDS = 1800.0
"""The deadline of a check that reads a whole journal or outbox."""


def planned(path: Path | None, environ: Mapping[str, str]) -> list[Check]:
    """All checks for the config of ``path`` and ``environ``.

    A wrong config makes the check ``config`` fail. The other checks then are those of the default
    config, and the check that failed keeps them from running.
    """
    config, problem = read_config(path, environ)
    return [
        check_of("python", tools.python),
        check_of("java", tools.java),
        check_of("spark", tools.spark, "python"),
        config_check(path, problem),
        *_on_the_cluster(config),
        *_on_this_host(config),
        *_on_the_database(config),
        *_between_nodes(config),
    ]


def read_config(path: Path | None, environ: Mapping[str, str]) -> tuple[Config, ConfigError | None]:
    """The config, or the default config and what is wrong with that of ``path``."""
    try:
        return load_config(path, environ), None
    except ConfigError as error:
        return Config(), error


def config_check(path: Path | None, problem: ConfigError | None) -> Check:
    """The check ``config``, on which most other checks depend."""
    return check_of("config", lambda: _loaded(path, problem))


def _loaded(path: Path | None, problem: ConfigError | None) -> Finding:
    if problem is not None:
        return failed("; ".join(str(problem).splitlines()), "correct these settings")
    return ok(f"{path} is valid" if path else "no config file: the defaults and HA_ENGINE_*")


def _on_the_cluster(config: Config) -> Iterator[Check]:
    master = config.execution.master
    if config.execution.on_cluster:
        found = ok(f"queries run on {master}, which 'ha-engine cluster check' checks")
        yield check_of("cluster", lambda: found, "config")


def _on_this_host(config: Config) -> Iterator[Check]:
    home = config.node.data_dir
    yield check_of("application", lambda: application(config), "config")
    yield check_of("memory", lambda: tools.memory(config.query.heap), "config")
    yield check_of("disk/data_dir", lambda: disk.data_dir(home), "config")
    yield check_of("disk/mode", lambda: disk.mode(home), "disk/data_dir")
    yield check_of("disk/space", lambda: disk.space(config), "disk/data_dir", "application")
    yield check_of("disk/file_system", lambda: disk.file_system(home), "disk/data_dir")
    sync = config.event_sync
    yield check_of("disk/fsync", lambda: disk.fsync(home, sync.sync_timeout), "disk/data_dir")
    yield from _ports(config)
    for one in presented(config):
        yield check_of(f"certificate/{one.section}", partial(certificate, config, one), "config")
    yield Check("journal", partial(stored.journal, config), ("disk/data_dir",), FILES_SECONDS)
    yield Check("outbox", partial(stored.outbox, config), ("disk/data_dir",), FILES_SECONDS)
    yield check_of("high_water", lambda: stored.high_water(home), "disk/data_dir")
    yield check_of("clock/synchronised", clock.synchronised)


def application(config: Config) -> Finding:
    """Whether the application is valid. Raises ConfigError, ApplicationError."""
    found = read_application(config)
    return ok(f"{config.application} is valid, with the queries {', '.join(found.queries)}")


def _ports(config: Config) -> Iterator[Check]:
    home, ingest = config.node.data_dir, config.ingest.listen
    listens = {"http.listen": (config.http.listen, True)}
    if config.event_sync.peers:
        listens["event_sync.listen"] = (config.event_sync.listen, True)
    if config.execution.on_cluster:
        listens["execution.listen"] = (config.execution.listen, True)
    listens["ingest.listen"] = (ingest or DEFAULT_LISTEN, ingest is not None)
    for setting, (address, required) in listens.items():
        run = partial(ports.listening, setting, address, home, required=required)
        yield check_of(f"port/{setting}", run, "config")


def _on_the_database(config: Config) -> Iterator[Check]:
    yield check_of("database", lambda: database.server(config), "config")
    runs: dict[str, Callable[[Config], Finding]] = {
        "database/rights": database.rights,
        "database/schema": database.schema,
        "database/settings": database.settings,
        "database/synchronous_standby": database.synchronous_standby,
        "database/synchronous_commit": pooler.synchronous_commit,
        "database/timeouts": pooler.timeouts,
        "database/notifications": pooler.notifications,
        "clock/database": clock.against_database,
    }
    for name, run in runs.items():
        yield check_of(name, partial(run, config), "database")
    yield check_of("sinks", lambda: sinks.writable(config), "application", "database")


def _between_nodes(config: Config) -> Iterator[Check]:
    for peer in config.event_sync.peers:
        name = f"peer/{peer}"
        sync, http = partial(peers.event_sync, config, peer), partial(peers.http, config, peer)
        yield check_of(f"{name}/event_sync", sync, "application", "java")
        yield check_of(f"{name}/http", http, "config")
        yield check_of(
            f"{name}/reaches_us", partial(peers.reaches_us, config, peer), f"{name}/http"
        )


def check_of(name: str, run: Callable[[], Finding], *needs: str) -> Check:
    """A check without progress."""
    return Check(name, lambda _: run(), needs)
