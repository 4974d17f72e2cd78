"""The HTTP interface of an idle node: every route, most of them without a node behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from ha_engine.api.http import NodeView
from ha_engine.api.output import OutputReader
from ha_engine.auth import OPEN, Access
from ha_engine.node.routes import web_application
from ha_engine.outbox.published import PublishedBatches
from tests.core.world import World


def still_node(access: Access = OPEN) -> Starlette:
    world = World()
    world.start()
    nobody: Any = None
    status = {"active": None, "handover_to": None, "queries": {"delays": {}}}
    view = NodeView(
        status=lambda: status,
        cluster=dict,
        exposition=bytes,
        skip=lambda *_: "",
        retry=lambda _: "",
        rescale=lambda *_: "",
        alive=lambda: True,
        switchover=lambda *_: "no",
    )
    output = OutputReader(
        ("delays",), PublishedBatches(Path("absent"), 0, 0), lambda: "id", keeps_batches=False
    )
    parts = nobody, 1 << 20, nobody, nobody, {}, nobody, nobody, output, nobody, "g"
    names = frozenset({"node"})
    return web_application(view, world.core, lambda _: None, *parts, access, names)
