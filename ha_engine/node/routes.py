"""The HTTP interface of a node: all its routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from starlette.applications import Starlette

from ha_engine.api.aggregations import Reader, aggregation_routes
from ha_engine.api.applications import Deploying, application_routes
from ha_engine.api.failover import failover_routes
from ha_engine.api.http import NodeView, application
from ha_engine.api.lease import LeaseAdmin, lease_routes
from ha_engine.api.output import OutputReader, output_route
from ha_engine.api.shadows import Comparison, Shadowing, shadow_routes
from ha_engine.api.snapshot import SnapshotState, snapshot_routes
from ha_engine.auth import Access
from ha_engine.core import Core
from ha_engine.core import inputs as on
from ha_engine.query.application import StreamApplication
from ha_engine.receive.http import routes
from ha_engine.receive.intake import Intake


class DeployingShadows(Deploying, Shadowing, Protocol):
    """The deployments of a node, and its shadows."""


def web_application(
    view: NodeView,
    core: Core,
    handle: Callable[[on.Input], None],
    intake: Intake,
    body_max: int,
    lease: LeaseAdmin,
    snapshots: SnapshotState,
    aggregations: Mapping[str, Reader],
    running: StreamApplication,
    deployments: DeployingShadows,
    output: OutputReader,
    comparison: Comparison,
    group: str,
    access: Access,
    host_names: frozenset[str],
) -> Starlette:
    """Make the web application with all routes of the node.

    ``handle`` gives an input to the core. ``host_names`` are the names of this node.
    """
    others = [
        *routes(intake, body_max),
        *lease_routes(lease, group),
        *failover_routes(core, handle),
        *snapshot_routes(core, snapshots, handle),
        *aggregation_routes(aggregations),
        *application_routes(core, running, deployments),
        output_route(output),
        *shadow_routes(core, comparison, deployments),
    ]
    return application(view, others, access, host_names)
