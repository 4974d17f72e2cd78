"""Test a broken engine: one process imports all libraries, and forks for each run.

A fork has the libraries but no module of the engine, so it imports the engine with its mutation.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO

import pytest

from tests.mutation import Mutation, break_imports
from tests.shared_postgres import DIRECTORY

LIBRARIES = (
    "alembic.command",
    "grpc.aio",
    "httpx",
    "hypothesis.stateful",
    "pandas",
    "psycopg2",
    "pyarrow.ipc",
    "pydantic",
    "sqlalchemy.dialects.postgresql",
    "starlette.applications",
    "structlog",
    "typer",
    "uvicorn",
)
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--timeout=300")
"""A test that waits for ever fails after five minutes, and so detects its mutation."""
BROKEN_IN_VAIN = 100
"""The exit code of a run that could not mutate its module."""
LIMIT_SECONDS = 1200
"""After this time a run is killed; then nothing has detected the mutation that made it endless."""


@dataclass(frozen=True, slots=True)
class Run:
    code: int
    output: str


class BrokenRuns:
    """The process that forks; a context manager. Its runs share the tests' PostgreSQL."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.broken"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, DIRECTORY: str(directory)},
            text=True,
        )

    def __enter__(self) -> BrokenRuns:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def run(self, mutation: Mutation, tests: Path) -> Run:
        """Run pytest over ``tests`` with the mutation in the engine; return the result."""
        return self._ask(mutation, ["tests", str(tests)])

    def play(self, mutation: Mutation, kind: str, seeds: int) -> Run:
        """Play the first ``seeds`` histories of a kind of ``tests.dst`` until one fails."""
        return self._ask(mutation, ["histories", kind, str(seeds)])

    def _ask(self, mutation: Mutation, what: list[str]) -> Run:
        asking, answers = self._process.stdin, self._process.stdout
        assert asking is not None
        assert answers is not None
        asking.write(json.dumps([asdict(mutation), what]) + "\n")
        asking.flush()
        return Run(**json.loads(answers.readline()))


def _serve() -> None:
    for name in LIBRARIES:
        import_module(name)
    for line in sys.stdin:
        mutation, what = json.loads(line)
        with tempfile.TemporaryFile() as output:
            code = _forked(Mutation(**mutation), what, output)
            output.seek(0)
            words = output.read().decode(errors="replace")
        sys.stdout.write(json.dumps(asdict(Run(code, words))) + "\n")
        sys.stdout.flush()


def _forked(mutation: Mutation, what: list[str], output: IO[bytes]) -> int:
    pid = os.fork()
    if pid:
        return _code_within_limit(pid)
    code = BROKEN_IN_VAIN
    try:
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        break_imports(mutation)
        code = _code_of(what)
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _code_within_limit(pid: int) -> int:
    """The exit code of the process ``pid``, which is killed after ``LIMIT_SECONDS``."""
    process = os.pidfd_open(pid)
    try:
        if not select.select([process], [], [], LIMIT_SECONDS)[0]:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(process)


def _code_of(what: list[str]) -> int:
    match what:
        case ["tests", tests]:
            # Without a directory of its own, a run closes the one above those of all runs, where
            # the servers of another run may be about to start.
            with tempfile.TemporaryDirectory(prefix="broken-") as directory:
                return pytest.main([*OPTIONS, f"--basetemp={directory}/run", tests])
        case ["histories", kind, seeds]:
            return _code_of_histories(kind, int(seeds))
        case _:
            raise ValueError(what)


def _code_of_histories(kind: str, seeds: int) -> int:
    # These modules import the engine, so they are imported with the mutation.
    history, kinds = import_module("tests.dst.history"), import_module("tests.dst.kinds")
    for seed in range(1, seeds + 1):
        try:
            history.play(kinds.KINDS[kind], seed)
        except history.Failed as failed:
            sys.stdout.write(f"{failed}\nhistory {seed} fails\n")
            return pytest.ExitCode.TESTS_FAILED
    return pytest.ExitCode.OK


if __name__ == "__main__":
    _serve()
