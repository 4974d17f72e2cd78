"""Read all files that a node reads at its start, for ``ha-engine config check``.

The check cannot find problems that only Spark, the database or another node can show. ``ha-engine
doctor`` also asks the database and the other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from pydantic import SecretStr

from ha_engine.config import Config
from ha_engine.config.server_tls import ServerTls
from ha_engine.deploy import application_of
from ha_engine.errors import ConfigError, EngineError
from ha_engine.node.connectors import message_decoder, sinks_of, source_options
from ha_engine.query.application import StreamApplication
from ha_engine.query.plugin_sections import log_options
from ha_engine.query.yarn import VARIABLES, hadoop_config
from ha_engine.sync import credentials
from ha_engine.web.certificates import Presented, presented, require_sound
from ha_engine.web.tls import authority, server_context


def read_all(config: Config) -> list[str]:
    """Read all files that a node reads at its start, and return a name for each. Raises ConfigError
    with one line for each problem."""
    readings, problems = dict(_readings(config)), []
    for read in readings.values():
        try:
            read()
        except EngineError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return list(readings)


def _readings(config: Config) -> Iterator[tuple[str, Callable[[], object]]]:
    yield f"application {config.application}", partial(read_application, config)
    for one in presented(config):
        yield one.section, partial(_check_certificate, config, one)
    if config.execution.on_yarn:
        yield " or ".join(VARIABLES), hadoop_config


def _check_certificate(config: Config, one: Presented) -> None:
    require_loadable(config, one)
    require_sound(one)


def require_loadable(config: Config, one: Presented) -> None:
    """Raise ConfigError if a node could not load the files of a certificate."""
    if one.ca is not None:
        credentials.require_usable(config.event_sync.tls)
    else:
        server_context(ServerTls(certificate=one.certificate, key=one.key), one.section)
    ca = config.execution.tls.ca
    if one.section == "execution.tls" and ca is not None:
        authority(ca, "execution.tls.ca")


def read_application(config: Config) -> StreamApplication:
    """Read the application and everything that its sinks and sources refer to.

    Raises ConfigError, ApplicationError.
    """
    application = application_of(config)
    require_usable(config, application)
    return application


def require_usable(config: Config, application: StreamApplication) -> None:
    """Read everything that the sinks and sources of an application refer to.

    Raises ConfigError, ApplicationError.
    """
    sinks_of(_with_some_url(config), application, last_mark=lambda query: 0)
    for stream in application.streams.values():
        directory = application.directory_of(stream)
        for source in stream.sources:
            source_options(stream, source, directory)
            message_decoder(stream, source, directory, config.receive.max_record_rows)
        if stream.log is not None:
            log_options(stream.name, stream.log, directory)


def _with_some_url(config: Config) -> Config:
    """The config with a placeholder as the URL of an embedded database. An embedded database has no
    URL before it runs, and the check does not connect to it."""
    database = config.database
    if database.url.get_secret_value() != "embedded":
        return config
    some = database.model_copy(update={"url": SecretStr("postgresql://")})
    return config.model_copy(update={"database": some})
