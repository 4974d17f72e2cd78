"""``ha-engine app deploy``, ``list``, ``history``, ``diff`` and ``rollback``."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ha_engine.cli.formats import FormatOption, JsonOption, show
from ha_engine.cli.status import LOCAL, UrlOption

if TYPE_CHECKING:
    from ha_engine.client.deploy import Rolled
    from ha_engine.deploy import Archive

DIFFERENT_EXIT_CODE = 1

PathArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="The application's YAML file, or a directory with application.yaml and its modules.",
    ),
]
ByOption = Annotated[
    str, typer.Option("--by", envvar="USER", help="Your name, which the nodes record.")
]
OnChangeOption = Annotated[
    Literal["keep", "reset"] | None,
    typer.Option(
        "--on-change",
        help="What happens to the state of each changed query that does not say it itself.",
    ),
]
AbsentOption = Annotated[
    bool, typer.Option("--allow-absent", help="Deploy although a node is not connected.")
]
WaitOption = Annotated[
    float, typer.Option("--wait", min=0, help="Seconds to wait for the nodes to run it.")
]


def deploy(
    path: PathArgument,
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow",
            help="Run the one changed query beside the live one; its rows go to no sink.",
        ),
    ] = False,
    url: UrlOption = LOCAL,
    by: ByOption = "operator",
    on_change: OnChangeOption = None,
    allow_absent: AbsentOption = False,
    wait: WaitOption = 300.0,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Deploy an application to every node of a running group.

    The active plans its queries on Spark, and each node confirms that it has the same plug-ins and
    modules. If one refuses, nothing has changed. Then the nodes restart with the application, one
    after the other, while events are taken.

    With --shadow, compare the changed query with the live one by 'ha-engine query compare', and end
    with 'ha-engine query promote' or 'ha-engine query discard'.

    Example: ha-engine app deploy flights.yaml --url http://node-a:8080
    """
    from ha_engine.deploy import pack

    _deploy(pack(path), url, by, on_change, allow_absent, wait, output, as_json, shadow)


