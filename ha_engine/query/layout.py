"""The places of applications in a directory: one at its root, or several below ``applications``.

    application.yaml

    applications/flights/application.yaml    and the files that it names, relative to it
    applications/orders/application.yaml

The query process imports this module before Spark starts, so it imports nothing heavy.
"""

from __future__ import annotations

from pathlib import Path

APPLICATION = "application.yaml"
"""The name of the YAML file in the directory of an application."""
APPLICATIONS = "applications"


def directories_of(path: Path) -> tuple[Path, ...]:
    """The directory of each application at ``path``, which is a YAML file or a directory."""
    path = path.resolve()
    if not path.is_dir():
        return (path.parent,)
    if (path / APPLICATION).is_file():
        return (path,)
    return tuple(sorted(file.parent for file in path.glob(f"{APPLICATIONS}/*/{APPLICATION}")))
