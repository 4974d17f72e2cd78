"""Make the sinks and pullers of an application, without opening files or connections."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from ha_engine.buckets.place import BucketPlace, Plugin, Table
from ha_engine.buckets.plugin import bucket_of
from ha_engine.config import Config
from ha_engine.config.load import dereferenced
from ha_engine.connectors.kafka.log import KafkaLog
from ha_engine.errors import ApplicationError, ConfigError
from ha_engine.formats.csv_rows import CsvColumn
from ha_engine.formats.messages import VALUE, ArrowOptions, MessageOptions, open_reader
from ha_engine.node.database import database_engine
from ha_engine.plugins import (
    SinkPlace,
    SourcePlace,
    SourcePlugin,
    attributes_of,
    keeps_ledger,
    sink_kind,
    source_kind,
)
from ha_engine.plugins.options import options_of, resolved
from ha_engine.postgres.aggregation_reader import ANSWER_SECONDS, AggregationReader
from ha_engine.postgres.aggregation_tables import AggregationStore
from ha_engine.postgres.bucket_store import PostgresBucketStore
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.ledger_store import LedgerStore
from ha_engine.postgres.sink_store import PostgresSinkStore
from ha_engine.postgres.sink_table import Target
from ha_engine.publish import Sink
from ha_engine.publish.sinks.buckets import BucketedSink
from ha_engine.publish.sinks.dead_letters import SinkDeadLetters
from ha_engine.publish.sinks.messages import MessageEncoder, encoder_of
from ha_engine.publish.sinks.plugin import PluginSink
from ha_engine.publish.sinks.plugin_buckets import BucketedPluginSink, Buckets
from ha_engine.publish.sinks.postgres import PostgresSink
from ha_engine.query.application import (
    AggregationSinkSpec,
    PluginSinkSpec,
    PostgresSinkSpec,
    SinkSpec,
    SourceSpec,
    StreamApplication,
    StreamSpec,
)
from ha_engine.query.plugin_sections import log_options
from ha_engine.receive.gate import Gate
from ha_engine.receive.intake import Intake
from ha_engine.receive.offsets import OffsetTable
from ha_engine.receive.pull.dead_letters import SourceDeadLetters
from ha_engine.receive.pull.messages import MessageDecoder
from ha_engine.receive.pull.puller import Puller
from ha_engine.receive.receivers import Receivers


def sinks_of(
    config: Config, application: StreamApplication, last_mark: Callable[[str], int]
) -> dict[tuple[str, str], Sink]:
    """Make every sink of the application, by its query and its name. A sink connects at its first
    use. ``last_mark`` returns the newest mark of a query in the journal. Raises ConfigError."""
    return {
        (query.name, spec.name): _sink(
            config,
            query.name,
            spec,
            application.directory_of(query),
            partial(last_mark, query.name),
        )
        for query in application.queries.values()
        for spec in query.sinks
    }


def _sink(
    config: Config, query: str, spec: SinkSpec, base: Path, last_mark: Callable[[], int]
) -> Sink:
    match spec:
        case PostgresSinkSpec():
            return _postgres_sink(config, query, spec, base, last_mark)
        case AggregationSinkSpec():
            return _aggregation_sink(config, query, spec, base)
        case PluginSinkSpec():
            return _plugin_sink(config, query, spec, base, last_mark)


def _plugin_sink(
    config: Config, query: str, spec: PluginSinkSpec, base: Path, last_mark: Callable[[], int]
) -> Sink:
    kind, options = sink_kind(spec.type), plugin_options(query, spec, base)
    encoder = message_encoder(query, spec, base)
    letters = SinkDeadLetters(config.node.data_dir, query, spec.name)
    mapped = frozenset() if encoder is None else encoder.attributes
    place = SinkPlace(config.group, query, spec.name, letters.put_aside, mapped)
    ledger = None if keeps_ledger(kind) else _ledger(config, query, spec)
    if spec.buckets is None:
        return PluginSink(spec.type, place, lambda: kind(options, place), ledger, letters, encoder)
    places = [bucket_of(place, bucket, spec.buckets) for bucket in range(spec.buckets)]
    return BucketedPluginSink(
        spec.type,
        place,
        lambda: Buckets([kind(options, one) for one in places], last_mark),
        ledger,
        letters,
        encoder,
    )


def _ledger(config: Config, query: str, spec: PluginSinkSpec) -> LedgerStore:
    engine = database_engine(config, None, config.publish.timeout)
    key = LedgerKey(config.group, query, spec.name)
    if spec.buckets is not None:
        key = key.of_all(spec.buckets)
    return LedgerStore(engine, key, config.database.schema_name)


def message_encoder(query: str, spec: PluginSinkSpec, base: Path) -> MessageEncoder | None:
    """The encoder of the sink's messages, or None if the sink writes rows. Raises ConfigError."""
    where = f"query {query}: sink {spec.name}"
    options = _message_options(where, spec, base)
    return None if options is None else encoder_of(where, sink_kind(spec.type), options, base)


