"""``ha-engine app deploy``, ``remove``, ``list``, ``history``, ``diff`` and ``rollback``."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ha_engine.cli.formats import FormatOption, JsonOption, console_of_tables, show, time_of
from ha_engine.cli.status import LOCAL, UrlOption

if TYPE_CHECKING:
    from ha_engine.client.deploy import Ask
    from ha_engine.deploy import Archive

DIFFERENT_EXIT_CODE = 1

PathArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="The application's YAML file, a directory with application.yaml and its modules, or a "
        "directory with several in applications/NAME.",
    ),
]
ByOption = Annotated[
    str, typer.Option("--by", envvar="USER", help="Your name, which the nodes record.")
]
OnChangeOption = Annotated[
    Literal["keep", "reset", "backfill"] | None,
    typer.Option(
        "--on-change",
        help="What happens to the state of each changed query that does not say it itself.",
    ),
]
AbsentOption = Annotated[
    bool, typer.Option("--allow-absent", help="Deploy although a node is not connected.")
]
DiscardOption = Annotated[
    bool,
    typer.Option(
        "--discard", help="Remove an application although its sinks do not have all output yet."
    ),
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
    only: Annotated[
        bool, typer.Option("--only", help="Remove all other applications of the group.")
    ] = False,
    discard: DiscardOption = False,
    wait: WaitOption = 300.0,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Deploy an application to every node of a running group.

    It replaces the application that has the name in its file, or is added to the others, which
    continue. The active plans all queries on Spark, and each node confirms that it has the same
    plug-ins and modules. If one refuses, nothing has changed. Then the nodes restart with the
    application, one after the other, while events are taken.

    With --shadow, compare the changed query with the live one by 'ha-engine query compare', and end
    with 'ha-engine query promote' or 'ha-engine query discard'.

    Example: ha-engine app deploy flights.yaml --url http://node-a:8080
    """
    from ha_engine.deploy import pack

    asked = _Asked(url, by, allow_absent, discard, wait, output, as_json)
    asked.deploy(pack(path), on_change=on_change, only=only, shadow=shadow or None)


def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the application.")],
    url: UrlOption = LOCAL,
    by: ByOption = "operator",
    allow_absent: AbsentOption = False,
    discard: DiscardOption = False,
    wait: WaitOption = 300.0,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Remove an application from every node. The others continue.

    The rows that its queries published stay in the sinks. Its streams take no more events.

    Example: ha-engine app remove flights
    """
    _Asked(url, by, allow_absent, discard, wait, output, as_json).remove(name)


def rollback(
    to: Annotated[
        int | None,
        typer.Option("--to", min=1, help="Number of a deployment; by default the one before."),
    ] = None,
    url: UrlOption = LOCAL,
    by: ByOption = "operator",
    on_change: OnChangeOption = None,
    allow_absent: AbsentOption = False,
    discard: DiscardOption = False,
    wait: WaitOption = 300.0,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Deploy an earlier deployment again, with all its applications, under a new number.

    Rows that a query published meanwhile stay in the sinks. A query whose definition changes back
    needs --on-change, as each change does.

    Example: ha-engine app rollback --on-change reset
    """
    from ha_engine.client.admin import fetch_application, fetch_archive
    from ha_engine.deploy import Archive
    from ha_engine.errors import ConfigError

    history = fetch_application(url)["history"]
    if not history or (to is None and len(history) < 2):
        raise ConfigError("this node has no earlier deployment; deploy a file instead")
    number = history[1]["number"] if to is None else to
    archive = Archive.from_text(fetch_archive(url, number))
    asked = _Asked(url, by, allow_absent, discard, wait, output, as_json)
    # The rollback takes no deployment back that its operator has not seen.
    asked.deploy(archive, on_change=on_change, only=True, expected=history[0]["number"])


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options that all commands have which deploy."""

    url: str
    by: str
    allow_absent: bool
    discard: bool
    wait: float
    output: Any
    as_json: bool

    def deploy(self, archive: Archive, **words: object) -> None:
        from ha_engine.client.admin import deploy_application

        asked = self._words | words
        self._await(lambda url: deploy_application(url, archive.content, asked))

    def remove(self, name: str) -> None:
        from ha_engine.client.admin import remove_application

        self._await(lambda url: remove_application(url, name, self._words))

    @property
    def _words(self) -> dict[str, object]:
        return {"by": self.by, "allow_absent": self.allow_absent, "discard": self.discard}

    def _await(self, ask: Ask) -> None:
        checked = "the active checks the application on Spark, and asks the other nodes"
        ask_and_wait(self.url, ask, self.wait, self.output, self.as_json, checked)


def ask_and_wait(
    url: str, ask: Ask, wait: float, output: Any, as_json: bool, first: str | None = None
) -> None:
    """Ask for a deployment through the node at ``url``, wait for the nodes, and print the result.
    ``first`` is what to say at once on a terminal."""
    from ha_engine.client.deploy import deploy as deploy_to_all

    def say(line: str) -> None:
        if sys.stderr.isatty():
            typer.echo(line, err=True)

    if first is not None:
        say(first)
    rolled = deploy_to_all(url, ask, wait, say)
    line = f"deployment {rolled.number} of {rolled.name} runs on {', '.join(rolled.nodes)}"
    absent = f"; {', '.join(rolled.absent)} is not connected" if rolled.absent else ""
    show(asdict(rolled), output, as_json, lambda: typer.echo(line + absent))


def list_applications(
    url: UrlOption = LOCAL, output: FormatOption = "pretty", as_json: JsonOption = False
) -> None:
    """Show the applications that each node of the group runs, and who deployed each.

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
        ("node", "application", "streams", "queries", "digest", "deployment", "at", "by"),
        (row for name, found in nodes.items() for row in _rows_of(name, found)),
    )


