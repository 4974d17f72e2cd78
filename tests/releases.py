"""Other releases of the engine: copies of this one that differ in one constant or one migration.

No release is older than this engine, so a changed copy stands for the release before or after.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import ha_engine

ENGINE, TESTS = Path(ha_engine.__file__).parent, Path(__file__).parent
WIRE = ("sync/hello.py", "PROTOCOL_MIN, PROTOCOL_MAX = 1, 1")
SEMANTICS = ("query/runtime.py", "BATCH_SEMANTICS = 1")
VERSION = ("__init__.py", f'__version__ = "{ha_engine.__version__}"')
CONTRACTING = (
    "postgres/schema_version.py",
    "CONTRACTING: frozenset[str] = frozenset()",
)

Change = tuple[str, str, str]
"""A file of the engine, a line in it, and the line in its place."""


def release(place: Path, *changes: Change, migrations: Mapping[str, str] | None = None) -> Path:
    """Copy the engine to the directory ``place`` with these changes; return ``place``.

    ``migrations`` maps names of files to the SQL of one more migration each. Run Python with
    PYTHONPATH=``place`` to run that release. ``place/bin/ha-engine`` does so.
    """
    # With the compiled files, whose sources keep their times: to compile again costs seconds.
    unfinished = shutil.ignore_patterns("*.pyc.*")
    shutil.copytree(ENGINE, place / "ha_engine", ignore=unfinished)
    (place / "tests").symlink_to(TESTS)
    for file, before, after in changes:
        changed = place / "ha_engine" / file
        text = changed.read_text()
        assert text.count(before) == 1, f"{file} has no line '{before}'"
        changed.write_text(text.replace(before, after))
    for name, sql in (migrations or {}).items():
        _write_migration(place / "ha_engine/postgres/migrations/versions", name, sql)
    program = place / "bin" / "ha-engine"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={place} exec {sys.executable} -P -m ha_engine "$@"\n'
    )
    program.chmod(0o755)
    return place


def version(number: str) -> Change:
    """Another version of the engine."""
    return (*VERSION, f'__version__ = "{number}"')


def contracting(*versions: str) -> Change:
    """Schema versions whose migrations only --finalize applies."""
    return (*CONTRACTING, f"CONTRACTING: frozenset[str] = frozenset({set(versions)})")


def run(
    place: Path, *words: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``ha-engine`` of the release in ``place`` with these words to its end."""
    return subprocess.run(
        [place / "bin" / "ha-engine", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
        env={**os.environ, **(environ or {})},
    )


def _write_migration(directory: Path, name: str, sql: str) -> None:
    number = name.partition("_")[0]
    before = max(path.name for path in directory.glob("[0-9]*_*.py")).partition("_")[0]
    (directory / f"{name}.py").write_text(
        f"from alembic import op\n\nrevision = {number!r}\ndown_revision = {before!r}\n\n\n"
        f"def upgrade() -> None:\n    op.execute({sql!r})\n"
    )
