"""Scenarios as text: lines that start with ``>`` are inputs, indented lines are what the core did.

A scenario is a file in ``scenarios``; ``retell`` plays its inputs and records the actions. A ``#``
begins a comment with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ha_engine.core
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.types import (
    Application,
    Body,
    Deployed,
    EpochStart,
    Events,
    Holder,
    LeaseRow,
    Mark,
    Member,
    Position,
    Published,
    Skip,
)
from tests.core.world import World, plan

Verb = Callable[..., None]


def retell(text: str, engine: Any = ha_engine.core) -> str:
    """Return the scenario ``text`` with the core's actions of today after each input."""
    story, lines = Story(engine), []
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        if line.startswith(">"):
            lines += story.play_line(line)
    return "\n".join(lines) + "\n"


class Story:
    """A world that takes its inputs as words and prints its actions as sentences."""

    def __init__(self, engine: Any = ha_engine.core) -> None:
        self.world = World(engine, plans=(plan("delays", "flights", "board"),))
        self.world.heard = self._hear
        self._told: list[tuple[float, str]] = []
        self._verbs: dict[str, Verb] = {
            **{name: getattr(self.world, name) for name in _WORLD_VERBS},
            **{name: getattr(self, f"_{name}") for name in _STORY_VERBS},
        }

    def play_line(self, line: str) -> list[str]:
        """Return the core's actions after ``> verb word ...  # why``."""
        words = line[1:].split("#")[0].split()
        self._told = []
        self._verbs[words[0]](*map(_number_or_word, words[1:]))
        return _collapsed(self._told)

    def _hear(self, action: do.Action) -> None:
        sentence = tell(action)
        if sentence:
            self._told.append((self.world.now, sentence))

    def _say(self, sentence: str) -> None:
        self._told.append((self.world.now, sentence))

    # -- verbs -------------------------------------------------------------------------------------

    def _queries(self, *words: str) -> None:
        """name=streams=sinks=digest=on_change, with + between several; the last two may miss.

        Only the active runs a query after whose name ``:warm`` stands.
        """
        plans = []
        for word in words:
            name, streams, sinks, *rest = (part.replace("+", " ") for part in word.split("="))
            name, _, standby = name.partition(":")
            plans.append(plan(name, streams, sinks, *rest, warm=standby == "warm"))
        self.world.plans = {one.name: one for one in plans}

    def _backup(self) -> None:
        """Make this node the group's backup, from its next start on."""
        world = self.world
        world.backup = world.node
        world.plans = {name: replace(one, warm=True) for name, one in world.plans.items()}

    def _active(self) -> None:
        """Start a node of a fresh group and make it active, without printing that."""
        self.world.start()
        self._told = []

    def _start_without_a_tick(self) -> None:
        self.world.start(ticks=False)

    def _offer(self, rows: int, stream: str) -> None:
        self.world.offer(stream, rows)

    def _outbox_limit(self, batches: int) -> None:
        self.world.limits = replace(self.world.limits, outbox_batches_max=batches)

    def _by_hand(self, *parts: str) -> None:
        self.world.automatic -= set(parts)

    def _by_itself(self, *parts: str) -> None:
        self.world.automatic |= set(parts)
        self.world.settle()

    def _kill(self, *words: str) -> None:
        kept = len(self.world.disk.records) if "keep" in words else 0
        self.world.crash(tail_kept=kept, query_process_dies="query" not in words)

    def _stranger(self, *words: str) -> None:
        """Connect a query process of an earlier process of this node."""
        event = on.QueryProcessAttended("p0.1") if words == ("attends",) else _GONE
        self.world.feed(event)
        self.world.settle()

    def _database(self, state: str) -> None:
        self.world.table.up = state == "up"

    def _next_reply(self, *words: str) -> None:
        self.world.next_reply = " ".join(words)

    def _lands(self) -> None:
        self.world.land()
        self.world.settle()

    def _supervisor_releases(self) -> None:
        self.world.rewrite_row(holder=None, successor=None)

    def _peer(self, *words: Any) -> None:
        members = (self.world.member, Member("b", "j2"))
        row = self.world.table.row
        assert row is not None
        match words:
            case ("joins",):
                self.world.ghost.link()
                self.world.wait(0.75)
            case ("is", "at", "batch", int(number)):
                self.world.ghost.is_at("delays", number)
            case ("has", "no", "room"):
                self.world.ghost.headroom = False
            case ("has", "room"):
                self.world.ghost.headroom = True
            case ("falls", "silent"):
                self.world.ghost.linked = False
            case ("is", "off"):
                self.world.ghost.unlink()
            case ("takes", "over"):
                holder = Holder("b", "q1")
                self.world.rewrite_row(holder=holder, epoch=row.epoch + 1, in_sync=members[1:],
                                       advertise="http://b:8080")  # fmt: skip
            case ("renews",):
                self.world.rewrite_row(holder=Holder("b", "q1"), in_sync=members)
            case ("beats",):
                self.world.feed(on.PeerMessage("b", say.Heartbeat(row.epoch, 0)))
                self.world.settle()
            case ("commits", "through", int(sequence)):
                self.world.feed(on.PeerMessage("b", say.Heartbeat(row.epoch, sequence)))
                self.world.settle()
            case ("leads", "from", int(sequence), "of", "epoch", int(epoch), *forced):
                journal_id, last = self.world.disk.journal_id, self.world.core.journal.last
                match = Position(epoch, sequence)
                follow = say.Follow(row.epoch, journal_id, match, last, forced == ["forced"])
                self.world.feed(on.PeerMessage("b", follow))
                self.world.settle()
            case ("asks", "for", "a", "promise"):
                self.world.feed(on.PeerMessage("b", say.Heartbeat(row.epoch, 0, 1)))
            case ("digests", str(query), int(number), str(digest)):
                self.world.feed(
                    on.PeerMessage("b", say.BatchDigest(row.epoch, query, number, digest))
                )
            case ("leaves",):
                self.world.rewrite_row(holder=None, in_sync=members[:1])
            case _:
                raise ValueError(f"a peer does not {' '.join(words)}")

    def _row(self, *words: Any) -> None:
        world, row = self.world, self.world.table.row
        match words:
            case ("lost",):
                world.set_row(None)
            case ("paused",):
                world.rewrite_row(paused=True)
            case ("resumed",):
                world.rewrite_row(paused=False)
            case ("lists", str(journal_id)):
                world.rewrite_row(in_sync=(Member("a", journal_id),))
            case ("as", "of", "version", int(version)):
                world.set_row(next(r for r in world.table.history if r.version == version))
            case ("foreign",):
                world.set_row(LeaseRow("group-2", None, 1, 1, (world.member,)))
            case ("successor", str(node)):
                world.rewrite_row(holder=None, successor=node)
            case ("names", "journal", str(journal_id)):
                assert row is not None
                world.set_row(replace(row, in_sync=(Member("a", journal_id),)))
            case _:
                raise ValueError(f"no such row: {words}")

    def _rows(self, query: str, rows: int) -> None:
        self.world.rows[query] = rows

    def _kill_query_process(self, times: int = 1) -> None:
        for _ in range(times):
            self.world.kill_spark()

    def _finish(self, query: str, *words: str) -> None:
        self.world.finish(query, dies=words == ("and", "die"))
        self.world.settle()

    def _publish(self, query: str, sink: str) -> None:
        self.world.publish(query, sink)
        self.world.settle()

    def _ledger(self, query: str, sink: str, what: str, number: int) -> None:
        setattr(self.world.ledgers[(query, sink)], what, number)

    def _force(self, *confirmed_fenced: str) -> None:
        """Force a failover as an operator, who checks first as the command does."""
        core = self.world.core
        refusal = core.why_no_forced_failover(confirmed_fenced)
        if refusal is not None:
            self._say(f"refuses: {refusal}")
            return
        self._say(f"warns: {core.forced_failover.may_lose()}")
        self.world.feed(on.FailoverForced("alice", confirmed_fenced))
        self.world.wait(0.25)

    def _hears_of_epoch(self, epoch: int) -> None:
        self.world.feed(on.HigherEpochSeen(epoch, "a peer"))
        self.world.settle()

    def _digests(self, query: str, number: int, digest: str) -> None:
        self.world.feed(on.BatchDigested(query, number, digest))

    def _warmth(self) -> None:
        self._say("is warm" if self.world.core.warm else "is not warm")

    def _sync(self, records: int | None = None) -> None:
        self.world.sync(records)
        self.world.settle()

    def _reply(self, *words: str) -> None:
        self.world.reply(" ".join(words) or "arrives")
        self.world.settle()

    def _status(self) -> None:
        core = self.world.core
        suspended = ", suspended" if core.suspended() else ""
        backlog = core.deployment.backlog_events()
        waits = f"; {backlog} events wait for a batch" if backlog else ""
        self._say(f"{core.role.value}{suspended}: {core.reason}{waits}")
        for name, life in core.deployment.lives.items():
            marks, failure = core.deployment.marks[name], life.failure
            batch = f"batch {failure.number}, " if failure and failure.number else ""
            reason = f" ({batch}{failure.reason})" if failure else ""
            self._say(
                f"{name}: {life.state.value}{reason}, mark {marks.last.number}, "
                f"batch {marks.admitted}, published {marks.published_through}"
            )


