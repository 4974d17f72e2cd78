"""Judge what the executors of a cluster, and its masters, said to the check application.

Every function is pure; ``spark_application`` asks, and ``executor_probe`` answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.filesize import decimal

from ha_engine.config.execution import ExecutorsConfig
from ha_engine.doctor.finding import Finding, failed, ok, skipped, warning

NODES = 2
"""Each node of a pair has executors of its own."""
CLOCK_SECONDS = 1.0
_ONLY_SPEAKS = "grpcio"
"""Computes nothing, and other releases understand it."""
_MISSING = (
    "lower execution.executors, add workers, or end other applications; a node that runs on the "
    "cluster has executors too; if executors end at once, see the logs of the workers, and let "
    "them reach this host"
)
_PODS_MISSING = (
    "give the namespace room and quota for the executors, or lower execution.executors; let the "
    "pods reach execution.advertise; 'kubectl get events' and, while a pod runs, 'kubectl logs' "
    "say more"
)
_INSTALL = "install the same ha-engine and its packages on this host and on each worker"


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of an executor on its host. The texts of problems are empty if there is none.

    ``versions`` is that of ``executor_probe.versions``. ``modules`` and ``nodes`` have only
    problems, by the name of a module and the address of a node. ``file`` is the name of the file
    that the executor wrote into the shared directory.
    """

    host: str
    process: int
    interpreter: str
    versions: Mapping[str, str]
    modules: Mapping[str, str]
    nodes: Mapping[str, str]
    file: str
    directory: str


def on_hosts(hosts: Iterable[str]) -> str:
    return ", ".join(sorted(set(hosts)))


