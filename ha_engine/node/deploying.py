"""Deploy an application to every node of the group (RULES.md#r36).

The active checks the application as ``ha-engine app check`` does, asks each member whether it could
run it, and then appends one record with the application's files. The core brings every node to it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from ha_engine.config import Config
from ha_engine.core import Core, QueryPlan
from ha_engine.core import inputs as on
from ha_engine.deploy import (
    Archive,
    DeployedApplications,
    differences,
    pack,
    requirements_of,
    unpacked,
)
from ha_engine.deploy.store import described
from ha_engine.errors import ApplicationError, DeploymentRefused, EngineError, NotActive
from ha_engine.jvm import engine_jar
from ha_engine.node.check import require_usable
from ha_engine.node.shadowing import changed_query, require_promotable, require_same_modules
from ha_engine.node.startup import needs_jar
from ha_engine.query.application import PythonFunction, StreamApplication
from ha_engine.sync import ApplicationChecks, Report
from ha_engine.types import Deployed, Shadow
from ha_engine.v1 import sync_pb2 as pb

log = structlog.get_logger(__name__)

NICE = 10
"""The check starts Spark, which must not slow down the queries that run."""
UNDECIDED = (
    "a changed query must say what happens to its state; give it 'on_change: keep' or "
    "'on_change: reset', or deploy with --on-change: "
)
STRANDED = (
    "only this node has the state of a query with standby: warm, and another continues after the "
    "deployment; use 'on_change: reset', or bring the application as a file to each host: "
)


async def check_request(
    config: Config, request: pb.CheckApplicationRequest
) -> pb.CheckApplicationReply:
    """Answer a peer that asks whether this node could run an application."""

    def check() -> dict[str, str]:
        with unpacked(Archive.read(request.archive)) as application:
            _require_startable(config, application)
            facts = requirements_of(application)
        if request.shadow:
            with unpacked(Archive.read(request.shadow)) as shadow:
                _require_startable(config, shadow)
                facts |= _facts_of_shadow(shadow)
        return facts

    try:
        return pb.CheckApplicationReply(facts=await asyncio.to_thread(check))
    except EngineError as error:
        return pb.CheckApplicationReply(problem=str(error))


class Deployments:
    """Deploys applications while this node is the active. ``plans_of`` makes the plans of an
    application's queries. ``committed`` waits for the commit of a record, or raises NotActive.
    ``reports`` returns the last report of each connected peer."""

    def __init__(
        self,
        config: Config,
        running: StreamApplication,
        core: Core,
        handle: Callable[[on.Input], None],
        committed: Callable[[int], Awaitable[None]],
        peers: ApplicationChecks,
        plans_of: Callable[[StreamApplication], Iterable[QueryPlan]],
        reports: Callable[[], Mapping[str, Report]],
    ) -> None:
        self._config, self._running, self._core = config, running, core
        self._handle, self._committed = handle, committed
        self._peers, self._plans_of, self._reports = peers, plans_of, reports
        self._one_by_one = asyncio.Lock()
        self.store = DeployedApplications(config.node.data_dir)

    @property
    def deployed(self) -> Mapping[str, Any] | None:
        """The newest deployment in this node's journal, without its archive."""
        found = self._core.deployment.versions.deployed
        return None if found is None else described(found)

    async def deploy(
        self, archive: Archive, by: str, on_change: str | None = None, *, allow_absent: bool = False
    ) -> Deployed:
        """Check and deploy an application. Return the deployment, once every member has its record.
        Nothing has changed if this raises an error.

        ``on_change`` is as in ``types.Deployed``. Without ``allow_absent`` each peer of the config
        must be connected.

        Raises DeploymentRefused, ApplicationError, ConfigError, NotActive.
        """
        async with self._alone():
            self._require_free(allow_absent=allow_absent)
            self._require_no_shadow()
            with ExitStack() as leaving:
                opening = unpacked(archive, on_change)
                application = await asyncio.to_thread(leaving.enter_context, opening)
                log.info("checking an application", name=application.name, by=by)
                await self._check(archive, application)
            # The check takes some seconds, so the group may have changed.
            self._require_free(allow_absent=allow_absent)
            self._require_decided(application)
            asked = on.DeployAsked(
                archive.id, application.name, by, _now(), archive.text, on_change
            )
            return await self._append(asked)

    # -- shadows (RULES.md#r38) --------------------------------------------------------------------

    async def deploy_shadow(self, archive: Archive, by: str) -> Deployed:
        """Check an application that changes one query, and run that query as a shadow on every
        node. The application that runs now goes on.

        Raises DeploymentRefused, ApplicationError, ConfigError, NotActive.
        """
        async with self._alone():
            self._require_free(allow_absent=False)
            self._require_no_shadow()
            live = await asyncio.to_thread(self._live_archive)
            with ExitStack() as leaving:
                application = await asyncio.to_thread(leaving.enter_context, unpacked(archive))
                query = changed_query(self._config, self._running, application)
                require_same_modules(live, archive, application.queries[query])
                log.info("checking a shadow", query=query, by=by)
                await asyncio.to_thread(_require_startable, self._config, application)
                here = requirements_of(self._running) | _facts_of_shadow(application)
                await self._ask_members(live, here, archive)
                await _plan_on_spark(application.path)
            self._require_free(allow_absent=False)
            self._require_no_shadow()
            deployed = self._core.deployment.versions.deployed
            on_change = None if deployed is None else deployed.on_change
            name, shadow = self._running.name, (query, archive.id, archive.text)
            asked = on.DeployAsked(live.id, name, by, _now(), live.text, on_change, shadow)
            return await self._append(asked)

    async def promote(self, query: str, by: str) -> Deployed:
        """Let the shadow of ``query`` take its place on every node. Raises DeploymentRefused,
        NotActive."""
        async with self._alone():
            self._require_free(allow_absent=False)
            require_promotable(self._core, self._config, query, self._reports())
            deployed, shadow = self._shadow_of(query)
            asked = on.DeployAsked(
                shadow.id, deployed.name, by, _now(), shadow.archive, promotes=shadow.name
            )
            return await self._append(asked)

    async def discard(self, query: str, by: str) -> Deployed:
        """End the shadow of ``query`` on every node. Raises DeploymentRefused, NotActive."""
        async with self._alone():
            self._require_free(allow_absent=True)
            deployed, _ = self._shadow_of(query)
            asked = on.DeployAsked(
                deployed.id, deployed.name, by, _now(), deployed.archive, deployed.on_change
            )
            return await self._append(asked)

    def _shadow_of(self, query: str) -> tuple[Deployed, Shadow]:
        deployed = self._core.deployment.versions.deployed
        if deployed is None or deployed.shadow is None or deployed.shadow.query != query:
            raise DeploymentRefused(f"query {query} has no shadow; deploy one with --shadow")
        return deployed, deployed.shadow

    def _require_no_shadow(self) -> None:
        deployed = self._core.deployment.versions.deployed
        if deployed is not None and deployed.shadow is not None:
            query = deployed.shadow.query
            raise DeploymentRefused(
                f"a shadow runs beside query {query}; end it first: ha-engine query promote "
                f"{query}, or ha-engine query discard {query}"
            )

    def _live_archive(self) -> Archive:
        """The archive of the application that runs now. Raises ApplicationError,
        DeploymentRefused."""
        deployed = self._core.deployment.versions.deployed
        if deployed is not None:
            return Archive.from_text(deployed.archive)
        archive = pack(self._config.application)
        with unpacked(archive) as application:
            if application.digest != self._running.digest:
                raise DeploymentRefused(
                    "the application file changed since this node started; deploy it first, or "
                    "put back the file that runs"
                )
        return archive

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Refuse a second deployment while one is under way. Raises DeploymentRefused."""
        if self._one_by_one.locked():
            raise DeploymentRefused("another deployment is under way; wait for its end")
        async with self._one_by_one:
            yield

    # -- checks ------------------------------------------------------------------------------------

    async def _check(self, archive: Archive, application: StreamApplication) -> None:
        self._require_decided(application)
        _require_same_columns(self._running, application)
        await asyncio.to_thread(_require_startable, self._config, application)
        await self._ask_members(archive, requirements_of(application))
        await _plan_on_spark(application.path)

    def _require_free(self, *, allow_absent: bool) -> None:
        core = self._core
        if refusal := core.why_no_order():
            raise NotActive(refusal)
        row = core.lease.row
        if row is not None and row.paused:
            raise DeploymentRefused("failover is paused; run: ha-engine resume")
        if (promoting := core.deployment.promoting) is not None:
            raise DeploymentRefused(
                f"the shadow of query {promoting} takes its place now; wait until every node "
                "runs it"
            )
        absent = sorted(set(self._config.event_sync.peers) - core.role_machine.connected)
        if absent and not allow_absent:
            raise DeploymentRefused(
                f"{', '.join(absent)} is not connected and cannot confirm the application; bring "
                "it back, or deploy with --allow-absent: then it gets the application when it "
                "returns, and does not start if it cannot run it"
            )

    def _require_decided(self, application: StreamApplication) -> None:
        deployment, plans = self._core.deployment, tuple(self._plans_of(application))
        if undecided := deployment.undecided(plans):
            raise DeploymentRefused(UNDECIDED + ", ".join(undecided))
        if stranded := deployment.stranded(plans):
            raise DeploymentRefused(STRANDED + ", ".join(stranded))

    async def _ask_members(
        self, archive: Archive, here: Mapping[str, str], shadow: Archive | None = None
    ) -> None:
        """Require that each connected peer could run the application, with the same plug-ins and
        modules, and the shadow. Raises DeploymentRefused, ConfigError."""
        beside = b"" if shadow is None else shadow.content
        for peer in sorted(self._core.role_machine.connected):
            reply = await self._peers.ask(peer, archive.content, beside)
            if reply.problem:
                raise DeploymentRefused(f"{peer} cannot run the application: {reply.problem}")
            if differing := differences(here, reply.facts):
                raise DeploymentRefused(
                    f"{peer} would run another application, since its packages or modules differ "
                    f"from this node's: {'; '.join(differing)}"
                )

    async def _append(self, asked: on.DeployAsked) -> Deployed:
        before = self._core.journal.last.sequence
        self._handle(asked)
        deployed = self._core.deployment.versions.deployed
        if self._core.journal.last.sequence == before or deployed is None:
            raise NotActive(self._core.why_no_order() or self._core.reason)
        log.info("application deployed", number=deployed.number, name=asked.name, by=asked.by)
        await self._committed(self._core.journal.last.sequence)
        return deployed


def _now() -> int:
    return time.time_ns() // 1000


def _facts_of_shadow(shadow: StreamApplication) -> dict[str, str]:
    """An older release answers without these facts, so that no shadow begins beside it."""
    return {f"{what} of the shadow": fact for what, fact in requirements_of(shadow).items()}


def _require_startable(config: Config, application: StreamApplication) -> None:
    """Check what a node process with this application needs at its start. Raises ConfigError,
    ApplicationError, JarMissing, DeploymentRefused."""
    if needs_jar(config, application):
        engine_jar()
    functions = (isinstance(query.text, PythonFunction) for query in application.queries.values())
    if config.execution.on_cluster and any(functions):
        raise DeploymentRefused(
            "the executors of a cluster do not get the modules of a deployed application; bring "
            "the application as files to each host and worker"
        )
    require_usable(config, application)


def _require_same_columns(running: StreamApplication, wanted: StreamApplication) -> None:
    """Refuse other columns of a stream, whose events in the journal have the former ones. Raises
    DeploymentRefused."""
    for name, stream in wanted.streams.items():
        former = running.streams.get(name)
        if former is not None and former.arrow_schema != stream.arrow_schema:
            raise DeploymentRefused(
                f"stream {name} would have other columns than its events in the journal; give the "
                "stream with the new columns another name"
            )


async def _plan_on_spark(path: Path) -> None:
    """Let Spark plan each query in a process of its own, as ``ha-engine app check`` does. Raises
    ApplicationError."""
    with tempfile.TemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "ha_engine", "app", "check", str(path), "--json", "--no-progress"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.PIPE,
        )
        os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        try:
            _, problems = await process.communicate()
        except BaseException:
            process.kill()
            raise
        output.seek(0)
        report = _read_report(output.read())
    for query in report.get("queries", ()):
        if query["error"] is not None:
            raise ApplicationError(f"query {query['name']}: {query['error']}")
    if process.returncode != 0:
        lines = problems.decode(errors="replace").strip().splitlines()
        raise ApplicationError(
            f"the check of the application failed: {lines[-1] if lines else 'no reason given'}"
        )


def _read_report(output: bytes) -> dict[str, Any]:
    try:
        found = json.loads(output)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
