"""An operator retries a FAILED query without giving its batch up (RULES.md#i15)."""

from __future__ import annotations

from ha_engine.core import QueryState, RestartPolicy
from ha_engine.core import inputs as on
from ha_engine.types import Skip
from tests.core.world import World, plan


def failed_at_batch_one() -> World:
    world = World(plans=(plan("delays", "flights", "board"),))
    world.start()
    world.automatic -= {"batches"}
    world.offer("flights", 10)
    for _ in range(2):
        world.fail("delays")
    assert state(world) is QueryState.FAILED
    return world


def state(world: World) -> QueryState:
    life = world.core.deployment.lives["delays"]
    assert isinstance(life.state, QueryState)
    return life.state


def retry(world: World) -> None:
    world.feed(on.RetryAsked("delays"))
    world.settle()


def test_retried_query_runs_the_same_batch_with_its_rows() -> None:
    world = failed_at_batch_one()
    before = list(world.disk.records)
    retry(world)
    assert state(world) is QueryState.RUNNING
    assert world.disk.records == before
    world.automatic |= {"batches"}
    world.settle()
    assert [event.sequence for event in world.batches["delays"][1]] == [3]
    world.truth.require_all_published()


def test_batch_that_fails_again_fails_the_query_again() -> None:
    world = failed_at_batch_one()
    retry(world)
    world.fail("delays")
    assert state(world) is QueryState.RUNNING
    assert world.core.deployment.lives["delays"].poisoned == 1
    world.fail("delays")
    assert state(world) is QueryState.FAILED
    assert world.core.deployment.lives["delays"].poisoned == 2


def test_retry_does_not_overtake_a_skip_that_is_not_committed() -> None:
    world = failed_at_batch_one()
    world.automatic -= {"disk"}
    world.skip("delays")
    assert isinstance(world.disk.records[-1].body, Skip)
    retry(world)
    assert state(world) is QueryState.FAILED
    world.sync()
    assert state(world) is QueryState.RUNNING


def test_retry_of_a_running_or_unknown_query_changes_nothing() -> None:
    world = World()
    world.start()
    assert world.core.step(world.now, on.RetryAsked("delays")) == []
    assert world.core.step(world.now, on.RetryAsked("no such query")) == []


def test_slow_host_fails_no_query_however_often() -> None:
    world = World(plans=(plan("delays", "flights", "board"),))
    world.start()
    world.automatic -= {"batches"}
    world.offer("flights", 10)
    waits = []
    for _ in range(10):
        world.fail("delays", "Python worker failed to connect back.", by_host=True)
        assert state(world) is QueryState.WAITING
        waits.append(world.core.deployment.lives["delays"].restart_at - world.now)
        world.wait(31)
        assert state(world) is QueryState.RUNNING
    assert waits == sorted(waits)
    longest = world.core.deployment.restarts.backoff_max
    assert (waits[0], waits[-1]) == (1.0, longest)
    world.automatic |= {"batches"}
    world.settle()
    world.truth.require_all_published()


def test_restart_delay_stays_bounded_after_days_of_failures() -> None:
    assert RestartPolicy().backoff(100_000) == RestartPolicy().backoff_max


def test_process_killed_by_the_host_fails_no_query_however_often() -> None:
    world = World(plans=(plan("delays", "flights", "board"),))
    world.start()
    world.automatic -= {"batches"}
    world.offer("flights", 10)
    waits = []
    for _ in range(10):
        world.kill_spark("Spark's JVM was killed by SIGKILL", by_host=True)
        assert state(world) is QueryState.WAITING
        waits.append(world.core.deployment.lives["delays"].restart_at - world.now)
        world.wait(31)
        assert state(world) is QueryState.RUNNING
    assert waits == sorted(waits)
    world.automatic |= {"batches"}
    world.settle()
    world.truth.require_all_published()


def test_process_that_keeps_dying_of_a_batch_fails_the_query() -> None:
    world = World(plans=(plan("delays", "flights", "board"),))
    world.start()
    world.automatic -= {"batches"}
    world.offer("flights", 10)
    for _ in range(world.core.deployment.restarts.deaths_per_batch):
        world.kill_spark("Spark's JVM ran out of memory")
        world.wait(31)
    assert state(world) is QueryState.FAILED


def test_node_wakes_when_a_delayed_query_may_run_again() -> None:
    world = World(plans=(plan("delays", "flights", "board"),))
    world.start()
    world.automatic -= {"batches"}
    world.offer("flights", 10)
    world.fail("delays", "Python worker failed to connect back.", by_host=True)
    restart_at = world.core.deployment.lives["delays"].restart_at
    assert restart_at > world.now
    committed = world.core.journal.committed
    assert world.core.query_control.wake_at(committed) == restart_at
