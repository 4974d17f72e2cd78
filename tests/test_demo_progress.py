"""The demo gives up only without progress, and shows the reason of its wait meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ha_engine.demo.host import FreeResources, cpu_quota, memory_left
from ha_engine.demo.interrupts import Interrupts
from ha_engine.demo.movement import (
    CPU_LOOK_SECONDS,
    CPU_SECONDS,
    PATIENCE_SECONDS,
    Movement,
    signs_of,
    used_since,
    waits_for,
)
from ha_engine.demo.processes import kill_all_in, marked_environment, processes_in
from ha_engine.errors import DemoInterrupted


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def status(**changes: Any) -> dict[str, Any]:
    """Return the status of a starting node; ``changes`` replace whole sections."""
    return {
        "role": "passive",
        "warm": False,
        "protected": True,
        "lease": {"epoch": 1},
        "journal": {"last": "1.7"},
        "query_process": {"incarnation": "x", "connected": False, "last_death": None},
        "queries": {
            "delays": {"state": "running", "mark": 4, "batch": 2, "published": {"table": 2}}
        },
        **changes,
    }


def advance(movement: Movement, clock: Clock, seconds: float, signs: object) -> None:
    """Look twice a second, as the demo does."""
    until = clock.now + seconds
    while clock.now < until:
        clock.now += 0.5
        movement.look(signs)


def test_demo_gives_up_after_five_minutes_without_a_change() -> None:
    clock = Clock()
    movement = Movement(dict, clock)
    movement.look("a")
    advance(movement, clock, PATIENCE_SECONDS - 1, "a")
    assert not movement.stopped
    advance(movement, clock, 1, "a")
    assert movement.stopped


def test_one_step_restarts_the_patience_of_the_demo() -> None:
    clock = Clock()
    movement = Movement(dict, clock)
    advance(movement, clock, PATIENCE_SECONDS - 1, "a")
    advance(movement, clock, PATIENCE_SECONDS - 1, "b")
    assert not movement.stopped


@pytest.mark.parametrize(("cores", "stopped"), [(0.05, False), (0.02, True)])
def test_cpu_above_that_of_idle_nodes_is_progress(cores: float, stopped: bool) -> None:
    clock = Clock()
    movement = Movement(lambda: {(1, 0.0): clock.now * cores}, clock)
    advance(movement, clock, PATIENCE_SECONDS + CPU_LOOK_SECONDS, "a")
    assert movement.stopped is stopped


def test_ended_process_does_not_reduce_the_cpu_of_the_others() -> None:
    before = {(1, 0.0): 50.0, (2, 0.0): 1.0}
    assert used_since(before, {(2, 0.0): 4.0, (3, 9.0): CPU_SECONDS}) == 3.0 + CPU_SECONDS


@pytest.mark.parametrize(
    "changed",
    [
        status(role="active"),
        status(warm=True),
        status(journal={"last": "1.8"}),
        status(query_process={"incarnation": "x", "connected": False, "step": "starting Spark"}),
        status(query_process={"incarnation": "y", "connected": False}),
        status(
            queries={
                "delays": {"state": "running", "mark": 4, "batch": 2, "published": {"table": 3}}
            }
        ),
        None,
    ],
)
def test_every_step_of_a_node_is_a_sign_of_progress(changed: dict[str, Any] | None) -> None:
    assert signs_of(changed) != signs_of(status())


def test_time_alone_is_no_sign_of_progress() -> None:
    process = {"incarnation": "x", "connected": False, "step": "starting Java"}
    earlier = status(query_process={**process, "step_seconds": 3.0})
    later = status(query_process={**process, "step_seconds": 4.0})
    assert signs_of(earlier) == signs_of(later)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (None, "no answer yet"),
        (status(role="joining"), "joining, starting Spark"),
        (
            status(
                query_process={
                    "connected": False,
                    "step": "starting Java",
                    "step_seconds": 12.3,
                    "last_death": None,
                }
            ),
            "starting Java (12 s)",
        ),
        (
            status(query_process={"connected": False, "last_death": "killed by SIGKILL"}),
            "starting Spark, the last process ended: killed by SIGKILL",
        ),
        (
            status(query_process={"connected": True, "step": "ready", "last_death": None}),
            "delays at batch 2 of 4",
        ),
        (status(warm=True), ""),
    ],
)
def test_demo_shows_the_step_that_it_waits_for(seen: dict[str, Any] | None, said: str) -> None:
    assert waits_for(seen) == said


# -- the machine -----------------------------------------------------------------------------------


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_narrowest_control_group_of_version_2_is_the_limit(tmp_path: Path) -> None:
    write(tmp_path / "a" / "cpu.max", "150000 100000\n")
    write(tmp_path / "a" / "b" / "cpu.max", "max 100000\n")
    write(tmp_path / "a" / "b" / "memory.max", "3000\n")
    write(tmp_path / "a" / "b" / "memory.current", "1000\n")
    assert cpu_quota("0::/a/b\n", tmp_path) == 1.5
    assert memory_left("0::/a/b\n", tmp_path) == 2000


def test_control_groups_of_version_1_have_a_hierarchy_per_controller(tmp_path: Path) -> None:
    write(tmp_path / "cpu,cpuacct" / "a" / "cpu.cfs_quota_us", "50000\n")
    write(tmp_path / "cpu,cpuacct" / "a" / "cpu.cfs_period_us", "100000\n")
    write(tmp_path / "cpu,cpuacct" / "cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cpu,cpuacct" / "cpu.cfs_period_us", "100000\n")
    groups = "4:memory:/x\n2:cpu,cpuacct:/a\n0::/\n"
    assert cpu_quota(groups, tmp_path) == 0.5
    assert memory_left(groups, tmp_path) == float("inf")


def test_control_group_in_a_container_is_read_at_its_mount(tmp_path: Path) -> None:
    write(tmp_path / "cpu.max", "100000 100000\n")
    assert cpu_quota("0::/docker/1234\n", tmp_path) == 1.0


def test_demo_warns_of_scarce_cores_and_memory() -> None:
    assert FreeResources(2.0, 4 << 30).warning is None
    assert FreeResources(0.5, 3 << 30).warning == (
        "only 0.5 of 2 cores and 3.0 of 4 GB of memory are free on this host, "
        "so the demo takes longer"
    )


# -- signals and processes -------------------------------------------------------------------------


def test_signal_takes_effect_at_the_next_safe_point() -> None:
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGTERM)
    with interrupts.noted():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(DemoInterrupted) as ended:
            interrupts.require_none()
    assert ended.value.exit_code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Start a process with a child in another session in each of two directories."""
    found = (tmp_path / "node", tmp_path / "node-2")
    child = "import subprocess, sys; subprocess.run(['sleep', '600'], start_new_session=True)"
    started = [
        subprocess.Popen([sys.executable, "-c", child], env=marked_environment(place))
        for place in found
    ]
    yield found
    for place, process in zip(found, started, strict=True):
        kill_all_in(place)
        process.wait()


def test_demo_kills_only_the_processes_of_its_directory(places: tuple[Path, Path]) -> None:
    ours, others = places
    kill_all_in(ours)
    assert processes_in(ours) == []
    assert processes_in(others) != []
    assert set(processes_in(others)) <= set(processes_in(others.parent))