def enough(live: int, wanted: int, seconds: float, pods: Sequence[str] | None = None) -> Finding:
    """Whether all executors started within ``seconds``.

    On Kubernetes, ``pods`` has a line for each pod whose executor did not start.
    """
    text = f"{live} of {wanted} executors started"
    if live == wanted:
        return ok(text)
    late, remedy = f"{text} within {seconds:.0f} s", _MISSING
    if pods is not None:
        shown = "; ".join(pods) or "Kubernetes has no pod of another one, or refused it"
        late, remedy = f"{late}: {shown}", _PODS_MISSING
    return warning(late, remedy) if live else failed(late, remedy)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker with ``room`` for so many executors if nothing else ran there."""

    room: int
    text: str


def workers_of_page(page: Mapping[str, Any], executors: ExecutorsConfig) -> list[Worker]:
    """The workers on the JSON of a standalone master's web page, which has memory in MiB."""
    needed = executors.memory >> 20
    return [
        Worker(min(one["cores"] // executors.cores, one["memory"] // needed), _worker(one))
        for one in page["workers"]
        if one["state"] == "ALIVE"
    ]


@dataclass(frozen=True, slots=True)
class YarnWorker:
    """A NodeManager with its memory for containers, all and used, in MiB."""

    host: str
    memory: int
    used: int


def workers_of_yarn(found: Iterable[YarnWorker], container: int) -> list[Worker]:
    """The workers of YARN, for executors whose ``container`` has so many MiB.

    YARN's scheduler counts no cores, unless its configuration says so.
    """
    return [
        Worker(
            one.memory // container,
            f"{one.host} has {decimal(one.memory - one.used << 20)} of "
            f"{decimal(one.memory << 20)} free, for containers of {decimal(container << 20)}",
        )
        for one in found
    ]


def capacity(
    workers: Sequence[Worker] | None, executors: ExecutorsConfig, masters: int = 0
) -> Finding:
    """Compare the workers, None if they are not known, with the executors of two nodes.

    Each node needs room for so many ApplicationMasters besides, which are smaller than executors.
    """
    if workers is None:
        return skipped("no master showed its workers; the web page of the master may be closed")
    room = sum(one.room for one in workers)
    shown = "; ".join(one.text for one in workers) or "no workers"
    of_node = executors.count + masters
    wanted = f"{NODES * of_node}{', each ApplicationMaster counted as one' if masters else ''}"
    if room >= NODES * of_node:
        return ok(f"room for {room} executors, and two nodes need {wanted}: {shown}")
    found = failed if room < of_node else warning
    return found(
        f"room for {room} executors, but two nodes need {wanted}: {shown}",
        f"add workers, or lower execution.executors ({executors.count} executors with "
        f"{executors.cores} cores and {decimal(executors.memory)} each, on each node)",
    )


def _worker(worker: Mapping[str, Any]) -> str:
    free, memory = worker["memoryfree"] << 20, worker["memory"] << 20
    return (
        f"{worker['host']} has {worker['coresfree']} of {worker['cores']} cores and "
        f"{decimal(free)} of {decimal(memory)} free"
    )


def software(reports: Sequence[Report], ours: Mapping[str, str]) -> Finding:
    """Whether each executor runs the same Python, engine and packages as this host."""
    differing = {
        name: on_hosts(report.host for report in reports if _differs(name, report, ours))
        for name in ours
        if any(_differs(name, report, ours) for report in reports)
    }
    if not differing:
        shown = ", ".join(f"{name} {version}" for name, version in ours.items())
        interpreters = on_hosts(report.interpreter for report in reports)
        return ok(f"{on_hosts(one.host for one in reports)}: {shown}, at {interpreters}")
    texts = [
        f"{name} is {ours[name]} here, but {_versions(name, reports, ours)} on {hosts}"
        for name, hosts in differing.items()
    ]
    found = warning if list(differing) == [_ONLY_SPEAKS] else failed
    return found("; ".join(texts), _INSTALL)


def _differs(name: str, report: Report, ours: Mapping[str, str]) -> bool:
    return report.versions[name] != ours[name]


def _versions(name: str, reports: Sequence[Report], ours: Mapping[str, str]) -> str:
    found = {report.versions[name] for report in reports} - {ours[name]}
    return " and ".join(sorted(found))


def modules(reports: Sequence[Report], wanted: Sequence[str], directories: str) -> Finding:
    """Whether each executor imports the modules of the application from ``directories``."""
    if not wanted:
        return skipped("no query of the application is a Python function")
    problems = [
        f"{report.host} cannot import {module}: {problem}"
        for report in reports
        for module, problem in report.modules.items()
    ]
    if problems:
        return failed(
            "; ".join(sorted(set(problems))),
            f"copy {directories} to the same path on each worker, and install what it imports",
        )
    return ok(f"each executor imports {', '.join(wanted)}")


def nodes(
    reports: Sequence[Report], names: Mapping[str, str], unasked: Mapping[str, str]
) -> Finding:
    """Whether each executor reads from each node; ``names`` has the nodes by address, and
    ``unasked`` the reasons by node for those without a known address."""
    problems = [
        f"{report.host} does not read from {names[address]} at {address}: {problem}"
        for report in reports
        for address, problem in report.nodes.items()
    ]
    if problems:
        return failed(
            "; ".join(sorted(set(problems))),
            "open the port of execution.listen for the workers, set execution.advertise to an "
            "address that they reach, and give both nodes the same secret and authority",
        )
    shown = ", ".join(f"{name} at {address}" for address, name in names.items())
    rest = "".join(f"; {name} was not asked: {why}" for name, why in unasked.items())
    return ok(f"each executor reads from {shown}{rest}")


def checkpoint(
    reports: Sequence[Report], seen: Mapping[str, str], owners: Mapping[str, int], user: int
) -> Finding:
    """Whether ``execution.checkpoint`` is one directory for this host and the executors.

    ``seen`` has the reason why the driver could not read the file of an executor, by the file's
    name. ``owners`` has the owner's user id of each file that it read, and ``user`` is that of the
    driver's file.
    """
    problems = [f"{one.host}: {one.directory}" for one in reports if one.directory]
    problems += [
        f"this host does not see what {one.host} wrote: {seen[one.file]}"
        for one in reports
        if not one.directory and one.file in seen
    ]
    if problems:
        return failed(
            "; ".join(sorted(set(problems))),
            "mount the same directory at this path on this host and on each worker, with hard "
            "links and symbolic links, and let the user of the workers write there",
        )
    others = [one for one in reports if owners[one.file] != user]
    if others:
        return failed(
            f"files of {on_hosts(one.host for one in others)} belong to the user id "
            f"{owners[others[0].file]}, and those of this host to {user}",
            "run nodes and workers as the same user, and export the directory without a change "
            "of users",
        )
    return ok(f"{on_hosts(one.host for one in reports)} and this host share the directory")


def clocks(readings: Sequence[Mapping[str, Any]], before: float, after: float) -> Finding:
    """Compare the executors' clocks with this host's; the readings were made between ``before``
    and ``after``, in Unix time."""
    apart = {one["host"]: max(before - one["time"], one["time"] - after) for one in readings}
    late = {host: seconds for host, seconds in apart.items() if seconds > CLOCK_SECONDS}
    if late:
        shown = ", ".join(f"{host} by {seconds:.1f} s" for host, seconds in sorted(late.items()))
        return warning(
            f"clocks differ from this host's: {shown}",
            "synchronise the clocks, for example with chrony; no result depends on them, but the "
            "times of logs do",
        )
    return ok(f"the clocks differ by less than {CLOCK_SECONDS + after - before:.1f} s")
