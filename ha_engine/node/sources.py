"""From the sources of an application to what pulls them; opens nothing by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from ha_engine.config import Config
from ha_engine.plugins import SourcePlace, SourcePlugin, source_kind
from ha_engine.plugins.options import options_of
from ha_engine.query.application import SourceSpec, StreamApplication, StreamSpec
from ha_engine.receive.gate import Gate
from ha_engine.receive.intake import Intake
from ha_engine.receive.pull.dead_letters import DeadLetters
from ha_engine.receive.pull.puller import Puller
from ha_engine.receive.pull.receivers import Receivers


def receivers_of(
    config: Config, application: StreamApplication, gate: Gate, intake: Intake
) -> Receivers:
    """The gate with every source behind it, closed. Raises ConfigError."""
    pullers = [
        _puller(config, stream, spec, application.directory, intake)
        for stream in application.streams.values()
        for spec in stream.sources
    ]
    return Receivers(gate, pullers)


def _puller(
    config: Config, stream: StreamSpec, spec: SourceSpec, base: Path, intake: Intake
) -> Puller:
    letters = DeadLetters(config.node.data_dir, stream.name, spec.name)
    make = _maker(config, stream, spec, base)
    return Puller(stream.name, spec.name, spec.type, make, intake, letters)


def _maker(
    config: Config, stream: StreamSpec, spec: SourceSpec, base: Path
) -> Callable[[], SourcePlugin]:
    kind, options = source_kind(spec.type), source_options(stream, spec, base)
    place = SourcePlace(config.group, stream.name, spec.name, stream.arrow_schema)
    return lambda: kind(options, place)


def source_options(stream: StreamSpec, spec: SourceSpec, base: Path) -> BaseModel:
    """As the plug-in wants them, with what they refer to. Raises ConfigError, without a value."""
    where = f"stream {stream.name}: source {spec.name}"
    return options_of(where, source_kind(spec.type).Options, spec.options, base)
