"""The requirements of an application that two nodes must meet equally.

The application's digest covers its streams, queries, sinks and the modules of its functions, also
those that are installed on the host. The versions of the plug-ins come from the host too.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

from ha_engine.plugins import SINKS, SOURCES
from ha_engine.query.application import StreamApplication

APPLICATION = "application"


def requirements_of(application: StreamApplication) -> dict[str, str]:
    """The digest of the application, and the package and version of each plug-in that it uses, by
    ``sink TYPE`` or ``source TYPE``."""
    sinks = {sink.type for query in application.queries.values() for sink in query.sinks}
    sources = {one.type for stream in application.streams.values() for one in stream.pulled}
    return {
        APPLICATION: application.digest,
        **_packages("sink", SINKS, sinks),
        **_packages("source", SOURCES, sources),
    }


def _packages(what: str, group: str, used: set[str]) -> dict[str, str]:
    found = (entry for entry in entry_points(group=group) if entry.name in used and entry.dist)
    return {f"{what} {entry.name}": f"{entry.dist.name} {entry.dist.version}" for entry in found}  # type: ignore[union-attr]


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Say for each requirement that differs what both nodes have."""
    return [
        f"{name}: {there.get(name, 'none')} there, {here.get(name, 'none')} here"
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name)
    ]
