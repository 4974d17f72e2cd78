"""``ha-engine upgrade``: check another version, and upgrade the hosts one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ha_engine.cli.config import ConfigPath
from ha_engine.cli.formats import FormatOption, JsonOption, show
from ha_engine.cli.status import LOCAL, UrlOption

if TYPE_CHECKING:
    from ha_engine.config import Config
    from ha_engine.postgres.schema_version import SchemaState
    from ha_engine.sync.hello import Hello
    from ha_engine.upgrade.comparison import Line, Verdict
    from ha_engine.upgrade.steps import Step

app = typer.Typer(no_args_is_help=True)

BOTH_AT_ONCE, IMPOSSIBLE, UNKNOWN = 3, 4, 5
"""Exit codes of 'upgrade check'."""
PATIENCE_SECONDS = 600.0
HELLO_SECONDS = 4.0

WaitOption = Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait at most.")]


@app.callback()
def _noun() -> None:
    """Check another version, and upgrade the hosts of a group one after the other.

    On each host, the passive's first: 'upgrade prepare', then stop the node, install the version
    and start the node, then 'upgrade verify'.

    Example: ha-engine upgrade check --to /opt/ha-engine-2 -c engine.yaml
    """


@app.command()
def check(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="A virtualenv, a program ha-engine, a wheel, or a saved 'version --json'.",
        ),
    ],
    path: ConfigPath = None,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Say what of wire, records, batches, checkpoints and schema fits between two versions.

    The command compares TARGET with this installation. With a config, it also asks the database for
    its schema, and the other nodes for their versions. It changes nothing. Below each line stands
    what to do.

    The exit code is 0 if the nodes can be upgraded one after the other, 3 if both must stop first,
    4 if it is impossible, and 5 if something is not known.

    Example: ha-engine upgrade check --to /opt/ha-engine-2 -c engine.yaml
    """
    from ha_engine.config.load import load_config
    from ha_engine.upgrade.comparison import Verdict, compare, verdict_of
    from ha_engine.upgrade.statement import statement_here
    from ha_engine.upgrade.target import statement_of

    target, here = statement_of(to), statement_here()
    database: SchemaState | str = "no config names the database; add --config"
    peers: dict[str, Hello | str] = {}
    if path is not None:
        config = load_config(path, os.environ)
        database, peers = _schema(config), _hellos(config)
    lines = compare(here, target, database, peers)
    verdict = verdict_of(lines)
    tree = {
        "from": here.to_json(),
        "to": target.to_json(),
        "verdict": verdict.value,
        "lines": [line.to_json() for line in lines],
    }
    show(tree, output, as_json, lambda: _print_lines(here.engine, target.engine, lines, verdict))
    codes = {
        Verdict.BOTH_AT_ONCE: BOTH_AT_ONCE,
        Verdict.IMPOSSIBLE: IMPOSSIBLE,
        Verdict.UNKNOWN: UNKNOWN,
    }
    if verdict in codes:
        raise typer.Exit(codes[verdict])


@app.command()
def prepare(
    url: UrlOption = LOCAL,
    by: Annotated[str, typer.Option("--by", help="Name of the operator; recorded.")] = "operator",
    wait: WaitOption = PATIENCE_SECONDS,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Make the node at --url ready for its stop: passive, while another node is the active.

    On an active, the command waits until the other node is in sync and warm, and switches over.
    Begin with the passive's host, so that the pair needs only one switchover.

    Example: ha-engine upgrade prepare
    """
    from ha_engine.upgrade.steps import prepare as prepare_node

    with _progress() as say:
        step = prepare_node(url, by, wait, say)
    _show_step(step, output, as_json)


@app.command()
def verify(
    url: UrlOption = LOCAL,
    wait: WaitOption = PATIENCE_SECONDS,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Wait until all nodes are in sync and warm, and print their versions and the next step.

    Example: ha-engine upgrade verify --wait 300
    """
    from ha_engine.upgrade.steps import verify as verify_group

    with _progress() as say:
        step = verify_group(url, wait, say)
    _show_step(step, output, as_json)


def _schema(config: Config) -> SchemaState | str:
    from ha_engine.cli.database import opened_engine
    from ha_engine.errors import EngineError
    from ha_engine.node.startup import EMBEDDED
    from ha_engine.postgres.schema_version import read_state

    if config.database.url.get_secret_value() == EMBEDDED:
        return "the embedded database runs only while its node runs; use 'ha-engine db version'"
    try:
        with opened_engine(config.database) as engine:
            return read_state(engine, config.database.schema_name)
    except EngineError as error:
        return str(error)


def _hellos(config: Config) -> dict[str, Hello | str]:
    import asyncio

    from ha_engine.errors import EngineError
    from ha_engine.sync.codec import MalformedFrame
    from ha_engine.sync.dialling import read_hello
    from ha_engine.sync.grpc_transport import GrpcTransport
    from ha_engine.sync.transport import Refused
    from ha_engine.sync.wire import WireBroken

    found: dict[str, Hello | str] = {}
    for peer in config.event_sync.peers:
        transport = GrpcTransport(config.event_sync)
        try:
            found[peer] = asyncio.run(read_hello(peer, transport, HELLO_SECONDS))
        except TimeoutError:
            found[peer] = "no answer in time"
        except (Refused, WireBroken, MalformedFrame, EngineError) as error:
            found[peer] = str(error)
    return found


_STYLES = {"fits": "green", "unknown": "yellow", "both at once": "yellow", "impossible": "bold red"}
_SUMMARY = {
    "fits": "upgrade one host after the other: docs/UPGRADE.md",
    "unknown": "something is not known yet, see above",
    "both at once": "stop both nodes, and start both with the target: docs/UPGRADE.md",
    "impossible": "the target cannot continue what this version has written",
}


def _print_lines(here: str, target: str, lines: list[Line], verdict: Verdict) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("subject", "verdict", "what, and what to do", title=f"{here} to {target}")
    for line in lines:
        what = f"{line.text}\n{line.remedy}" if line.remedy else line.text
        state = line.verdict.value
        table.add_row(line.subject, Text(state, _STYLES[state]), Text(what))
    console = Console()
    console.print(table)
    console.print(Text(f"{verdict.value}: {_SUMMARY[verdict.value]}", _STYLES[verdict.value]))


def _show_step(step: Step, output: FormatOption, as_json: bool) -> None:
    show(step.to_json(), output, as_json, lambda: _print_step(step))


def _print_step(step: Step) -> None:
    for node in step.nodes:
        states = [node.role, "in sync" if node.in_sync else "not in sync"]
        states.append("warm" if node.warm else "not warm")
        typer.echo(f"{node.node}: ha-engine {node.version or 'unknown'}, {', '.join(states)}")
    typer.echo(f"next: {step.next}")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show on standard error what the command waits for, on a terminal in one line."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: typer.echo(text, err=True)
        return
    with console.status("asking the nodes") as status:
        yield status.update
