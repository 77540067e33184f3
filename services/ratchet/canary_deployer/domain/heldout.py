"""What the held-out command printed: one JSON line per task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec


class _Line(msgspec.Struct, frozen=True):
    """`{"task": str, "success": bool, "score": float, "calls": int, "valid_calls": int}`; the last three may lack."""

    task: str
    success: bool
    score: float | None = None
    calls: int = 0
    valid_calls: int = 0


@dataclass(frozen=True, slots=True)
class Played:
    """One policy's results on the held-out tasks."""

    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """By task, 0..1; the mean of its tries when it was played more than once."""
    tries: int = 0
    successes: int = 0
    malformed: int = 0
    """Lines that were no result."""
    calls: int = 0
    """Tool calls, as far as the command counts them."""
    valid_calls: int = 0

    @property
    def mean_score(self) -> float | None:
        return sum(self.scores.values()) / len(self.scores) if self.scores else None


def read_results(lines: Iterable[str]) -> Played:
    """Every readable line counts; empty lines are skipped, anything else is malformed."""
    totals: dict[str, tuple[float, int]] = {}
    successes = malformed = calls = valid_calls = 0
    for text in lines:
        if not text.strip():
            continue
        line = _read(text)
        if line is None:
            malformed += 1
            continue
        total, tries = totals.get(line.task, (0.0, 0))
        totals[line.task] = (total + (float(line.success) if line.score is None else line.score), tries + 1)
        successes += line.success
        calls += line.calls
        valid_calls += line.valid_calls
    scores = {task: total / tries for task, (total, tries) in totals.items()}
    played = sum(tries for _, tries in totals.values())
    return Played(scores, played, successes, malformed, calls, valid_calls)


def _read(text: str) -> _Line | None:
    try:
        line = msgspec.json.decode(text, type=_Line)
    except (msgspec.DecodeError, RecursionError):
        return None
    in_range = line.score is None or 0 <= line.score <= 1
    return line if in_range and line.task and 0 <= line.valid_calls <= line.calls else None