_GONE = on.QueryProcessGone("p0.1", "killed")
_WORLD_VERBS = ("start", "wait", "stop", "jump", "attend", "poll", "fail", "skip", "rescale")
_STORY_VERBS = (
    "queries",
    "active",
    "backup",
    "start_without_a_tick",
    "offer",
    "outbox_limit",
    "by_hand",
    "by_itself",
    "kill",
    "stranger",
    "database",
    "next_reply",
    "lands",
    "supervisor_releases",
    "peer",
    "row",
    "rows",
    "kill_query_process",
    "finish",
    "publish",
    "ledger",
    "force",
    "hears_of_epoch",
    "digests",
    "warmth",
    "sync",
    "reply",
    "status",
)


# -- sentences -------------------------------------------------------------------------------------


def tell(action: do.Action) -> str:
    """Return one sentence; empty for an action that the sentence before it includes."""
    match action:
        case do.ReadLease():
            return "reads the lease"
        case do.CreateLease(row):
            return f"makes the first row: {_row(row)}"
        case do.WriteLease(_, _, "renew"):
            return "renews the lease"
        case do.WriteLease(_, wanted, reason):
            return f"writes the lease ({reason}): {_row(wanted)}"
        case do.KeepHighWater() | do.Send() | do.StreamRecords() | do.FindRevisions():
            return ""
        case do.BindGroup(group_id):
            return f"binds the journal to {group_id}"
        case do.AppendRecords(records):
            return "appends " + ", ".join(
                f"{record.position} {_body(record.body)}" for record in records
            )
        case do.Commit(sequence):
            return f"commits through {sequence}"
        case do.ChangeRole(role, _, reason):
            return f"becomes {role.value.upper()}: {reason}"
        case _:
            return _tell_effect(action)


