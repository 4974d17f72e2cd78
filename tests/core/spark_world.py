"""The part of the world behind the marks: query process, admission to the outbox, sinks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.types import SHADOW_SIGN, Mark
from tests.core.surroundings import (
    Checkpoint,
    Content,
    Disk,
    QuerySink,
    RunningQuery,
    Spark,
    Surroundings,
)
from tests.core.truth import Truth, require


def live_of(query: str) -> str:
    """The query, or the live query of a shadow."""
    return query.partition(SHADOW_SIGN)[0]


def _made_by(action: do.RunQuery) -> str:
    return f"{action.digest} after {action.initial.number}"


class SparkWorld:
    """The base of World, which defines the names that are only declared here."""

    core: Any
    now: float
    alive: bool
    disk: Disk
    truth: Truth
    plans: dict[str, Any]
    automatic: set[str]
    wanted: dict[str, int]
    publishing: int | None
    claimed: set[QuerySink]
    fenced: set[QuerySink]
    read_max: tuple[int, int]
    # Whether the digest of a batch follows its admission by itself.
    digests = False

    def feed(self, event: on.Input) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        raise NotImplementedError

    def __init__(self, around: Surroundings) -> None:
        self.spark: Spark | None = None
        self.ledgers, self.batches = around.ledgers, around.batches
        self.partitions = around.partitions
        self.given_up = around.given_up
        self.rows: dict[str, int] = {}

    # -- the query process -------------------------------------------------------------------------

    def _perform_for_spark(self, action: do.Action) -> None:
        match action:
            case do.StartQueryProcess(incarnation):
                require(self.spark is None, "R20", "a second query process was started")
                self.spark = Spark(incarnation)
            case do.StopQueryProcess(incarnation):
                if self.spark is not None and self.spark.incarnation == incarnation:
                    self.spark = None
                    self.feed(on.QueryProcessGone(incarnation, "asked to stop"))
            case do.RunQuery():
                self._run(action)
            case do.HaltQuery(query):
                require(self.spark is not None, "R20", f"{query} runs nowhere")
                assert self.spark is not None
                self.spark.running.pop(query, None)
                self.feed(on.QueryHalted(query))
            case do.AnswerMark(mark, lineage):
                self._answered(mark, lineage)
            case _:
                pass

    def _process_settles(self) -> bool:
        if "process" not in self.automatic or self.spark is None or self.spark.attended:
            return False
        self.attend()
        return True

    def attend(self) -> None:
        """Let the query process, new or older than the node process, ask what to run."""
        assert self.spark is not None
        self.spark.attended = True
        self.feed(on.QueryProcessAttended(self.spark.incarnation))
        for query in list(self.spark.running) if self.spark is not None else ():
            self.poll(query)

    def kill_spark(self, reason: str = "killed by SIGKILL", *, by_host: bool = False) -> None:
        if self.spark is not None:
            incarnation, self.spark = self.spark.incarnation, None
            self.feed(on.QueryProcessGone(incarnation, reason, by_host))
            self.settle()

    # -- queries -----------------------------------------------------------------------------------

    def running(self, query: str) -> RunningQuery | None:
        return self.spark.running.get(query) if self.spark is not None else None

    def _run(self, action: do.RunQuery) -> None:
        query, lineage, made_by = action.query, action.lineage, _made_by(action)
        require(self.spark is not None and self.spark.attended, "R20", f"{query} runs nowhere")
        assert self.spark is not None
        running = self.spark.running.get(query)
        same = (lineage, action.partitions)
        if running is not None and (running.lineage, running.partitions) == same:
            require(action.takeover is None, "R33", f"{query} runs already")
            return
        if action.adopts is not None:
            self._adopt(action, *action.adopts)
        checkpoint = self.disk.checkpoints.get(query)
        if checkpoint is not None and checkpoint.lineage in action.earlier:
            checkpoint.lineage, checkpoint.made_by = lineage, made_by
        if action.takeover is not None:
            if not self._take_over(action, action.takeover):
                reason = "no snapshot can be read"
                self.feed(on.QueryFailed(query, 0, reason, lineage, by_host=True))
                return
            checkpoint = self.disk.checkpoints.get(query)
        if checkpoint is None or checkpoint.lineage != lineage:
            if action.must_resume and not self._find_state(action):
                reason = "no snapshot has the state"
                self.feed(on.QueryFailed(query, 0, reason, lineage, by_host=True))
                return
            if not action.must_resume:
                empty = Checkpoint(lineage, action.initial, made_by=made_by)
                self.disk.checkpoints[query] = empty
            checkpoint = self.disk.checkpoints[query]
        came_of = checkpoint.made_by = checkpoint.made_by or made_by
        require(came_of == made_by, "R38", f"{query}: the state is of {came_of}, not {made_by}")
        if action.takeover is not None:
            checkpoint.begun, checkpoint.epoch = None, action.takeover.epoch
        sources = len(self.plan_of(query).streams)
        self.spark.running[query] = RunningQuery(lineage, checkpoint, sources, action.partitions)
        self.poll(query)

    def plan_of(self, query: str) -> Any:
        """The plan of a query, or of the live query of a shadow."""
        return self.plans[live_of(query)]

    def _adopt(self, action: do.RunQuery, shadow: str, earlier: str) -> None:
        """Continue the checkpoint of a shadow, which stops (RULES.md#r38)."""
        assert self.spark is not None
        self.spark.running.pop(shadow, None)
        made = self.disk.checkpoints.get(shadow)
        if made is not None and made.lineage == earlier:
            made.lineage, made.done = action.lineage, replace(made.done, query=action.query)
            made.begun = None if made.begun is None else replace(made.begun, query=action.query)
            self.disk.checkpoints[action.query] = self.disk.checkpoints.pop(shadow)

    def _find_state(self, action: do.RunQuery) -> bool:
        """Bring a state that the journal cannot give any more. Return False if there is none."""
        require(False, "R23", f"the state of {action.query} is nowhere")
        return False

    def _take_over(self, action: do.RunQuery, takeover: do.Takeover) -> bool:
        """Bring the newest state of a query that only the active runs, if this node lacks it.
        Return False if the state cannot be read now."""
        return True

    def poll(self, query: str) -> None:
        """The query's next source asks for the mark after the last batch done."""
        running = self.running(query)
        if running is None or not running.polls or not self.alive:
            return
        if query == live_of(query) or self._is_wanted(query, running):
            self.wanted[query] = running.checkpoint.done.number
            self.feed(on.MarkWanted(query, running.checkpoint.done.number, running.lineage))

    def _answered(self, mark: Mark, lineage: str) -> None:
        running = self.running(mark.query)
        if running is None or not running.polls:
            return
        require(running.lineage == lineage, "R23", f"{mark} is for {running.lineage}")
        alone = not self.plan_of(mark.query).warm or self.core.holds_epoch
        require(alone, "R33", f"a passive node runs {mark}")
        if mark.number != running.checkpoint.done.number + 1:
            return  # the poll came before a restart; its caller has ended
        running.answers.append(mark)
        if len(running.answers) < running.sources:
            self.poll(mark.query)
            return
        require(len(set(running.answers)) == 1, "R18", f"sources at marks {running.answers}")
        running.checkpoint.begun, running.answers = mark, []

    # -- batches -----------------------------------------------------------------------------------

    def _batch_settles(self) -> bool:
        if "batches" not in self.automatic or self.spark is None:
            return False
        for query, running in self.spark.running.items():
            if running.checkpoint.begun is not None:
                self.finish(query)
                return True
        return False

    def finish(self, query: str, *, dies: bool = False) -> None:
        """Spark ends the batch in flight; ``dies``: after admission, before its own commit."""
        running = self.running(query)
        if running is None or running.polls or not self.alive:
            return
        checkpoint, begun = running.checkpoint, running.checkpoint.begun
        assert begun is not None
        if not self._is_wanted(query, running):
            return
        content = self._content(query, checkpoint.done, begun)
        self._judge_partitions(query, begun.number, running.partitions)
        self._admit(query, begun.number, content, running.lineage)
        if dies:
            self.kill_spark("died between output and commit")
            return
        record = self.core.deployment.marks[live_of(query)].record_of(begun.number)
        checkpoint.end_batch(self.core.journal.position_at(record))
        self.poll(query)

    def _is_wanted(self, query: str, running: RunningQuery) -> bool:
        """Whether the node admits batches of this run; if not, the run ends (RULES.md#r38)."""
        deployment, journal_id = self.core.deployment, self.disk.journal_id
        if deployment.may_admit(query, running.lineage, journal_id):
            return True
        assert self.spark is not None
        del self.spark.running[query]
        self.feed(on.QueryFailed(query, 0, "this run is over", running.lineage, by_host=True))
        return False

    def _content(self, query: str, done: Mark, begun: Mark) -> Content:
        base = self.disk.base.position.sequence
        require(done.through >= base, "R28", f"{query} reads behind {done}, trimmed through {base}")
        events = self.disk.content(self.plan_of(query).streams, done.through, begun.through)
        skipped = (live_of(query), begun.number) in self.core.deployment.skips.known
        durable = self.disk.has_durable_skip(live_of(query), begun.number)
        require(skipped == durable, "I5", f"skip of {query} {begun.number}: {durable} on the disk")
        if not skipped:
            return events
        self.given_up.setdefault(query, set()).update(events)
        return ()

    def _admit(self, query: str, number: int, content: Content, lineage: str) -> bool:
        """Return False for a batch that this node's outbox has or had."""
        self._judge_batch(query, number, content)
        outbox, admitted = self.disk.outbox.setdefault(query, {}), self.disk.admitted.get(query, 0)
        rows = self.rows.get(query, len(content))
        if number <= admitted:
            self.feed(on.BatchAdmitted(query, number, rows, 100 * rows, lineage))
            return False
        require(number == admitted + 1, "R19", f"{query} batch {number} after {admitted}")
        outbox[number], self.disk.admitted[query] = content, number
        self.disk.outbox_rows[(query, number)] = rows
        running = self.running(query)
        self.disk.made_by[(query, number)] = running.checkpoint.made_by if running else ""
        self.feed(on.BatchAdmitted(query, number, rows, 100 * rows, lineage))
        if self.digests:
            self.feed(on.BatchDigested(query, number, str(content)))
        return True

    def _judge_batch(self, query: str, number: int, content: Content) -> None:
        known = self.batches.setdefault(query, {}).setdefault(number, content)
        require(known == content, "I6", f"{query} batch {number} came out differently")

    def _judge_partitions(
        self, query: str, number: int, changes: tuple[tuple[int, int], ...]
    ) -> None:
        mine = [count for after, count in changes if after < number]
        known = self.partitions.setdefault(query, {}).setdefault(number, mine[-1] if mine else 0)
        require(not mine or known == mine[-1], "R35", f"{query} batch {number} has {mine}")

    def fail(
        self, query: str, reason: str = "CAST_INVALID_INPUT", *, by_host: bool = False
    ) -> None:
        """End the query with an error; the process continues."""
        running = self.running(query)
        if running is None or self.spark is None:
            return
        del self.spark.running[query]
        begun = running.checkpoint.begun
        number = begun.number if begun else 0
        self.feed(on.QueryFailed(query, number, reason, running.lineage, by_host))
        self.settle()

    # -- sinks -------------------------------------------------------------------------------------

    def _sink_settles(self) -> bool:
        if "sinks" not in self.automatic:
            return False
        return any(self.publish(q, sink) for q in self.plans for sink in self.plans[q].sinks)

    def publish(self, query: str, sink: str) -> bool:
        """The publisher's next call to one sink: a claim, else the next batch. False: nothing."""
        key, ledger = (query, sink), self.ledgers[(query, sink)]
        if not self.alive or self.publishing is None or self._is_fenced(key):
            return False
        if not self.core.authority_seconds(self.now) > 0:
            return False
        if key not in self.claimed:
            self._claim(key)
            return True
        number = ledger.batch + 1
        if number not in self.disk.outbox.get(query, {}):
            require(number > len(self.batches.get(query, {})), "R25", f"{key} {number} is trimmed")
            return False
        self.truth.require_lease("I2", "published without the lease")
        ledger.batch = number
        self.feed(on.SinkPublished(query, sink, number))
        return True

    def _is_fenced(self, key: QuerySink) -> bool:
        """RULES.md#r24: a ledger above the publisher's epoch ends the delivery; the core is
        notified."""
        ledger = self.ledgers[key]
        if self.publishing is None or ledger.epoch <= self.publishing:
            return False
        if key not in self.fenced:
            self.fenced.add(key)
            self.read_max = max(self.read_max, (ledger.epoch, 0))
            self.feed(on.HigherEpochSeen(ledger.epoch, "a sink's ledger"))
        return True

    def _claim(self, key: tuple[str, str]) -> None:
        ledger = self.ledgers[key]
        self.claimed.add(key)
        if ledger.is_new:
            ledger.batch = self.core.deployment.marks[key[0]].start_after(key[1])
        ledger.epoch = self.publishing or 0
        self.feed(on.SinkPublished(*key, ledger.batch))

    def rescale(self, query: str, partitions: int) -> None:
        self.feed(on.RescaleAsked(query, partitions))
        self.settle()

    def skip(self, query: str) -> None:
        self.feed(on.SkipAsked(query, "operator"))
        self.settle()
