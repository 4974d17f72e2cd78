"""The findings of ``ha-engine cluster check`` about what executors and masters said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ha_engine.config.execution import ExecutorsConfig
from ha_engine.doctor import executors
from ha_engine.doctor.executors import Report
from ha_engine.doctor.finding import State

OURS = {"Python": "3.11.2", "pyarrow": "21.0.0", "grpcio": "1.76.0", "files of ha-engine": "abc"}
FIRST = Report("worker-1", 7, "/opt/ha-engine/bin/python", OURS, {}, {}, "executor-0", "")
SECOND = replace(FIRST, host="worker-2", file="executor-1")
BOTH = [FIRST, SECOND]
OWNERS = {"executor-0": 1000, "executor-1": 1000}
TWO = ExecutorsConfig(count=2, cores=2, memory="2GiB")


def worker(cores: int, gibibytes: int, state: str = "ALIVE") -> dict[str, Any]:
    memory = gibibytes << 10
    free = {"coresfree": cores, "memoryfree": memory}
    return {"host": "worker-1", "state": state, "cores": cores, "memory": memory, **free}


@pytest.mark.parametrize(("live", "state"), [(2, State.OK), (1, State.WARNING), (0, State.FAILED)])
def test_too_few_executors_warn_and_none_fails(live: int, state: State) -> None:
    finding = executors.enough(live, 2, 60.0)
    assert finding.state is state
    assert finding.text.startswith(f"{live} of 2 executors started")


@pytest.mark.parametrize(
    ("workers", "room", "state"),
    [
        ([worker(4, 16), worker(4, 16)], 4, State.OK),
        ([worker(16, 6)], 3, State.WARNING),
        ([worker(3, 64), worker(3, 64)], 2, State.WARNING),
        ([worker(3, 64), worker(9, 64, state="DEAD")], 1, State.FAILED),
        ([], 0, State.FAILED),
    ],
    ids=["fits", "too little memory", "one node fits", "a dead worker", "no worker"],
)
def test_the_workers_must_have_room_for_two_nodes(
    workers: list[dict[str, Any]], room: int, state: State
) -> None:
    found = executors.workers_of_page({"workers": workers}, TWO)
    finding = executors.capacity(found, TWO)
    assert finding.state is state
    assert finding.text.startswith(f"room for {room} executors")


@pytest.mark.parametrize(
    ("memory", "state"), [(24 << 10, State.OK), (20 << 10, State.WARNING), (8 << 10, State.FAILED)]
)
def test_the_workers_of_yarn_have_room_by_memory(memory: int, state: State) -> None:
    """Each node needs two executors and an ApplicationMaster."""
    found = executors.workers_of_yarn([executors.YarnWorker("worker-1", memory, 1024)], 4096)
    finding = executors.capacity(found, TWO, masters=1)
    assert finding.state is state
    assert finding.text.startswith(f"room for {memory // 4096} executors")
    assert "free, for containers of 4.3 GB" in finding.text


def test_a_closed_page_of_the_master_is_no_failure() -> None:
    assert executors.capacity(None, TWO).state is State.SKIPPED


def test_equal_software_passes() -> None:
    finding = executors.software(BOTH, OURS)
    assert finding.state is State.OK
    assert finding.text.startswith("worker-1, worker-2: Python 3.11.2, ")


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("files of ha-engine", State.FAILED),
        ("pyarrow", State.FAILED),
        ("grpcio", State.WARNING),
    ],
)
def test_other_software_on_a_worker_names_the_worker(name: str, state: State) -> None:
    other = replace(SECOND, versions={**OURS, name: "other"})
    finding = executors.software([FIRST, other], OURS)
    assert finding.state is state
    assert finding.text == f"{name} is {OURS[name]} here, but other on worker-2"


def test_a_module_that_a_worker_lacks_fails() -> None:
    lacking = replace(SECOND, modules={"flights": "ModuleNotFoundError: no flights"})
    assert executors.modules(BOTH, ["flights"], "/app").state is State.OK
    finding = executors.modules([FIRST, lacking], ["flights"], "/app")
    assert finding.state is State.FAILED
    assert finding.text == "worker-2 cannot import flights: ModuleNotFoundError: no flights"
    assert executors.modules(BOTH, [], "/app").state is State.SKIPPED


def test_a_node_that_a_worker_does_not_reach_fails() -> None:
    names = {"10.0.0.1:9895": "this node", "10.0.0.2:9895": "node-b"}
    lonely = replace(SECOND, nodes={"10.0.0.2:9895": "no connection (timed out)"})
    finding = executors.nodes([FIRST, lonely], names, {})
    assert finding.state is State.FAILED
    assert finding.text == (
        "worker-2 does not read from node-b at 10.0.0.2:9895: no connection (timed out)"
    )


def test_a_node_without_an_address_is_named() -> None:
    finding = executors.nodes(BOTH, {"10.0.0.1:9895": "this node"}, {"node-b": "it is down"})
    assert finding.state is State.OK
    assert finding.text.endswith("node-b was not asked: it is down")


@pytest.mark.parametrize(
    ("reports", "seen", "owners", "text"),
    [
        ([FIRST, replace(SECOND, directory="no such file")], {}, OWNERS, "worker-2: no such file"),
        (BOTH, {"executor-1": "gone"}, OWNERS, "this host does not see what worker-2 wrote: gone"),
        (BOTH, {}, {**OWNERS, "executor-1": 7}, "files of worker-2 belong to the user id 7"),
    ],
    ids=["not mounted there", "another directory", "another user"],
)
def test_a_directory_that_is_not_shared_fails(
    reports: list[Report], seen: dict[str, str], owners: dict[str, int], text: str
) -> None:
    finding = executors.checkpoint(reports, seen, owners, 1000)
    assert finding.state is State.FAILED
    assert finding.text.startswith(text)
    assert executors.checkpoint(BOTH, {}, OWNERS, 1000).state is State.OK


@pytest.mark.parametrize(
    ("time", "state"),
    [
        (100.1, State.OK),
        (101.1, State.OK),
        (102.0, State.WARNING),
        (98.5, State.WARNING),
    ],
)
def test_a_clock_that_differs_for_certain_warns(time: float, state: State) -> None:
    finding = executors.clocks([{"host": "worker-1", "time": time}], before=100.0, after=100.2)
    assert finding.state is state