def _message_options(
    where: str, spec: PluginSinkSpec | SourceSpec, base: Path
) -> MessageOptions | None:
    if spec.messages is None:
        return None
    options = options_of(where, MessageOptions, spec.messages, base)
    assert isinstance(options, MessageOptions)
    return options


def plugin_options(query: str, spec: PluginSinkSpec, base: Path) -> BaseModel:
    """The sink's options in the plug-in's model, with references resolved.

    Raises ConfigError; its message never shows a value.
    """
    where = f"query {query}: sink {spec.name}"
    return options_of(where, sink_kind(spec.type).Options, spec.options, base)


def _postgres_sink(
    config: Config, query: str, spec: PostgresSinkSpec, base: Path, last_mark: Callable[[], int]
) -> Sink:
    key = LedgerKey(config.group, query, spec.name)
    target = Target(spec.table, spec.mode, spec.key, spec.auto_create)
    engine = database_engine(config, _url_of(query, spec, base), config.publish.timeout)
    if spec.buckets is None:
        return PostgresSink(spec.name, PostgresSinkStore(engine, key, target), spec.key)
    buckets = PostgresBucketStore(engine, key, target, spec.buckets, atomic=spec.atomic)
    return BucketedSink(spec.name, buckets, spec.key, last_mark)


def _aggregation_sink(config: Config, query: str, spec: AggregationSinkSpec, base: Path) -> Sink:
    engine = database_engine(config, _url_of(query, spec, base), config.publish.timeout)
    key = LedgerKey(config.group, query, spec.name)
    return PostgresSink(spec.name, AggregationStore(engine, key, spec.aggregation))


def aggregation_readers_of(
    config: Config, application: StreamApplication
) -> dict[str, AggregationReader]:
    """A reader for each aggregation of the application, by its name. A reader connects at its first
    use. Raises ConfigError."""
    return {
        spec.name: AggregationReader(
            database_engine(
                config,
                _url_of(query.name, spec, application.directory_of(query)),
                ANSWER_SECONDS,
            ),
            spec.aggregation,
        )
        for query in application.queries.values()
        for spec in query.sinks
        if isinstance(spec, AggregationSinkSpec)
    }


def _url_of(query: str, spec: PostgresSinkSpec | AggregationSinkSpec, base: Path) -> str | None:
    """The URL of the sink's database, or None for the node's database. Raises ConfigError."""
    url = None if spec.url is None else dereferenced(spec.url, base, os.environ)
    if url is None and spec.url is not None:
        raise ConfigError(
            f"query {query}: the url of sink {spec.name} refers to {spec.url}, which is missing; "
            "provide it"
        )
    return url


def bucket_places_of(
    config: Config,
    application: StreamApplication,
    sinks: Mapping[tuple[str, str], Sink],
    group_id: Callable[[], str | None],
) -> dict[str, Callable[[int], BucketPlace | None]]:
    """By query whose sink has buckets: where the tasks of an epoch write them, or None before that
    epoch has claimed the sink. Raises ConfigError."""
    places: dict[str, Callable[[int], BucketPlace | None]] = {}
    for query in application.queries.values():
        for spec in query.sinks:
            sink = sinks[query.name, spec.name]
            if isinstance(spec, AggregationSinkSpec):
                continue
            if isinstance(sink, BucketedSink | BucketedPluginSink):
                place = BucketPlace(
                    group=config.group,
                    group_id="",
                    query=query.name,
                    sink=spec.name,
                    epoch=0,
                    key=spec.key,
                    buckets=spec.buckets or 1,
                    timeout=config.publish.timeout,
                    target=_target(config, query.name, spec, application.directory_of(query)),
                )
                places[query.name] = partial(_claimed_place, sink, place, group_id)
    return places


