"""The modules that each program loads before its work; the load of the machine does not matter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.rotates("files")

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
"""On Python 3.11 up to 171, 329 with rich for its output, 388 with httpx for its requests."""


def loaded(program: str) -> set[str]:
    """Return the names of all modules in a fresh Python after ``program``."""
    told = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("command", MODULES_MAX)
def test_command_imports_only_the_modules_that_it_needs(command: str) -> None:
    program = (
        "import contextlib, io\nfrom ha_engine.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    main({command.split()!r})"
    )
    modules = loaded(program)
    assert packages(modules) & (ONLY_FOR_SPARK_OR_THE_NODE | {"pydantic", "structlog"}) == set()
    assert len(modules) <= MODULES_MAX[command]


def test_supervisor_imports_hardly_any_module() -> None:
    modules = loaded("import ha_engine.cli, ha_engine.supervisor.supervisor")
    assert packages(modules) & NOT_FOR_THE_SUPERVISOR == set()
    assert len(modules) <= SUPERVISOR_MODULES_MAX


def test_release_of_the_lease_imports_only_the_store() -> None:
    program = "import ha_engine.node.lease_release, ha_engine.postgres.lease_store"
    kept_out = NOT_FOR_THE_SUPERVISOR - {"psycopg2", "sqlalchemy", "tenacity"}
    assert packages(loaded(program)) & kept_out == set()


def test_node_process_never_imports_unused_modules() -> None:
    modules = loaded("import ha_engine.node.__main__, ha_engine.node.node, ha_engine.node.database")
    assert packages(modules) & {"alembic", "pandas", "pyspark", "typer"} == set()


def test_observer_never_imports_unused_modules() -> None:
    modules = loaded("import ha_engine.observer.process")
    unused = {"alembic", "pandas", "psycopg2", "pyspark", "sqlalchemy", "typer"}
    assert packages(modules) & unused == set()


def test_receiver_never_imports_unused_modules() -> None:
    modules = loaded("import ha_engine.receiver.process")
    unused = {"alembic", "pandas", "psycopg2", "pyspark", "sqlalchemy", "typer"}
    assert packages(modules) & unused == set()
