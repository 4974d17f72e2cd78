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
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
    Set,
)
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from ha_engine.config import Config
from ha_engine.core import Core, QueryPlan
from ha_engine.core import inputs as on
from ha_engine.deploy import (
    Archive,
    DeployedApplications,
    Order,
    Origin,
    Part,
    changed,
    composed,
    differences,
    parts_of,
    parts_of_file,
    requirements_of,
    unpacked,
)
from ha_engine.deploy.store import described
from ha_engine.errors import ApplicationError, DeploymentRefused, EngineError, NotActive
from ha_engine.jvm import engine_jar
from ha_engine.node.check import require_usable
from ha_engine.node.shadowing import changed_query, require_promotable, require_same_modules
from ha_engine.node.startup import needs_jar
from ha_engine.query.application import StreamApplication
from ha_engine.sync import ApplicationChecks, Report
from ha_engine.types import Deployed, Shadow
from ha_engine.v1 import sync_pb2 as pb

log = structlog.get_logger(__name__)

NICE = 10
"""The check starts Spark, which must not slow down the queries that run."""
UNDECIDED = (
    "a changed query must say what happens to its state; give it 'on_change: keep', "
    "'on_change: reset' or 'on_change: backfill', or deploy with --on-change: "
)
STRANDED = (
    "only this node has the state of a query with standby: warm, and another continues after the "
    "deployment; use 'on_change: reset' or 'on_change: backfill', or bring the application as a "
    "file to each host: "
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
        self.running: Sequence[Mapping[str, Any]] = _shown(
            running, core.deployment.versions.deployed
        )

    @property
    def deployed(self) -> Mapping[str, Any] | None:
        """The newest deployment in this node's journal, without its archive."""
        found = self._core.deployment.versions.deployed
        return None if found is None else described(found)

    async def deploy(self, archive: Archive, order: Order, *, only: bool = False) -> Deployed:
        """Check and deploy the applications in ``archive``. Each replaces the application of its
        name or is added, and with ``only`` the group runs no others any more.

        Return the deployment, once every member has its record. Nothing has changed if this raises
        an error.

        Raises DeploymentRefused, ApplicationError, ConfigError, NotActive.
        """
        sent = await asyncio.to_thread(parts_of, archive)

        def change(present: Mapping[str, Part]) -> Mapping[str, Part]:
            wanted = changed(present, sent)
            return {name: wanted[name] for name in sent} if only else wanted

        return await self._deploy(change, order, replaced=None if only else set(sent))

    async def remove(self, name: str, order: Order) -> Deployed:
        """Deploy all applications but ``name``. Returns and raises as ``deploy`` does."""

        def change(present: Mapping[str, Part]) -> Mapping[str, Part]:
            if name not in present:
                raise DeploymentRefused(
                    f"there is no application {name!r}; the group runs {', '.join(present)}"
                )
            if len(present) == 1:
                raise DeploymentRefused(
                    f"{name} is the only application of the group; deploy another one first"
                )
            return {other: part for other, part in present.items() if other != name}

        return await self._deploy(change, order, replaced=set())

    async def _deploy(
        self,
        change: Callable[[Mapping[str, Part]], Mapping[str, Part]],
        order: Order,
        *,
        replaced: Set[str] | None,
    ) -> Deployed:
        """Deploy the present applications after ``change``, which replaces those named, or all if
        ``replaced`` is None."""
        async with self._alone():
            self._require_free(order)
            self._require_no_shadow()
            before = self._core.deployment.versions.deployed
            archive = await asyncio.to_thread(self._compose, before, change, replaced)
            with ExitStack() as leaving:
                opening = unpacked(archive, order.on_change)
                application = await asyncio.to_thread(leaving.enter_context, opening)
                log.info("checking an application", name=application.name, by=order.by)
                await self._check(archive, application)
            # The check takes some seconds, so the group may have changed.
            self._require_free(order)
            if self._core.deployment.versions.deployed != before:
                raise DeploymentRefused("another deployment came meanwhile; deploy again")
            self._require_decided(application)
            if not order.discard:
                self._require_finished(application)
            return await self._append(
                on.DeployAsked(
                    archive.id, application.name, order.by, _now(), archive.text, order.on_change
                )
            )

    def _compose(
        self,
        before: Deployed | None,
        change: Callable[[Mapping[str, Part]], Mapping[str, Part]],
        replaced: Set[str] | None,
    ) -> Archive:
        """The archive of the next deployment."""
        if before is not None:
            present = _parts_of(before)
            wanted = change(present)
            # An archive without a change keeps its id, so no node has to restart.
            return Archive.from_text(before.archive) if wanted == present else composed(wanted)
        names = {one.name for one in self._running.applications}
        all_replaced = replaced is None or names <= replaced
        return composed(change({} if all_replaced else parts_of_file(self._running)))

    # -- shadows (RULES.md#r38) --------------------------------------------------------------------

    async def deploy_shadow(self, archive: Archive, order: Order) -> Deployed:
        """Check applications that change one query, and run that query as a shadow on every node.
        What runs now goes on.

        Raises DeploymentRefused, ApplicationError, ConfigError, NotActive.
        """
        sent = await asyncio.to_thread(parts_of, archive)
        async with self._alone():
            self._require_free(order)
            self._require_no_shadow()
            live, beside = await asyncio.to_thread(self._with_shadow, sent)
            with ExitStack() as leaving:
                application = await asyncio.to_thread(leaving.enter_context, unpacked(beside))
                query = changed_query(self._config, self._running, application)
                require_same_modules(live, beside, application, query)
                log.info("checking a shadow", query=query, by=order.by)
                await asyncio.to_thread(_require_startable, self._config, application)
                here = requirements_of(self._running) | _facts_of_shadow(application)
                await self._ask_members(live, here, beside)
                await _plan_on_spark(application.path)
            self._require_free(order)
            self._require_no_shadow()
            deployed = self._core.deployment.versions.deployed
            on_change = None if deployed is None else deployed.on_change
            name, shadow = self._running.name, (query, beside.id, beside.text)
            asked = on.DeployAsked(live.id, name, order.by, _now(), live.text, on_change, shadow)
            return await self._append(asked)

    async def promote(self, query: str, by: str) -> Deployed:
        """Let the shadow of ``query`` take its place on every node. Raises DeploymentRefused,
        NotActive."""
        async with self._alone():
            self._require_free(Order(by))
            require_promotable(self._core, self._config, query, self._reports())
            deployed, shadow = self._shadow_of(query)
            asked = on.DeployAsked(
                shadow.id, deployed.name, by, _now(), shadow.archive, promotes=shadow.name
            )
            return await self._append(asked)

    async def discard(self, query: str, by: str) -> Deployed:
        """End the shadow of ``query`` on every node. Raises DeploymentRefused, NotActive."""
        async with self._alone():
            self._require_free(Order(by, allow_absent=True))
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

    def _with_shadow(self, sent: Mapping[str, Part]) -> tuple[Archive, Archive]:
        """The archive of what runs now, and the one with the applications that were sent. Raises
        ApplicationError, DeploymentRefused."""
        deployed = self._core.deployment.versions.deployed
        present = parts_of_file(self._running) if deployed is None else _parts_of(deployed)
        live = composed(present) if deployed is None else Archive.from_text(deployed.archive)
        return live, composed(changed(present, sent))

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

    def _require_free(self, order: Order) -> None:
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
        if absent and not order.allow_absent:
            raise DeploymentRefused(
                f"{', '.join(absent)} is not connected and cannot confirm the application; bring "
                "it back, or deploy with --allow-absent: then it gets the application when it "
                "returns, and does not start if it cannot run it"
            )
        deployed = core.deployment.versions.deployed
        newest = 0 if deployed is None else deployed.number
        if order.expected not in (None, newest):
            raise DeploymentRefused(
                f"the newest deployment is {newest}, and no longer {order.expected}; look at "
                "'ha-engine app history', and ask again"
            )

    def _require_finished(self, application: StreamApplication) -> None:
        """Refuse to remove an application whose queries have not output all. Raises
        DeploymentRefused."""
        names = {one.name for one in application.applications}
        removed = (one for one in self._running.applications if one.name not in names)
        # A query may have moved to another application.
        gone = [name for one in removed for name in one.queries if name not in application.queries]
        if unfinished := self._core.deployment.unfinished(gone):
            raise DeploymentRefused(
                f"the deployment removes {', '.join(unfinished)}, whose sinks do not have all "
                "output; stop the producers and wait, or give --discard"
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


def _shown(running: StreamApplication, deployed: Deployed | None) -> list[dict[str, Any]]:
    """Each application that this process runs, and the deployment that brought it. ``deployed`` is
    the newest deployment at the start of the process."""
    parts = _parts_of(deployed) if deployed and deployed.runs == running.archive else {}
    origins = {name: asdict(part.origin) for name, part in parts.items() if part.origin is not None}
    return [
        {
            "name": one.name,
            "streams": list(one.streams),
            "queries": list(one.queries),
            "digest": one.digest,
            "deployment": origins.get(one.name),
        }
        for one in running.applications
    ]


def _parts_of(deployed: Deployed) -> dict[str, Part]:
    archive = Archive.from_text(deployed.archive)
    return parts_of(archive, Origin(deployed.number, deployed.by, deployed.at_us))


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
    if config.execution.on_cluster and application.has_functions:
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
