"""What each program loads before it does its work: counted in modules, which no load changes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ONLY_FOR_SPARK_OR_THE_NODE = {
    "alembic",
    "google",
    "grpc",
    "numpy",
    "pandas",
    "psycopg2",
    "pyarrow",
    "pyspark",
    "sqlalchemy",
    "starlette",
    "uvicorn",
}
NOT_FOR_THE_SUPERVISOR = ONLY_FOR_SPARK_OR_THE_NODE | {
    "httpx",
    "psutil",
    "pydantic",
    "rich",
    "structlog",
    "tenacity",
    "typer",
    "yaml",
}
SUPERVISOR_MODULES_MAX = 200
"""177 on Python 3.11, 33 of them the interpreter's."""

NOBODY = "--url http://127.0.0.1:1"
MODULES_MAX = {
    "--version": 200,
    "config token": 200,
    "--help": 370,
    "app check --help": 370,
    f"status {NOBODY}": 430,
    f"switchover {NOBODY}": 430,
    f"failover --force {NOBODY}": 430,
    f"query retry flights {NOBODY}": 430,
}
"""On Python 3.11 up to 171, 329 where it prints with rich, 388 where it asks with httpx."""


def loaded(program: str) -> set[str]:
    """Names of all modules that a fresh Python has after ``program``."""
    told = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("command", MODULES_MAX)
def test_a_command_loads_what_it_needs_and_no_more(command: str) -> None:
    program = (
        "import contextlib, io\nfrom ha_engine.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    main({command.split()!r})"
    )
    modules = loaded(program)
    assert packages(modules) & (ONLY_FOR_SPARK_OR_THE_NODE | {"pydantic", "structlog"}) == set()
    assert len(modules) <= MODULES_MAX[command]


def test_the_supervisor_loads_next_to_nothing() -> None:
    modules = loaded("import ha_engine.cli, ha_engine.supervisor.supervisor")
    assert packages(modules) & NOT_FOR_THE_SUPERVISOR == set()
    assert len(modules) <= SUPERVISOR_MODULES_MAX


def test_a_release_of_the_lease_loads_the_store_and_no_more() -> None:
    program = "import ha_engine.node.lease_release, ha_engine.postgres.lease_store"
    kept_out = NOT_FOR_THE_SUPERVISOR - {"psycopg2", "sqlalchemy", "tenacity"}
    assert packages(loaded(program)) & kept_out == set()


def test_the_node_process_never_loads_what_it_does_not_use() -> None:
    modules = loaded("import ha_engine.node.__main__, ha_engine.node.node, ha_engine.node.database")
    assert packages(modules) & {"alembic", "pandas", "pyspark", "typer"} == set()
