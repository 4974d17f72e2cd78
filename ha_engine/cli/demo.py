"""``ha-engine demo``: run the whole product on one machine, with real data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    directory: Annotated[
        Path, typer.Option("--directory", help="Working directory; emptied first.")
    ] = Path("var/demo"),
) -> None:
    r"""Send a year of flights through two nodes, kill one, and compare the sink with pandas.

    Needs the extra: pip install 'ha-engine\[demo]'.

    Example: ha-engine demo --directory var/demo
    """
    from rich.console import Console

    from ha_engine.demo.show import show

    raise typer.Exit(0 if show(directory.resolve(), Console()) else 1)
