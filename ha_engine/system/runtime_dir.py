"""Choose and create the directory of a node's Unix socket, with a short path and safe rights.

No file in the runtime directory outlives the node. The journal and the outbox are in ``data_dir``,
never in the runtime directory.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ha_engine.errors import ConfigError

SOCKET_PATH_BYTES_MAX = 100
"""Linux takes 107 bytes for the path of a Unix socket; a few stay free."""
SOCKET_NAME = "node.sock"


def derived_runtime_dir(data_dir: Path, environ: Mapping[str, str]) -> Path:
    """The runtime directory of this user's node on ``data_dir``, which no other node uses."""
    digest = hashlib.blake2b(os.fsencode(data_dir.absolute()), digest_size=6).hexdigest()
    name = f"ha-engine-{os.getuid()}-{digest}"
    return next(base / name for base in _bases(environ) if _leaves_room(base / name))


def _bases(environ: Mapping[str, str]) -> Iterator[Path]:
    wanted = (Path(environ.get("XDG_RUNTIME_DIR", "")), Path("/run"))
    yield from (base for base in wanted if base.is_absolute() and os.access(base, os.W_OK))
    yield Path(tempfile.gettempdir())
    yield Path("/tmp")  # noqa: S108 - make_runtime_dir refuses a directory of another user


def _leaves_room(directory: Path) -> bool:
    return len(os.fsencode(directory / SOCKET_NAME)) <= SOCKET_PATH_BYTES_MAX


def make_runtime_dir(directory: Path) -> Path:
    """Create the runtime directory with mode 0700, or check an existing one.

    Every user may write to the temporary directory, so another user could create the runtime
    directory and pose as the node. An existing directory that other users may use, such as /run,
    keeps its mode. Raises ConfigError if the runtime directory belongs to another user, or if other
    users may use it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(
            f"node.runtime_dir {directory} belongs to another user; remove it or choose another"
        )
    if found.st_mode & 0o077:
        raise ConfigError(
            f"node.runtime_dir {directory} has mode {stat.S_IMODE(found.st_mode):04o}, so other "
            "users may use it; choose a directory of the node's own, or give it mode 0700"
        )
    return directory