def _target(
    config: Config, query: str, spec: PostgresSinkSpec | PluginSinkSpec, base: Path
) -> Table | Plugin:
    match spec:
        case PostgresSinkSpec():
            url = _url_of(query, spec, base) or config.database.url.get_secret_value()
            timeout = config.database.connect_timeout
            return Table(url, timeout, spec.table, spec.mode, spec.atomic)
        case PluginSinkSpec():
            where = f"query {query}: sink {spec.name}"

            def written(options: Mapping[str, object]) -> str:
                return json.dumps(resolved(where, options, base), default=str)

            messages = "" if spec.messages is None else written(spec.messages)
            return Plugin(spec.type, written(spec.options), messages, str(base))


def _claimed_place(
    sink: BucketedSink | BucketedPluginSink,
    place: BucketPlace,
    group_id: Callable[[], str | None],
    epoch: int,
) -> BucketPlace | None:
    if not sink.is_ready(epoch):
        return None
    return replace(place, group_id=group_id() or "", epoch=epoch)


def receivers_of(
    config: Config, application: StreamApplication, gate: Gate, intake: Intake
) -> Receivers:
    """Make the receivers of the gate, with a puller for each source, all closed. Raises
    ConfigError."""
    pullers = [
        _puller(config, stream, spec, application.directory_of(stream), intake, gate.offsets)
        for stream in application.streams.values()
        for spec in stream.pulled
    ]
    return Receivers(gate, pullers)


def _puller(
    config: Config,
    stream: StreamSpec,
    spec: SourceSpec,
    base: Path,
    intake: Intake,
    offsets: OffsetTable,
) -> Puller:
    letters = SourceDeadLetters(config.node.data_dir, stream.name, spec.name)
    of = stream.name, spec.name, spec.type
    if spec is stream.log:
        rows_max = config.query.max_events_per_batch
        log = log_of(config.group, stream, spec, base)
        return Puller(*of, log, intake, offsets, letters, rows_max=rows_max)
    make = source_maker(config.group, stream, spec, base)
    messages = message_decoder(stream, spec, base, intake.rows_max)
    return Puller(*of, make, intake, offsets, letters, messages=messages)


def log_of(group: str, stream: StreamSpec, spec: SourceSpec, base: Path) -> Callable[[], KafkaLog]:
    """Return a function that makes the log of a stream. Raises ConfigError."""
    options = log_options(stream.name, spec, base)
    place = SourcePlace(group, stream.name, spec.name, stream.arrow_schema)
    return lambda: KafkaLog(options, place)


def source_maker(
    group: str, stream: StreamSpec, spec: SourceSpec, base: Path
) -> Callable[[], SourcePlugin]:
    """Return a function that makes an instance of the source's plug-in. Raises ConfigError."""
    kind, options = source_kind(spec.type), source_options(stream, spec, base)
    messages = _message_options(f"stream {stream.name}: source {spec.name}", spec, base)
    mapped = frozenset() if messages is None else frozenset(messages.columns.values()) - {VALUE}
    place = SourcePlace(group, stream.name, spec.name, stream.arrow_schema, mapped)
    return lambda: kind(options, place)


def message_decoder(
    stream: StreamSpec, spec: SourceSpec, base: Path, rows_max: int
) -> MessageDecoder | None:
    """The decoder of the source's messages, or None if the source decodes its rows itself. Raises
    ConfigError."""
    where = f"stream {stream.name}: source {spec.name}"
    options = _message_options(where, spec, base)
    if options is None:
        return None
    schema, attributes = stream.arrow_schema, attributes_of(source_kind(spec.type)) or {}
    columns = [
        CsvColumn(one.name, str(one.type), one.nullable)
        for one in schema
        if one.name not in options.columns
    ]
    try:
        reader = open_reader(options.format, columns, base)
        is_arrow = isinstance(options.format, ArrowOptions)
        return MessageDecoder(
            schema, rows_max, reader, options.columns, attributes, is_arrow=is_arrow
        )
    except (ConfigError, ApplicationError) as error:
        raise ConfigError(f"{where}: {error}") from error


def source_options(stream: StreamSpec, spec: SourceSpec, base: Path) -> BaseModel:
    """The source's options in the plug-in's model, with references resolved.

    Raises ConfigError; its message never shows a value.
    """
    where = f"stream {stream.name}: source {spec.name}"
    return options_of(where, source_kind(spec.type).Options, spec.options, base)
