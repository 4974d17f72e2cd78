"""A node keeps open files for itself, however low the limit of open files is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ha_engine.web.connection_limits import OWN_FILES

PROGRAM = """
import json, resource, sys
from ha_engine.config import Config
from ha_engine.errors import ConfigError
from ha_engine.web.connection_limits import connection_limits

soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
config = Config.model_validate(
    {"application": "a.yaml", "http": {"max_connections": 900}, "ingest": {"max_streams": 100}}
)
try:
    limits = list(connection_limits(config.http, config.ingest))
except ConfigError as error:
    limits = str(error)
print(json.dumps([limits, resource.getrlimit(resource.RLIMIT_NOFILE)[0]]))
"""
"""A process of its own can lower its hard limit."""


@pytest.mark.parametrize(
    ("soft", "hard", "limits", "opened"),
    [
        (100, 4096, [900, 100], OWN_FILES + 1000),
        (2000, 4096, [900, 100], 2000),
        (100, OWN_FILES + 500, [450, 50], OWN_FILES + 500),
    ],
)
def test_limits_of_connections_fit_into_the_limit_of_open_files(
    soft: int, hard: int, limits: list[int], opened: int
) -> None:
    assert _limits(soft, hard) == [limits, opened]


def test_too_few_open_files_for_any_connection_are_refused() -> None:
    reason, _ = _limits(100, OWN_FILES + 20)
    assert reason == (
        f"this process may open only {OWN_FILES + 20} files, but http.max_connections and "
        f"ingest.max_streams need {OWN_FILES + 1000}; raise the limit of open files "
        "(LimitNOFILE= of systemd, or ulimit -Hn), or lower the settings"
    )


def _limits(soft: int, hard: int) -> list[object]:
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[object] = json.loads(ended.stdout.splitlines()[-1])
    return found
