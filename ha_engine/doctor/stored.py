"""Check the files of the journal and the outbox. The checks only read, also while a node writes."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from rich.filesize import decimal
from tenacity import retry, retry_if_exception, stop_after_attempt

from ha_engine.config import Config
from ha_engine.doctor.check import Say
from ha_engine.doctor.finding import Finding, failed, ok
from ha_engine.errors import DiskFailed
from ha_engine.journal import inspection as journals
from ha_engine.journal.opening import read_identity
from ha_engine.journal.segment import segment_paths
from ha_engine.node.high_water import kept_high_water
from ha_engine.outbox import inspection as outboxes
from ha_engine.snapshot import base_file

_NICE = 10


def journal(config: Config, say: Say) -> Finding:
    """Verify every checksum of the journal, and that its base ends where its records begin.

    Raises EngineError.
    """
    directory = config.node.data_dir / "journal"
    if journals.find_directory(directory) is None:
        return ok(f"{directory} has no journal yet")
    read_identity(directory, config.group)
    _yield_to_the_node()
    report = _survey(directory, say)
    if report.damage is not None:
        raise report.damage
    found = base_file.load(directory / base_file.NAME)
    ends = found.base.position.sequence if found else 0
    if report.segments and report.segments[0].first > ends + 1:
        return failed(
            f"{directory} begins with record {report.segments[0].first}, but its base ends with "
            f"record {ends}",
            f"stop the node, run 'ha-engine reinit {config.node.id}', and start the node",
        )
    torn = "; its last record is torn, which the next start repairs" if report.torn else ""
    return ok(f"{report.records} records, {decimal(report.size_bytes)}, every checksum fits{torn}")


def outbox(config: Config, say: Say) -> Finding:
    """Verify the checksum and the digest of every batch in the outbox. Raises OSError."""
    directory = config.node.data_dir / "outbox"
    if not directory.is_dir():
        return ok(f"{directory} does not exist yet")
    _yield_to_the_node()
    report = outboxes.survey(directory, lambda count: say(f"{count} batches"))
    if report.damage:
        return failed(
            "; ".join(report.damage),
            f"stop the node, run 'ha-engine reinit {config.node.id}', and start the node",
        )
    return ok(f"{report.batches} batches, {decimal(report.bytes)}, every checksum fits")


def high_water(home: Path) -> Finding:
    """Read the file with the highest epoch of the lease (RULES.md#r5). Raises DiskFailed."""
    found = kept_high_water(home)
    return ok(f"the highest epoch that this node has read is {found.epoch}")


def _is_trimmed(error: BaseException) -> bool:
    """Whether a running node deleted an old segment during the check."""
    return isinstance(error, DiskFailed) and isinstance(error.__cause__, FileNotFoundError)


@retry(retry=retry_if_exception(_is_trimmed), stop=stop_after_attempt(3), reraise=True)
def _survey(directory: Path, say: Say) -> journals.Report:
    total, numbers = len(segment_paths(directory)), itertools.count(1)
    return journals.survey(
        directory, on_segment=lambda _: say(f"{next(numbers)} of {total} segments")
    )


def _yield_to_the_node() -> None:
    """Let a running node use the CPU first. On Linux this concerns the calling thread only."""
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
