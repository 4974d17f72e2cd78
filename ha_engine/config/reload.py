"""Read the config again while a node runs: apply the reloadable settings, and name the settings
that need a restart.

The certificates of event sync and of ingest need no reload, because each new connection reads their
files. The node reads the certificate of HTTP, and that of the authority for executors, at its
start and at each reload.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from pydantic import ValidationError

from ha_engine.config import Config
from ha_engine.config.load import Key, settings
from ha_engine.errors import ConfigError

log = structlog.get_logger(__name__)

RELOADABLE: Mapping[str, tuple[str, ...]] = {
    "access": ("admin", "deploy", "ingest", "read"),
    "journal": ("min_free", "max_size"),
    "snapshot": ("interval", "revisions_to_keep"),
    "log": ("format", "level"),
}
"""Reloadable keys by section. The description of each key says "Reloadable." too."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of the last reload.

    ``at`` is the time of the reload in ISO 8601, or None before the first reload. ``problems`` say
    why the process does not use the new config, or a part of it. ``needs_restart`` names the keys
    whose values in the new config differ from those that the process uses.
    """

    at: str | None = None
    problems: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()


class Reloader:
    """Reloads the config of one process.

    The reload calls ``take`` with the config that the process must use from now on. If ``take``
    cannot apply a part of the config, it raises ConfigError.
    """

    def __init__(
        self, running: Config, read: Callable[[], Config], take: Callable[[Config], None]
    ) -> None:
        self._running, self._read, self._take = running, read, take
        self._one_by_one = asyncio.Lock()
        self.last = Reloaded()

    async def reload(self) -> None:
        """Reload the config. The log reports an invalid config, which changes no setting."""
        async with self._one_by_one:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            try:
                found = await asyncio.to_thread(self._read)
                wanted = merged(self._running, found)
            except (ConfigError, OSError) as error:
                self._keep(at, tuple(str(error).splitlines()))
            else:
                self._change(at, wanted, found)

    def _keep(self, at: str, problems: tuple[str, ...]) -> None:
        for problem in problems:
            log.error("config rejected, the previous config stays in use", problem=problem)
        self.last = Reloaded(at, problems, self.last.needs_restart)

    def _change(self, at: str, wanted: Config, found: Config) -> None:
        changed, left = tuple(differing(self._running, wanted)), tuple(differing(wanted, found))
        problems: tuple[str, ...] = ()
        try:
            self._take(wanted)
        except ConfigError as error:
            problems = (str(error),)
            log.error("config applied in part", problem=str(error))
        self._running, self.last = wanted, Reloaded(at, problems, left)
        log.info("config reloaded", changed=changed)
        if left:
            log.warning("restart needed for changed settings", keys=left)


def merged(running: Config, found: Config) -> Config:
    """The config ``running`` with the reloadable values of the config ``found``.

    Raises ConfigError if these values do not fit the others.
    """
    sections = {}
    for name, keys in RELOADABLE.items():
        new = getattr(found, name)
        section = getattr(running, name).model_copy(update={k: getattr(new, k) for k in keys})
        try:
            type(section).model_validate(section.model_dump(mode="json", by_alias=True))
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ConfigError(
                f"{name}: its reloadable keys do not fit the settings in use: {reason}; restart "
                "the node to apply all changes"
            ) from error
        sections[name] = section
    _require_guards(running, found)
    return running.model_copy(update=sections)


def _require_guards(running: Config, found: Config) -> None:
    """Refuse to drop all tokens of a right if ``found`` also changes an address.

    The config ``found`` may need no token because the node is to listen on another address, such as
    loopback. But the node changes its address only at a restart. Until then every caller could use
    the right at the old address. Raises ConfigError.
    """
    opened = [
        f"access.{name}"
        for name in RELOADABLE["access"]
        if getattr(running.access, name) and not getattr(found.access, name)
    ]
    if opened and _doors(running) != _doors(found):
        raise ConfigError(
            f"{' and '.join(opened)} would need no token while the node still listens on the old "
            "address; restart the node to apply all changes"
        )


def _doors(config: Config) -> tuple[object, ...]:
    http, ingest = config.http, config.ingest
    return http.listen, http.insecure, ingest.listen, ingest.insecure


def differing(one: Config, other: Config) -> Iterator[str]:
    """Yield the names of the keys whose values differ between two configs."""
    trees = [config.model_dump(by_alias=True) for config in (one, other)]
    for setting in settings():
        first, second = (_at(tree, setting.key) for tree in trees)
        if first != second:
            yield ".".join(setting.key)


def _at(tree: Any, key: Key) -> Any:
    for name in key:
        tree = tree[name]
    return tree