def _rows_of(node: str, found: Mapping[str, Any] | None) -> Iterator[tuple[str, ...]]:
    if found is None:
        yield node, "no answer", *[""] * 6
        return
    for one in found["applications"]:
        streams, queries = ", ".join(one["streams"]), ", ".join(one["queries"])
        yield node, one["name"], streams, queries, one["digest"][:8], *_deployment_of(one)
    deployed = found["deployed"]
    if deployed is not None and deployed.get("runs", deployed["id"]) != found["archive"]:
        moves = f"moves to {deployed['number']}", time_of(deployed["at_us"]), deployed["by"]
        yield node, deployed["name"], "", "", "", *moves


def _deployment_of(one: Mapping[str, Any]) -> tuple[str, str, str]:
    """The deployment that brought an application, when it did, and by whom."""
    origin = one["deployment"]
    if origin is None:
        return "file of the config", "", ""
    return str(origin["number"]), time_of(origin["at_us"]), origin["by"]


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
                time_of(one["at_us"]),
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


def _print_table(names: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> None:
    from rich.table import Table

    table = Table(*names, box=None)
    for row in rows:
        table.add_row(*row)
    console_of_tables().print(table)


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
    """Compare an application with that of its name in a deployment, file by file.

    The exit code is 0 if they are equal, and 1 if they differ.

    Example: ha-engine app diff flights.yaml
    """
    from ha_engine.client.admin import fetch_application, fetch_archive
    from ha_engine.deploy import Archive, pack, parts_of
    from ha_engine.errors import ConfigError

    deployed = fetch_application(url)["deployed"]
    if number is None and deployed is None:
        raise ConfigError("nothing is deployed; each node runs the file that its config names")
    of = deployed["number"] if number is None else number
    before, after = parts_of(Archive.from_text(fetch_archive(url, of))), parts_of(pack(path))
    lines = [
        line
        for name, part in after.items()
        for line in _differing(
            name, before[name].files if name in before else {}, part.files, f"deployment {of}"
        )
    ]
    tree = {"number": of, "equal": not lines, "diff": lines}
    show(tree, output, as_json, lambda: typer.echo("\n".join(lines) or "equal"))
    if lines:
        raise typer.Exit(DIFFERENT_EXIT_CODE)


def _differing(
    application: str, before: Mapping[str, bytes], after: Mapping[str, bytes], label: str
) -> Iterator[str]:
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        place = f"{application}/{name}"
        try:
            a, b = ((part or b"").decode("utf-8").splitlines() for part in (old, new))
        except UnicodeDecodeError:
            a = b = []
        yield from difflib.unified_diff(a, b, f"{place} ({label})", f"{place} (yours)", lineterm="")
        if a == b:
            yield f"{place}: the bytes differ"
