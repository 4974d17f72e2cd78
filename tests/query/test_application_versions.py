"""The query process runs the application version that the node names, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ha_engine.query.application import StreamApplication, load_application
from ha_engine.query.application_versions import (
    ApplicationChanged,
    ApplicationVersions,
    PythonChanged,
)
from tests.query.conftest import APPLICATION

SQL = "  one: {sql: SELECT key FROM events}\n"
PYTHON = "  two: {function: 'code:run', streams: [events]}\n"


def write(directory: Path, queries: str, code: str = "first") -> StreamApplication:
    (directory / "code.py").write_text(f"# {code}\ndef run(streams):\n    return None\n")
    (directory / "application.yaml").write_text(APPLICATION + queries)
    return load_application(directory / "application.yaml")


@pytest.fixture
def versions(tmp_path: Path) -> ApplicationVersions:
    return ApplicationVersions(tmp_path / "application.yaml")


def test_loaded_version_stays_in_use_after_the_file_changes(
    tmp_path: Path, versions: ApplicationVersions
) -> None:
    digest = write(tmp_path, SQL).queries["one"].digest
    loaded = versions.holding("one", digest)
    write(tmp_path, SQL.replace("key", "value"))
    assert versions.holding("one", digest) is loaded


def test_version_that_is_not_loaded_is_read_from_the_file(
    tmp_path: Path, versions: ApplicationVersions
) -> None:
    versions.holding("one", write(tmp_path, SQL).queries["one"].digest)
    digest = write(tmp_path, SQL.replace("key", "value")).queries["one"].digest
    assert versions.holding("one", digest).queries["one"].digest == digest


@pytest.mark.parametrize("left", [SQL.replace("key", "value"), PYTHON, "  one: {sql: 1, x: 2}\n"])
def test_no_query_runs_from_a_file_that_changed_before_it_was_read(
    tmp_path: Path, versions: ApplicationVersions, left: str
) -> None:
    digest = write(tmp_path, SQL).queries["one"].digest
    (tmp_path / "application.yaml").write_text(APPLICATION + left)
    with pytest.raises(ApplicationChanged, match="changed while the node ran; restart"):
        versions.holding("one", digest)


def test_no_query_runs_from_a_deleted_file(tmp_path: Path, versions: ApplicationVersions) -> None:
    digest = write(tmp_path, SQL).queries["one"].digest
    (tmp_path / "application.yaml").unlink()
    with pytest.raises(ApplicationChanged):
        versions.holding("one", digest)


def test_a_changed_python_function_needs_a_fresh_process(
    tmp_path: Path, versions: ApplicationVersions
) -> None:
    versions.holding("two", write(tmp_path, PYTHON).queries["two"].digest)
    digest = write(tmp_path, PYTHON, "second").queries["two"].digest
    for _ in range(2):
        with pytest.raises(PythonChanged):
            versions.holding("two", digest)
    fresh = ApplicationVersions(tmp_path / "application.yaml")
    assert fresh.holding("two", digest).queries["two"].digest == digest
