"""Keep enough open files for a process itself, however many connections clients open.

Each connection is an open file of the process. A node that cannot open a file of its journal must
end, so clients could end a node with idle connections alone.
"""

from __future__ import annotations

from typing import NamedTuple

import structlog

from ha_engine.config import HttpConfig, IngestConfig
from ha_engine.errors import ConfigError
from ha_engine.system.open_files import allow_open_files

log = structlog.get_logger(__name__)

OWN_FILES = 512
"""Files of the node: its journal, outbox and snapshots, the database, its peers, and connections
that the node has accepted and will refuse."""
CONNECTIONS_MIN = 16


class ConnectionLimits(NamedTuple):
    """The maximum number of connections to each interface for producers."""

    http: int
    ingest: int


def connection_limits(
    http_config: HttpConfig, ingest_config: IngestConfig, own_files: int = OWN_FILES
) -> ConnectionLimits:
    """Raise the process's limit of open files, and lower the config's limits if they exceed it.
    ``own_files`` is the number of files that the process itself needs.

    Raises ConfigError if the process may not open enough files for a few connections.
    """
    http, ingest = http_config.max_connections, ingest_config.max_streams
    needed = own_files + http + ingest
    files = allow_open_files(needed)
    if files >= needed:
        return ConnectionLimits(http, ingest)
    room = files - own_files
    lowered = ConnectionLimits(http * room // (http + ingest), ingest * room // (http + ingest))
    if min(lowered) < min(CONNECTIONS_MIN, http, ingest):
        raise ConfigError(
            f"this process may open only {files} files, but http.max_connections and "
            f"ingest.max_streams need {needed}; raise the limit of open files (LimitNOFILE= of "
            "systemd, or ulimit -Hn), or lower the settings"
        )
    log.warning(
        "the limit of open files is too low for the config, so connections are limited",
        open_files=files,
        needed=needed,
        http=lowered.http,
        ingest=lowered.ingest,
    )
    return lowered
