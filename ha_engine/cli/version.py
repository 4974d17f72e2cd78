"""``ha-engine version``: what this installation reads and writes, and with what it works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha_engine.cli.formats import FormatOption, JsonOption, show

if TYPE_CHECKING:
    from ha_engine.upgrade.statement import Statement


def version(output: FormatOption = "pretty", as_json: JsonOption = False) -> None:
    """Print the version, and the versions of all formats, libraries and schemas that it fits.

    'ha-engine upgrade check' of another version reads the JSON. The command needs no config.

    Example: ha-engine version --json
    """
    from ha_engine.upgrade.statement import statement_here

    statement = statement_here()
    show(statement.to_json(), output, as_json, lambda: _print(statement))


def _print(statement: Statement) -> None:
    from rich.console import Console
    from rich.table import Table

    from ha_engine.upgrade.statement import versions

    rows = [
        ("ha-engine", statement.engine),
        ("sync protocol", versions(statement.protocol_min, statement.protocol_max)),
        *(
            (name, f"reads {versions(one.read_min, one.read_max)}, writes up to {one.written}")
            for name, one in statement.formats.items()
        ),
        ("database schema", versions(statement.schema_min, statement.schema_max)),
        *statement.runtime.items(),
    ]
    table = Table("what", "version", box=None)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
