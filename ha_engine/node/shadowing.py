"""Decide whether an application may run as a shadow, and whether a shadow may take the place of its
query (RULES.md#r38)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ha_engine.config import Config
from ha_engine.core import Core
from ha_engine.core.shadow import BEHIND_MAX
from ha_engine.deploy import Archive
from ha_engine.errors import DeploymentRefused
from ha_engine.query.application import (
    PythonFunction,
    QuerySpec,
    Standby,
    StreamApplication,
    StreamSpec,
)
from ha_engine.sync import Report


def changed_query(config: Config, live: StreamApplication, wanted: StreamApplication) -> str:
    """The one query in which ``wanted`` differs from the ``live`` application. Raises
    DeploymentRefused."""
    if config.execution.on_cluster:
        raise DeploymentRefused("a shadow is not possible on a cluster yet")
    if config.checkpoint_url:
        raise DeploymentRefused("a shadow is not possible with checkpoints on object storage yet")
    if {name: _inputs(one) for name, one in live.streams.items()} != {
        name: _inputs(one) for name, one in wanted.streams.items()
    }:
        raise DeploymentRefused("a shadow must have the streams and sources of the application")
    if set(live.queries) != set(wanted.queries):
        names = ", ".join(sorted(set(live.queries) ^ set(wanted.queries)))
        raise DeploymentRefused(f"a shadow must have the queries of the application: {names}")
    for name, query in wanted.queries.items():
        if _outputs(query) != _outputs(live.queries[name]):
            raise DeploymentRefused(
                f"a shadow must have the sinks, standby and state_partitions of query {name}"
            )
    changed = [
        name for name, one in wanted.queries.items() if one.digest != live.queries[name].digest
    ]
    if len(changed) != 1:
        raise DeploymentRefused(
            "a shadow must change exactly one query, but this application changes "
            + (", ".join(changed) or "none")
        )
    _require_possible(wanted, wanted.queries[changed[0]])
    return changed[0]


def _inputs(stream: StreamSpec) -> tuple[str, ...]:
    return stream.digest, *(f"{one.name} {one.digest}" for one in stream.pulled)


def _outputs(query: QuerySpec) -> tuple[object, ...]:
    return query.standby, query.state_partitions, *(sink.digest for sink in query.sinks)


def _require_possible(application: StreamApplication, query: QuerySpec) -> None:
    if query.standby is Standby.WARM:
        raise DeploymentRefused(
            f"query {query.name} has standby: warm, so the passive could not run its shadow"
        )
    if any(sink.buckets is not None for sink in query.sinks):
        raise DeploymentRefused(
            f"a sink of query {query.name} has buckets, whose rows are in no outbox to compare"
        )
    if logs := [name for name in query.streams if application.streams[name].log is not None]:
        raise DeploymentRefused(
            f"query {query.name} reads {', '.join(logs)}, whose events are in a log in Kafka; a "
            "shadow reads the journal only"
        )


def require_same_modules(
    live: Archive, wanted: Archive, application: StreamApplication, changed: str
) -> None:
    """Require that only the module of the ``changed`` query differs, where ``application`` is that
    in the archive ``wanted``. Spark's workers import all others by their names, and both run in the
    same workers. Raises DeploymentRefused."""
    query, own = application.queries[changed], ""
    if isinstance(query.text, PythonFunction):
        module = Path(*query.text.module.split(".")).with_suffix(".py")
        place = application.directory_of(query)
        root = application.path if application.parts else place
        own = (place / module).relative_to(root).as_posix()
    for name in sorted({*live.files, *wanted.files} - {own}):
        if name.endswith(".py") and live.files.get(name) != wanted.files.get(name):
            raise DeploymentRefused(
                f"{name} differs from the live application, and Spark's workers import one of the "
                f"two; put the change into {own or 'the query'}, or give the module another name"
            )


def require_promotable(
    core: Core, config: Config, query: str, reports: Mapping[str, Report]
) -> None:
    """Require that every regular node of the group runs the shadow of ``query`` and keeps up. The
    backup runs no query. Raises DeploymentRefused."""
    shadow = core.deployment.shadow
    if shadow is None or shadow.record.query != query:
        raise DeploymentRefused(f"query {query} has no shadow; deploy one with --shadow")
    if (reason := core.deployment.why_not_promoted(core.journal.committed)) is not None:
        raise DeploymentRefused(reason)
    for peer in sorted(set(config.event_sync.peers) - {config.event_sync.backup}):
        report = reports.get(peer)
        theirs = None if report is None else report.shadow
        if theirs is None or theirs.query != shadow.name:
            raise DeploymentRefused(
                f"{peer} does not run shadow {shadow.name} now; it must, or a failover would lose "
                "the promoted state"
            )
        if theirs.state != "running" or theirs.mark - theirs.batch > BEHIND_MAX:
            raise DeploymentRefused(
                f"shadow {shadow.name} is {theirs.state} on {peer}, at batch {theirs.batch} of "
                f"{theirs.mark}"
            )