def rollback(
    to: Annotated[
        int | None,
        typer.Option("--to", min=1, help="Number of a deployment; by default the one before."),
    ] = None,
    url: UrlOption = LOCAL,
    by: ByOption = "operator",
    on_change: OnChangeOption = None,
    allow_absent: AbsentOption = False,
    wait: WaitOption = 300.0,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Deploy an earlier deployment again, under a new number.

    Rows that a query published meanwhile stay in the sinks. A query whose definition changes back
    needs --on-change, as each change does.

    Example: ha-engine app rollback --on-change reset
    """
    from ha_engine.client.admin import fetch_application, fetch_archive
    from ha_engine.deploy import Archive
    from ha_engine.errors import ConfigError

    history = fetch_application(url)["history"]
    if to is None and len(history) < 2:
        raise ConfigError("this node has no earlier deployment; deploy a file instead")
    number = history[1]["number"] if to is None else to
    archive = Archive.from_text(fetch_archive(url, number))
    _deploy(archive, url, by, on_change, allow_absent, wait, output, as_json)


def _deploy(
    archive: Archive,
    url: str,
    by: str,
    on_change: str | None,
    allow_absent: bool,
    wait: float,
    output: Any,
    as_json: bool,
    shadow: bool = False,
) -> None:
    from ha_engine.client.deploy import deploy as deploy_to_all

    rolled = deploy_to_all(
        url,
        archive.content,
        by,
        on_change,
        allow_absent=allow_absent,
        seconds=wait,
        say=lambda line: typer.echo(line, err=True) if sys.stderr.isatty() else None,
        shadow=shadow,
    )
    print_rolled(rolled, output, as_json)


def print_rolled(rolled: Rolled, output: Any, as_json: bool) -> None:
    from dataclasses import asdict

    def sentence() -> None:
        line = f"deployment {rolled.number} of {rolled.name} runs on {', '.join(rolled.nodes)}"
        absent = f"; {', '.join(rolled.absent)} is not connected" if rolled.absent else ""
        typer.echo(line + absent)

    show(asdict(rolled), output, as_json, sentence)


def list_applications(
    url: UrlOption = LOCAL, output: FormatOption = "pretty", as_json: JsonOption = False
) -> None:
    """Show which application each node of the group runs.

    Example: ha-engine app list
    """
    from ha_engine.client.admin import fetch_application, fetch_cluster
    from ha_engine.errors import NodeUnreachable

    nodes = dict[str, Mapping[str, Any] | None]()
    for name, node in sorted(fetch_cluster(url)["nodes"].items()):
        try:
            nodes[name] = fetch_application(node["url"]) if node["url"] else None
        except NodeUnreachable:
            nodes[name] = None
    show({"nodes": nodes}, output, as_json, lambda: _print_nodes(nodes))


def _print_nodes(nodes: Mapping[str, Mapping[str, Any] | None]) -> None:
    _print_table(
        ("node", "application", "digest", "deployment", "by"),
        (
            (name, found["name"], found["digest"][:8], *_deployment_of(found))
            if found
            else (name, "no answer", "", "", "")
            for name, found in nodes.items()
        ),
    )


def _deployment_of(found: Mapping[str, Any]) -> tuple[str, str]:
    """The deployment that a node runs, and who deployed it."""
    deployed = found["deployed"]
    if deployed is not None and deployed.get("runs", deployed["id"]) == found["archive"]:
        return str(deployed["number"]), deployed["by"]
    if deployed is not None:
        return f"moves to {deployed['number']}", deployed["by"]
    return "file of the config", ""


def history(
    url: UrlOption = LOCAL, output: FormatOption = "pretty", as_json: JsonOption = False
) -> None:
    """Show the deployments whose files a node has, newest first.

    Example: ha-engine app history
    """
    from ha_engine.client.admin import fetch_application

    found = fetch_application(url)["history"]
    show({"history": found}, output, as_json, lambda: _print_history(found))


def _print_history(found: list[Mapping[str, Any]]) -> None:
    _print_table(
        ("number", "at", "application", "by", "id", ""),
        (
            (
                str(one["number"]),
                _time(one["at_us"]),
                one["name"],
                one["by"],
                one["id"][:8],
                _shadow(one),
            )
            for one in found
        ),
    )


def _shadow(one: Mapping[str, Any]) -> str:
    """The query that has a shadow in a deployment."""
    return f"shadow of {one['shadow']['query']}" if "shadow" in one else ""


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _print_table(names: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*names, box=None)
    for row in rows:
        table.add_row(*row)
    Console(soft_wrap=True, highlight=False).print(table)


def diff(
    path: PathArgument,
    number: Annotated[
        int | None,
        typer.Option("--number", min=1, help="Number of a deployment; by default the newest."),
    ] = None,
    url: UrlOption = LOCAL,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Compare an application with a deployment, file by file.

    The exit code is 0 if they are equal, and 1 if they differ.

    Example: ha-engine app diff flights.yaml
    """
    from ha_engine.client.admin import fetch_application, fetch_archive
    from ha_engine.deploy import Archive, pack
    from ha_engine.errors import ConfigError

    deployed = fetch_application(url)["deployed"]
    if number is None and deployed is None:
        raise ConfigError("nothing is deployed; each node runs the file that its config names")
    of = deployed["number"] if number is None else number
    before, after = Archive.from_text(fetch_archive(url, of)), pack(path)
    lines = [
        line
        for name in sorted({*before.files, *after.files})
        for line in _differing(name, before, after, f"deployment {of}")
    ]
    equal = before.id == after.id
    tree = {"number": of, "equal": equal, "diff": lines}
    show(tree, output, as_json, lambda: typer.echo("\n".join(lines) or "equal"))
    if not equal:
        raise typer.Exit(DIFFERENT_EXIT_CODE)


def _differing(name: str, before: Archive, after: Archive, label: str) -> Iterator[str]:
    old, new = (one.files.get(name, b"") for one in (before, after))
    if old == new:
        return
    try:
        a, b = (part.decode("utf-8").splitlines() for part in (old, new))
    except UnicodeDecodeError:
        yield f"{name}: the bytes differ"
        return
    names = f"{name} ({label})", f"{name} (yours)"
    yield from difflib.unified_diff(a, b, *names, lineterm="")
