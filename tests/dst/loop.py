"""An event loop of one process of the simulation, in virtual time and without threads.

All loops share one agenda, and each turn of a loop is one of its deeds. A turn runs the callbacks
that were ready at its begin, in their order, as asyncio promises. What is random are the delays:
a call in an executor waits for a thread, runs in one moment, and its result arrives later. The
executor's own threads are never started.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from random import Random
from typing import Any, TypeVar

from tests.dst.disk import Hung
from tests.sim.agenda import Agenda

T = TypeVar("T")
Context = contextvars.Context | None
Ended = Callable[[object, BaseException | None], None]
PAUSE_MAX = 0.002
TASKS_KEPT = 32
"""The loop forgets tasks that are done only when it has many."""


class _Pool:
    """The threads of an executor, and the calls that wait for one."""

    def __init__(self, executor: Executor | None) -> None:
        # Keep the executor, so that no other one gets its id.
        self.executor = executor
        self.idle = 8 if executor is None else getattr(executor, "_max_workers", 1)
        self.waiting: deque[tuple[Callable[[], object], Ended]] = deque()


class ProcessLoop(asyncio.AbstractEventLoop):
    """``charged`` returns how long the last call in a thread took, beside the usual delay."""

    def __init__(
        self, agenda: Agenda, random: Random, charged: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._agenda, self._random, self._charged = agenda, random, charged
        self._ready: deque[asyncio.Handle] = deque()
        self._has_turn = False
        self._pools: dict[int, _Pool] = {}
        self.dead = self.paused = False
        # What the threads of a paused process do as soon as it continues.
        self._held: list[Callable[[], None]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._tasks_kept = TASKS_KEPT
        self.failures: list[BaseException] = []

    def kill(self) -> None:
        """Run nothing more."""
        self.dead = True
        self._ready.clear()

    def pause(self) -> None:
        """Stop the event loop and the threads, as SIGSTOP does."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        held, self._held = self._held, []
        for deed in held:
            self._after_a_pause(deed)
        if self._ready:
            self._need_turn()

    def dispose(self) -> None:
        """Close what the dead process was doing, so that nothing warns of it."""
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            try:
                task.get_coro().close()
            except BaseException:
                pass  # a coroutine that awaits in its finally clause
        self.tasks.clear()

    # -- callbacks ---------------------------------------------------------------------------------

    def time(self) -> float:
        return self._agenda.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._need_turn()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def due() -> None:
            if not handle.cancelled():
                self._ready.append(handle)
                self._need_turn()

        self._agenda.at(when, due)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # ``due`` looks

    def _need_turn(self) -> None:
        if not (self._has_turn or self.dead or self.paused):
            self._has_turn = True
            self._agenda.at(self._agenda.now, self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        if self.paused:
            return
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                if self.dead:
                    return
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
        if self._ready:
            self._need_turn()

    def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` as one of the loop's callbacks."""
        asyncio._set_running_loop(self)
        try:
            return call()
        finally:
            asyncio._set_running_loop(None)

    # -- futures, tasks and threads ----------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context = None
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        if len(self.tasks) > 2 * self._tasks_kept:
            self.tasks = [one for one in self.tasks if not one.done()]
            self._tasks_kept = max(TASKS_KEPT, len(self.tasks))
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future = self.create_future()

        def ended(outcome: object, error: BaseException | None) -> None:
            self.call_soon(_settle, future, outcome, error)

        def call() -> object:
            return None if future.cancelled() else func(*args)

        self.run_in_thread(executor, call, ended)
        return future

    def run_in_thread(
        self,
        executor: Executor | None,
        call: Callable[[], object],
        ended: Ended,
    ) -> None:
        """Run ``call`` in one moment, once a thread is free, and report its outcome later."""
        pool = self._pools.setdefault(id(executor), _Pool(executor))
        pool.waiting.append((call, ended))
        self._begin_work(pool)

    def _begin_work(self, pool: _Pool) -> None:
        if pool.waiting and pool.idle:
            pool.idle -= 1
            work = pool.waiting.popleft()
            self._after_a_pause(lambda: self._work(pool, *work))

    def _work(
        self,
        pool: _Pool,
        call: Callable[[], object],
        ended: Ended,
    ) -> None:
        outcome: object = None
        error: BaseException | None = None
        try:
            outcome = call()
        except Hung:
            return
        except BaseException as raised:
            error = raised

        def end() -> None:
            pool.idle += 1
            ended(outcome, error)
            self._begin_work(pool)

        self._after_a_pause(end, self._charged())

    def _after_a_pause(self, deed: Callable[[], None], least: float = 0.0) -> None:
        def due() -> None:
            if self.paused:
                self._held.append(deed)
            elif not self.dead:
                deed()

        self._agenda.after(least + self._random.uniform(0, PAUSE_MAX), due)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:
            self.failures.append(error)


class Thread(Executor):
    """One thread of a process, for code that uses no asyncio to run calls in it."""

    def __init__(self, loop: ProcessLoop) -> None:
        self._loop = loop

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[Any] = Future()

        def ended(outcome: object, error: BaseException | None) -> None:
            _settle(future, outcome, error)

        self._loop.run_in_thread(self, lambda: fn(*args, **kwargs), ended)
        return future


def _settle(
    future: asyncio.Future[Any] | Future[Any], outcome: object, error: BaseException | None
) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)