def _tell_effect(action: do.Action) -> str:
    match action:
        case do.OpenReceivers():
            return "opens receivers"
        case do.CloseReceivers(_, active):
            return f"closes receivers, active is {active or 'unknown'}"
        case do.StartPublishing(epoch):
            return f"publishes under epoch {epoch}"
        case do.NoteOutage(epoch, seconds):
            return f"notes an outage of {seconds:.2f} s before epoch {epoch}"
        case do.StopPublishing():
            return "stops publishing"
        case do.StopStreams():
            return ""
        case do.TruncateJournal(after, reason, set_aside):
            aside = ", setting aside these records" if set_aside else ""
            return f"truncates its journal after {after}{aside}: {reason}"
        case do.ReportDifference(query, number):
            return f"reports that batch {number} of {query} differs from the holder's"
        case do.ReportDiskWentBack(peer, acked, shared_end):
            return f"reports that {peer} acked {acked}, but has the records up to {shared_end}"
        case do.AnswerMark(mark, _):
            return f"answers {mark.query} with mark {mark.number} through {mark.through}"
        case do.TrimOutbox(query, through):
            return f"trims {query}'s outbox through {through}"
        case do.StartQueryProcess(incarnation):
            return f"starts query process {incarnation}"
        case do.StopQueryProcess(incarnation, reason):
            return f"stops query process {incarnation}: {reason}"
        case do.RunQuery(query, lineage, initial, must_resume, _, earlier, takeover, partitions):
            state = " or ".join((lineage, *earlier)) + (", which must be there" * must_resume)
            after = ""
            if takeover is not None:
                shared = ", ".join(f"{batch} of epoch {epoch}" for epoch, batch in takeover.shared)
                after = f"; published {takeover.published}, may continue {shared or 'nothing'}"
            begin = f"runs {query} from mark {initial.number} through {initial.through}"
            scaled = "".join(f"; {number} partitions after batch {n}" for n, number in partitions)
            return f"{begin}, {state}{after}{scaled}"
        case do.HaltQuery(query):
            return f"halts {query}"
        case do.ChangeApplication(deployed):
            return f"restarts with {'its file' if deployed is None else deployed.id}"
        case do.Exit(reason):
            return f"exits: {reason}"
        case _:
            raise TypeError(f"no sentence for {action!r}")


def _row(row: LeaseRow) -> str:
    holder = f"{row.holder.node}.{row.holder.process}" if row.holder else "nobody"
    in_sync = " ".join(f"{member.node}/{member.journal_id}" for member in row.in_sync)
    return f"epoch {row.epoch} held by {holder}, in sync {in_sync}"


def _body(body: Body) -> str:
    match body:
        case Events(stream, rows):
            return f"{rows} {stream}"
        case Mark(query, number, through):
            return f"mark {number} of {query} through {through}"
        case Published(query, sink, batch):
            return f"published {query} batch {batch} to {sink}"
        case EpochStart(node, process, forced):
            return f"{'forced ' if forced else ''}epoch start of {node}.{process}"
        case Deployed(number, archive):
            return f"deployment {number} of {archive}"
        case Skip(query, number, by):
            return f"skip of {query} batch {number} by {by}"
        case Application(_, queries):
            versions = (
                f"{v.query} {v.digest} from mark {v.first.number} through {v.first.through}"
                + (" reset" if v.reset else "")
                + (f" in {v.partitions} partitions" if v.partitions else "")
                for v in queries
            )
            return f"application: {'; '.join(versions)}"


def _number_or_word(word: str) -> int | float | str:
    return int(word) if word.isdigit() else float(word) if word[0].isdigit() else word


def _collapsed(told: list[tuple[float, str]]) -> list[str]:
    """Return lines with their time; merge runs of the same sentence."""
    runs: list[list[Any]] = []
    for at, sentence in told:
        if runs and runs[-1][2] == sentence:
            runs[-1][1], runs[-1][3] = at, runs[-1][3] + 1
        else:
            runs.append([at, at, sentence, 1])
    return [
        f"  {first:6.2f} {sentence}" + (f", {count} times until {last:g}" if count > 1 else "")
        for first, last, sentence, count in runs
    ]
