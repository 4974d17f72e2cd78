"""Load the application that a node runs: the deployed one, or that of the file in its config."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ha_engine.config import Config
from ha_engine.deploy.archive import Archive
from ha_engine.deploy.store import DeployedApplications, shadow_path
from ha_engine.errors import ApplicationError
from ha_engine.query.application import (
    OnChange,
    RunningShadow,
    StreamApplication,
    load_application,
)
from ha_engine.types import shadow_of_tree


def application_of(config: Config) -> StreamApplication:
    """Load the application that the node with ``config`` runs after its next start. Raises
    ApplicationError."""
    found = DeployedApplications(config.node.data_dir).current()
    if found is None:
        return load_application(config.application)
    path, deployed = found
    application = replace(load_application(path), archive=deployed.get("runs", deployed["id"]))
    if "shadow" in deployed:
        shadow = shadow_of_tree(deployed["shadow"])
        running = RunningShadow(shadow, load_application(shadow_path(path)))
        application = replace(application, shadow=running)
    return _with_default(application, deployed["on_change"])


def _with_default(application: StreamApplication, on_change: str | None) -> StreamApplication:
    """The application, each of whose queries without an ``on_change`` has this one."""
    if on_change is None:
        return application
    default = OnChange(on_change)
    queries = {
        name: replace(query, on_change=query.on_change or default)
        for name, query in application.queries.items()
    }
    return replace(application, queries=MappingProxyType(queries))


@contextmanager
def unpacked(archive: Archive, on_change: str | None = None) -> Iterator[StreamApplication]:
    """Unpack ``archive`` for the time of a check, and load its application. ``on_change`` is as in
    ``types.Deployed``. Raises ApplicationError, whose paths are those in the archive."""
    with tempfile.TemporaryDirectory(prefix="ha-engine-deploy-") as directory:
        path = Path(directory).resolve()
        archive.unpack(path)
        try:
            application = load_application(path)
        except ApplicationError as error:
            raise ApplicationError(str(error).replace(f"{path}/", "")) from None
        yield _with_default(replace(application, archive=archive.id), on_change)
