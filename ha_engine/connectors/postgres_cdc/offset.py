"""The source's offset: what the journal has, as JSON text."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, replace
from typing import Any

from ha_engine.connectors.postgres_cdc.initial import Initial, Key, Page, Snapshot
from ha_engine.errors import SourceRefused


def lsn_text(lsn: int) -> str:
    """Write a position of the WAL as PostgreSQL does, such as ``0/16B3748``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """Read what ``lsn_text`` wrote. Raises ValueError."""
    high, _, low = text.partition("/")
    lsn = (int(high, 16) << 32) | int(low, 16)
    if not (0 <= int(high, 16) < 1 << 32 and 0 <= int(low, 16) < 1 << 32):
        raise ValueError(f"{text!r} is no position of the WAL")
    return lsn


@dataclass(frozen=True, slots=True)
class Inside:
    """A place inside a transaction: the journal has its steps up to number ``done``.

    ``commit_lsn`` and ``xid`` identify the transaction. ``changes.Step`` says what a number is.
    """

    commit_lsn: int
    xid: int
    done: int


@dataclass(frozen=True, slots=True)
class Published:
    """The oids of the publication, of the table, and of the table's row in pg_publication_rel, or 0
    if the publication has all tables or a schema. Another one may get the same name later."""

    publication: int
    table: int
    membership: int


@dataclass(frozen=True, slots=True)
class Offset:
    """The journal has each transaction whose commit record begins before ``lsn``, and no other
    except the part that ``inside`` names.

    ``system`` and ``timeline`` identify the WAL to which ``lsn`` belongs. ``initial`` is the state
    of the initial read, or None after its end.
    """

    system: str
    timeline: int
    lsn: int
    published: Published
    inside: Inside | None = None
    initial: Initial | None = None

    @property
    def taken(self) -> int:
        """The end of the WAL of which the journal has at least a part of each transaction."""
        return max(self.lsn, self.inside.commit_lsn + 1 if self.inside else 0)

    @property
    def reach(self) -> int:
        """The end of the WAL on which this offset depends."""
        page = self.initial.page.through if self.initial and self.initial.page else 0
        return max(self.taken, page)

    def with_commit(self, lsn: int) -> Offset:
        """The offset after everything before ``lsn``, which may end the catch-up with a page."""
        initial = self.initial.caught_up(lsn) if self.initial else None
        return replace(self, lsn=max(lsn, self.lsn), inside=None, initial=initial)

    @property
    def text(self) -> str:
        document: dict[str, Any] = {
            "system": self.system,
            "timeline": self.timeline,
            "lsn": lsn_text(self.lsn),
            "published": astuple(self.published),
        }
        if self.inside:
            document["inside"] = {
                "commit": lsn_text(self.inside.commit_lsn),
                "xid": self.inside.xid,
                "done": self.inside.done,
            }
        if self.initial:
            document["initial"] = _document_of(self.initial)
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> Offset:
        """Read what ``text`` wrote. Raises SourceRefused if ``text`` has another form."""
        try:
            document = json.loads(text)
            inside = document.get("inside")
            initial = document.get("initial")
            return cls(
                document["system"],
                document["timeline"],
                lsn_of(document["lsn"]),
                Published(*document["published"]),
                inside and Inside(lsn_of(inside["commit"]), inside["xid"], inside["done"]),
                initial and _initial_of(initial),
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise SourceRefused(
                f"the offset {text[:200]!r} was not written by a source of type postgres_cdc; give "
                "the source another name, so that it begins from the start"
            ) from error


def _document_of(initial: Initial) -> dict[str, Any]:
    document: dict[str, Any] = {"to": initial.to, "whole": initial.is_whole}
    if initial.order is not None:
        document["order"] = initial.order
    if initial.hidden:
        document["hidden"] = sorted(initial.hidden)
    if initial.page:
        snapshot = initial.page.snapshot
        document["page"] = {
            "after": initial.page.after,
            "xmin": snapshot.xmin,
            "xmax": snapshot.xmax,
            "running": sorted(snapshot.running),
            "through": lsn_text(initial.page.through),
        }
    return document


def _initial_of(document: dict[str, Any]) -> Initial:
    page = document.get("page")
    return Initial(
        _key(document["to"]),
        document["whole"],
        page
        and Page(
            _key(page["after"]),
            Snapshot(page["xmin"], page["xmax"], frozenset(page["running"])),
            lsn_of(page["through"]),
        ),
        frozenset(document.get("hidden", ())),
        document.get("order"),
    )


def _key(texts: list[str] | None) -> Key | None:
    return None if texts is None else tuple(texts)
