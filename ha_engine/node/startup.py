"""Check what a node process needs at its start, before it imports the stages.

The checks come first, so that a node that cannot run does not start Spark. After the checks, the
node process sends its settings to the supervisor. The supervisor then starts Spark, the slowest
part of a start, while the node process imports the stages.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ha_engine.config import Config
from ha_engine.config.load import load_config
from ha_engine.config.quantities import split_address
from ha_engine.deploy import application_of
from ha_engine.journal.opening import read_identity
from ha_engine.jvm import engine_jar
from ha_engine.query.application import StreamApplication
from ha_engine.query.session import check_java
from ha_engine.query.settings import SECRET_VARIABLE
from ha_engine.query.yarn import hadoop_config
from ha_engine.system.file_lock import earlier_process
from ha_engine.system.runtime_dir import make_runtime_dir
from ha_engine.web.listening import listen

EMBEDDED = "embedded"


def read_files(path: Path | None) -> tuple[Config, StreamApplication]:
    """Load the config and the application, and check Java.

    Raises JavaMissing, ConfigError, JarMissing, HadoopConfigMissing or ApplicationError.
    """
    check_java()
    config = load_config(path, os.environ)
    application = application_of(config)
    if config.execution.on_yarn:
        hadoop_config()
    if needs_jar(config, application):
        engine_jar()
    return config, application


def needs_jar(config: Config, application: StreamApplication) -> bool:
    """Whether Spark certainly needs the engine's classes for the JVM.

    Spark also needs them for watermarks that a query sets itself, which only its plan shows.
    """
    return (
        config.execution.on_cluster
        or any(stream.log is not None for stream in application.streams.values())
        or application.has_patterns
        or application.has_several_watermarks
    )


def check_place(config: Config) -> str | None:
    """Check the data directory, the HTTP address and the runtime directory.

    Return the id of the node process that last used the data directory, if it is certainly dead.

    Raises DataDirectoryLocked, AddressInUse, ConfigError, ForeignJournal or JournalDamaged.
    """
    earlier = earlier_process(config.node.data_dir)
    listen(config.http.listen).close()
    make_runtime_dir(config.socket_path.parent)
    read_identity(config.node.data_dir / "journal", config.group)
    return earlier


def supervisor_settings(config: Config, application: StreamApplication) -> dict[str, Any]:
    """The fields of ``supervisor.Settings``."""
    return {
        "node": config.node.id,
        "data_dir": str(config.node.data_dir.resolve()),
        "query": _query_command(config, application),
        "query_environment": _query_environment(config),
        "starts_query": not config.is_backup,
        "start_timeout": config.query.start_timeout,
        "log": config.log.model_dump(),
        "embedded_dir": _embedded_dir(config),
    }


def _query_command(config: Config, application: StreamApplication) -> list[str]:
    data_dir = config.node.data_dir
    settings = {
        "query": config.query.model_dump(),
        "execution": config.execution.model_dump(include={"master", "executors", "kubernetes"}),
        "driver_hosts": driver_hosts(config),
        "log": {"node": config.node.id, **config.log.model_dump()},
        "checkpoint_dir": str(config.checkpoint_dir),
        "checkpoint_url": config.checkpoint_url,
        "scratch_dir": str(_scratch(config)),
        "outbox_dir": str(data_dir / "outbox"),
        "classes_dir": str(data_dir.absolute() / "classes"),
    }
    return [
        *("--socket", str(config.socket_path)),
        *("--application", str(application.path)),
        *("--config-json", json.dumps(settings, default=str)),
    ]


def _query_environment(config: Config) -> dict[str, str]:
    if not config.execution.on_cluster:
        return {}
    return {SECRET_VARIABLE: config.execution.secret.get_secret_value()}


def driver_hosts(config: Config) -> tuple[str, str]:
    """The address on which Spark's driver listens, and the host at which executors reach it."""
    execution = config.execution
    return split_address(execution.listen)[0], split_address(execution.address)[0]


def _scratch(config: Config) -> Path:
    """The directory of Spark's temporary files, which is not on a cluster's shared storage.

    The name of a query never starts with a dot, so no checkpoint has this name.
    """
    on_cluster, data_dir = config.execution.on_cluster, config.node.data_dir
    return (data_dir if on_cluster else config.checkpoint_dir).resolve() / ".scratch"


def _embedded_dir(config: Config) -> str | None:
    if config.database.url.get_secret_value() != EMBEDDED:
        return None
    return str(config.database.embedded_dir.expanduser().resolve())
