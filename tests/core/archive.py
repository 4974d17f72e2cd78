"""The snapshots of the world; a core learns nothing of them but their positions."""

from __future__ import annotations

from dataclasses import dataclass, field

from ha_engine.types import Position, SnapshotPlace

KEPT = 2


@dataclass
class Archive:
    """``drafts`` are drafts by number; ``visible`` the kept revisions, oldest first.

    While the store does not answer, no core learns which revisions are kept.
    """

    drafts: dict[int, SnapshotPlace] = field(default_factory=dict)
    visible: list[SnapshotPlace] = field(default_factory=list)
    shown_under: list[int] = field(default_factory=list)
    answers: bool = True

    def take(self, place: SnapshotPlace) -> int:
        self.drafts[len(self.drafts) + 1] = place
        return len(self.drafts)

    def show(self, draft: int, epoch: int) -> tuple[tuple[Position, Position], ...]:
        self.visible = [*self.visible, self.drafts[draft]][-KEPT:]
        self.shown_under.append(epoch)
        return self.places()

    def places(self) -> tuple[tuple[Position, Position], ...]:
        return tuple((place.position, place.last_mark) for place in self.visible)
