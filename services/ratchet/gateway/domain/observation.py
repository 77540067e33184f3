"""Is what the gateway publishes being stored? A canary that cannot be observed must not be served."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Observation:
    """What was seen of the way to the broker, by our own clock (monotonic seconds)."""

    patience_s: float
    """How long nothing may get through, and how long a loss counts."""
    well_at: float
    """When something was last stored, or nothing waited."""
    lost_at: float | None = None
    published: int = 0
    lost: int = 0

    def look(self, *, published: int, pending: int, lost: int, now_s: float) -> None:
        """Take note of the counts since the start: stored, still waiting, and dropped for want of room."""
        if not pending or published > self.published:
            self.well_at = now_s
        if lost > self.lost:
            self.lost_at = now_s
        self.published, self.lost = published, lost

    def is_blind(self, now_s: float) -> bool:
        """Whether nothing got through for longer than the patience, or something was dropped within it."""
        if now_s - self.well_at > self.patience_s:
            return True
        return self.lost_at is not None and now_s - self.lost_at <= self.patience_s
