"""The promises that every history must keep, whatever the fault. Each check is a pure function.

C1  The effect of an acked event is in the sink exactly once, of another event at most once.
C2  Batches are contiguous, and have the rows that the journal gives.
C3  One node publishes under an epoch, its holder; nothing is accepted below the highest epoch; no
    node acks once another one has acquired the lease.
C4  The sink has nothing that was never sent.
C5  Nothing is published below an epoch that the sink's ledger has seen.
C6  A node acquires the lease only if the version of the row before lists its journal as in sync.
C7  No role changes while no node reaches the database.
C8  The journals have the same bytes up to the end of the shorter one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.faults.matrix.history import History, LeaseVersion

Check = Callable[[History], Iterator[str]]

ROLES_WITHOUT_MEANING = ("starting", "stopped")
"""A process has them at its start and its end, which needs no database."""
SHOWN_MAX = 5
ANSWER_SECONDS = 0.5
"""The time from the ack of a node to its receipt by a client: the margin of the lease, in which
the former active does not ack any more. A release without a margin follows the last ack."""


def faults(history: History, at_rest: bool = True) -> list[str]:
    """Return every broken promise, each as a sentence that begins with its number.

    Without ``at_rest`` output may still be missing, so the checks that expect it are left out.
    """
    found = []
    for name, check in CHECKS.items():
        wrong = list(check(history)) if at_rest or name not in AT_REST else []
        more = [f"{len(wrong) - SHOWN_MAX} more"] if len(wrong) > SHOWN_MAX else []
        found += [f"{name}: {sentence}" for sentence in [*wrong[:SHOWN_MAX], *more]]
    return found


def effects(history: History) -> Iterator[str]:
    in_sink = Counter(row.event for row in history.rows)
    for request in history.requests:
        count = in_sink[request.event]
        if count > 1:
            yield f"event {request.event} of {request.producer} is in the sink {count} times"
        if count == 0 and request.acked_at is not None:
            yield f"event {request.event} of {request.producer} was acked and is not in the sink"


def batches(history: History) -> Iterator[str]:
    published = [move.batch for move in history.published()]
    for before, after in pairwise([0, *published]):
        if after != before + 1:
            yield f"batch {before} was followed by batch {after}"
    rows = defaultdict(list)
    for row in history.rows:
        rows[row.batch].append((row.event, row.text))
    for number in sorted({*rows, *published}):
        wanted = history.batches.get(number, ())
        if sorted(rows[number]) != sorted(wanted):
            yield (
                f"batch {number} has {len(rows[number])} rows in the sink that are not the "
                f"{len(wanted)} of the journal"
            )
    if history.batches and (published[-1] if published else 0) != max(history.batches):
        yield f"the journal ends with batch {max(history.batches)}, which was not published"


def epochs(history: History) -> Iterator[str]:
    yield from _publishers(history)
    yield from _late_acks(history)
    highest, acked = (
        0,
        sorted(
            (request.acked_at, request.epoch)
            for request in history.requests
            if request.acked_at is not None and request.epoch is not None
        ),
    )
    later = iter([*acked, (float("inf"), 0)])
    at, epoch = next(later)
    for request in sorted(history.requests, key=lambda request: request.sent_at):
        while at <= request.sent_at:
            highest = max(highest, epoch)
            at, epoch = next(later)
        if request.epoch is not None and request.epoch < highest:
            yield (
                f"event {request.event} of {request.producer} was sent after epoch {highest} "
                f"acked, and accepted under epoch {request.epoch}"
            )


def _publishers(history: History) -> Iterator[str]:
    holders = {lease.epoch: lease.holder[0] for lease in history.leases if lease.holder}
    publishers = defaultdict(set)
    for move in history.moves:
        publishers[move.epoch].add(move.node)
    for epoch, nodes in publishers.items():
        if nodes != {holders.get(epoch)}:
            yield (
                f"{' and '.join(sorted(nodes))} published under epoch {epoch}, "
                f"whose holder is {holders.get(epoch)}"
            )
    for before, after in pairwise(history.leases):
        if before.holder and after.holder not in (None, before.holder):
            if after.epoch <= before.epoch:
                yield f"epoch {after.epoch} followed epoch {before.epoch} with another holder"
        elif after.epoch < before.epoch:
            yield f"epoch {after.epoch} followed epoch {before.epoch}"


def _late_acks(history: History) -> Iterator[str]:
    elections = [
        (after.at, after.epoch, after.holder[0])
        for before, after in pairwise(history.leases)
        if after.holder is not None and after.epoch > before.epoch
    ]
    for request in history.requests:
        if request.node is None or request.acked_at is None:
            continue
        until = request.acked_at - ANSWER_SECONDS
        before = [election for election in elections if election[0] < until]
        # A later election in that half second may be that of the node itself.
        possible = {node for at, _, node in elections if until <= at <= request.acked_at}
        if before and request.node not in {before[-1][2], *possible}:
            yield (
                f"{request.node} acked event {request.event} after {before[-1][2]} had acquired "
                f"epoch {before[-1][1]}"
            )


def nothing_unsent(history: History) -> Iterator[str]:
    sent = {request.event: request.producer for request in history.requests}
    for row in history.rows:
        if sent.get(row.event) != row.text:
            yield f"row {row.event} of {row.text} was never sent"


def fenced(history: History) -> Iterator[str]:
    for before, after in pairwise(history.moves):
        if after.epoch < before.epoch:
            yield f"epoch {after.epoch} published batch {after.batch} after epoch {before.epoch}"


def promotions(history: History) -> Iterator[str]:
    for before, after in pairwise(history.leases):
        if after.epoch > before.epoch and after.holder is not None:
            yield from _promotion(before, after)


def _promotion(before: LeaseVersion, after: LeaseVersion) -> Iterator[str]:
    assert after.holder is not None
    node = after.holder[0]
    for member in after.in_sync:
        if member[0] == node and member not in before.in_sync:
            yield f"{node} acquired epoch {after.epoch}, and version {before.version} lists it not"
    if node not in (member[0] for member in after.in_sync):
        yield f"{node} acquired epoch {after.epoch} and does not list itself"


def roles(history: History) -> Iterator[str]:
    seen = defaultdict(list)
    for one in history.roles:
        seen[one.node, one.started_at].append(one)
    for (node, _), changes in seen.items():
        for before, after in pairwise(changes):
            meaningless = {before.role, after.role} & {*ROLES_WITHOUT_MEANING}
            if before.role == after.role or meaningless:
                continue
            for outage in history.outages:
                if outage.began <= before.at and after.at <= outage.ended:
                    yield f"{node} became {after.role} from {before.role} without the database"


def journals(history: History) -> Iterator[str]:
    for one, other in pairwise(history.frames.values()):
        shorter = min(len(one), len(other))
        if one[:shorter] != other[:shorter]:
            yield f"the journals of {' and '.join(history.frames)} differ"


AT_REST = ("C1", "C2")
CHECKS: dict[str, Check] = {
    "C1": effects,
    "C2": batches,
    "C3": epochs,
    "C4": nothing_unsent,
    "C5": fenced,
    "C6": promotions,
    "C7": roles,
    "C8": journals,
}
