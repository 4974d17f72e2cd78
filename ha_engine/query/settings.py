"""The command line with which the supervisor starts the query process."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ha_engine.jvm import installed_jars
from ha_engine.query.session import ClusterSettings, SparkSettings

SECRET_VARIABLE = "HA_ENGINE_EXECUTION_SECRET"  # noqa: S105 - the name, not the secret
"""The environment variable with the cluster's secret, that of the config's execution.secret."""


@dataclass(frozen=True, slots=True)
class Directories:
    """The directories of checkpoints and of the outbox; each has one directory per query.

    ``objects`` is the URL of the group's checkpoints if they are on object storage.
    """

    checkpoints: Path
    outbox: Path
    objects: str | None = None


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The section ``log`` of the config, and the node that every log line names."""

    node: str
    level: str
    format: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The parsed command line.

    The JSON in ``--config-json`` has ``query``, ``execution``, ``driver_hosts``, ``log``,
    ``checkpoint_dir``, ``checkpoint_url``, ``scratch_dir``, ``outbox_dir`` and ``classes_dir``.
    ``query`` is the config's section of that name, with durations and sizes as plain numbers.
    ``execution`` has the keys ``master``, ``executors`` and ``kubernetes`` of that section. ``log``
    has the fields of LogSettings. ``--parent`` is the text of a ProcessId; the query process ends
    when that process ends. ``classes`` is the directory of the class archive.
    """

    socket: str
    incarnation: str
    application: Path
    spark: SparkSettings
    directories: Directories
    read_parallelism: int
    nice: int
    classes: Path | None
    log: LogSettings

    @classmethod
    def parse(cls, arguments: list[str]) -> Settings:
        parser = argparse.ArgumentParser(prog="ha_engine.query.main")
        for name in ("socket", "incarnation", "application", "config-json"):
            parser.add_argument(f"--{name}", required=True)
        parser.add_argument("--parent")
        given = parser.parse_args(arguments)
        config = json.loads(given.config_json)
        return cls(
            given.socket,
            given.incarnation,
            Path(given.application),
            _spark_settings(config),
            Directories(
                Path(config["checkpoint_dir"]),
                Path(config["outbox_dir"]),
                config["checkpoint_url"],
            ),
            config["query"]["read_parallelism"],
            config["query"]["nice"],
            Path(config["classes_dir"]) if config["query"]["class_archive"] else None,
            LogSettings(**config["log"]),
        )


def _spark_settings(config: dict[str, Any]) -> SparkSettings:
    known = SparkSettings.__dataclass_fields__
    given = {key: value for key, value in config["query"].items() if key in known}
    return SparkSettings(
        **given,
        master=config["execution"]["master"],
        scratch=Path(config["scratch_dir"]),
        jars=installed_jars(),
        cluster=_cluster_settings(config),
    )


def _cluster_settings(config: dict[str, Any]) -> ClusterSettings | None:
    """Settings of a cluster if there is a secret, which is then in the environment no longer."""
    secret = os.environ.pop(SECRET_VARIABLE, None)
    if secret is None or config["execution"]["master"].startswith("local"):
        return None
    bind, host = config["driver_hosts"]
    execution = config["execution"]
    return ClusterSettings(secret, bind, host, **execution["executors"], **execution["kubernetes"])
