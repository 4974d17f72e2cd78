"""Get the compatibility statement of another version, from what is on this host.

The product opens no connection to a package index. So a target is a file or a directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ha_engine.errors import StatementMissing
from ha_engine.upgrade.statement import Statement, parse_statement

_ANSWER_SECONDS = 60.0
_COMMAND = ("version", "--json")


def statement_of(target: str) -> Statement:
    """The statement of ``target``.

    ``target`` is a virtualenv, the program ``ha-engine`` of another version, a wheel, or a file
    with a saved statement. A wheel is unpacked for the call, and its code runs. The statement of a
    wheel has no ``runtime``, since the wheel does not decide which libraries are installed with it.

    Raises StatementMissing if there is no such file, or if the version makes no statement.
    """
    path = Path(target)
    if (program := path / "bin" / "ha-engine").is_file():
        return _asked([str(program)], target)
    if not path.is_file():
        raise StatementMissing(
            f"{target} is no file, and no directory with bin/ha-engine; ha-engine looks nothing "
            "up in a package index, so install that version beside this one and give its "
            "directory, or give its wheel, or a file with what its 'ha-engine version --json' "
            "prints"
        )
    if path.suffix == ".whl":
        return _of_wheel(path)
    if os.access(path, os.X_OK):
        return _asked([str(path.resolve())], target)
    try:
        return parse_statement(path.read_text(), target)
    except (OSError, UnicodeDecodeError) as error:
        raise StatementMissing(
            f"{target} cannot be read ({error}); give a wheel, a virtualenv, the program "
            "ha-engine, or a saved statement"
        ) from error


def _of_wheel(path: Path) -> Statement:
    with TemporaryDirectory(prefix="ha-engine-wheel-") as place:
        try:
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(place)
        except (OSError, zipfile.BadZipFile) as error:
            raise StatementMissing(f"{path} is no wheel: {error}; get the wheel again") from error
        asked = _asked([sys.executable, "-m", "ha_engine"], str(path), place)
        return replace(asked, runtime={})


def _asked(program: Sequence[str], target: str, directory: str | None = None) -> Statement:
    """Ask a program for its statement, which imports the engine from ``directory``, if given."""
    # The variable of this process would give the program the packages of this installation.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if directory is not None:
        environ["PYTHONPATH"] = directory
    try:
        done = subprocess.run(
            [*program, *_COMMAND],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_SECONDS,
            env=environ,
            cwd=directory,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StatementMissing(f"{target} does not run ({error}); install it again") from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise StatementMissing(
            f"{target} has no command 'ha-engine version --json' and says: {said}; install it "
            "again, or read docs/UPGRADE.md if it is older than that command"
        )
    return parse_statement(done.stdout, target)
