"""How far a role was looked at, what that has spent, and the steps that a run leaves in the trail. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from ratchet.analyst.domain.patterns import DISMISSED, OPEN, Outcome, Seen
from ratchet.analyst.domain.windows import FEW, Windows
from ratchet.bus.message import Value
from ratchet.core.contract import LearningEvent
from ratchet.core.contract.http.analyst import AnalysisOut
from ratchet.core.contract.learning import LONGEST_STATEMENT, Pattern

HORIZON = timedelta(days=90)
"""After it the level is spent anew."""
RATE = 0.05
"""Expected share of false discoveries among those of a horizon."""
ASKED_FOR, ASKED_SHARE = 100, 0.1
"""Runs that people may ask for within a horizon, and the part of its level that they have together: the rest is for
those by the clock, and neither takes of the other's."""


class Mined(Value, frozen=True, kw_only=True):
    """What a run saw."""

    trajectories: tuple[int, int]
    """Of both windows."""
    subjects: tuple[int, int]
    """Different users, sessions or, of those that name neither, trajectories."""
    rated: tuple[int, int]
    """Those of them with feedback."""
    rewarded: tuple[int, int]
    tested: int
    """Hypotheses."""
    patterns: tuple[Pattern, ...]
    """What it bears out, as if each opened now."""
    seen: dict[str, Seen]
    """Known patterns in the later window, by id."""


class Pending(Value, frozen=True, kw_only=True):
    """What a run decided, until all of it is written: another process goes on with it."""

    patterns: tuple[Pattern, ...] = ()
    events: tuple[LearningEvent, ...] = ()


class Looked(Value, frozen=True, kw_only=True):
    """Key `analyst.looked.<role>` in bucket `patterns`."""

    began_at: datetime
    """The horizon."""
    spent: float = 0.0
    """By the clock, of the horizon's level, 0..1."""
    clock: datetime | None = None
    """End of the last windows by the clock."""
    asked: int = 0
    """Runs that people asked for."""
    discoveries: int = 0
    """Patterns that opened because windows bore them out."""
    windows: Windows | None = None
    """Of the last run."""
    last: AnalysisOut | None = None
    pending: Pending | None = None


def at(looked: Looked | None, now: datetime) -> Looked:
    """As it stands: in a new horizon where the last one has ended. A clock that went back begins none, and windows
    whose end is still to come, of a clock that was ahead, were not looked at: what they spent is spent."""
    if looked is None:
        return Looked(began_at=now)
    looked = replace(looked, began_at=min(looked.began_at, now))
    if looked.windows is not None and looked.windows.until > now:
        began_at, spent, asked = looked.began_at, looked.spent, looked.asked
        looked = Looked(began_at=began_at, spent=spent, asked=asked, discoveries=looked.discoveries)
    if now < looked.began_at + HORIZON:
        return looked
    return replace(looked, began_at=now, spent=0.0, asked=0, discoveries=0)


def part_of(looked: Looked, windows: Windows, *, asked: bool) -> float:
    """The part of a horizon's level that a run of these windows may spend. By the clock what is left is spent evenly
    over the time that is left, whichever lengths the windows have: it is never used up."""
    if asked:
        return ASKED_SHARE / ASKED_FOR
    new = windows.length if looked.clock is None else min(windows.length, windows.until - looked.clock)
    left = looked.began_at + HORIZON - windows.until
    if new <= timedelta() or left < timedelta():
        return 0.0
    return new / (new + left) * (1 - ASKED_SHARE - looked.spent)


def refusal(looked: Looked, *, asked: bool) -> str | None:
    """Why a run that is asked for can bear nothing out any more in this horizon."""
    if not asked or looked.asked < ASKED_FOR:
        return None
    anew = looked.began_at + HORIZON
    return f"all {ASKED_FOR} runs that may be asked for are spent: more may be from {anew:%Y-%m-%d %H:%M} UTC"


def after(looked: Looked, windows: Windows, answer: AnalysisOut, pending: Pending, *, asked: bool) -> Looked:
    return replace(
        looked,
        spent=looked.spent + (0.0 if asked else part_of(looked, windows, asked=False)),
        clock=looked.clock if asked else windows.until,
        asked=looked.asked + asked,
        discoveries=looked.discoveries
        + sum(pattern.alert_id is None and pattern.pattern_id in answer.opened for pattern in pending.patterns),
        windows=windows,
        last=answer,
        pending=pending,
    )


def seed_of(role: str, windows: Windows) -> int:
    """The same for everyone who looks at the same."""
    named = f"{role} {windows.since.isoformat()} {windows.until.isoformat()}"
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:4])


def answer_of(role: str, windows: Windows, mined: Mined, outcome: Outcome, known: Sequence[Pattern]) -> AnalysisOut:
    notes = list[str]()
    if min(mined.subjects) < FEW:
        notes.append(
            f"the trajectories are of {mined.subjects[0]} and {mined.subjects[1]} users or sessions only, which count:"
            f" fewer than {FEW} in a window bear out next to nothing"
        )
    if outcome.left_out:
        notes.append(f"{outcome.left_out} more patterns did not open: as many are open as people can read")
    return AnalysisOut(
        role=role,
        since=windows.since,
        middle=windows.middle,
        until=windows.until,
        trajectories=[*mined.trajectories],
        tested=mined.tested,
        opened=[pattern.pattern_id for pattern in outcome.opened],
        known=[name for name in open_ids(known) if name not in {pattern.pattern_id for pattern in outcome.closed}],
        closed=[pattern.pattern_id for pattern in outcome.closed],
        note="; ".join(notes) or None,
    )


def untested_answer(role: str, windows: Windows, counts: tuple[int, int], note: str) -> AnalysisOut:
    return AnalysisOut(
        role=role,
        since=windows.since,
        middle=windows.middle,
        until=windows.until,
        trajectories=[*counts],
        tested=0,
        opened=[],
        closed=[],
        note=note,
    )


def open_ids(patterns: Iterable[Pattern]) -> list[str]:
    return [pattern.pattern_id for pattern in patterns if pattern.state == OPEN]


def steps(role: str, windows: Windows, mined: Mined, outcome: Outcome, now: datetime) -> Iterator[LearningEvent]:
    """What the trail says of a run, in the order of the phases."""
    span = f"{windows.since:%Y-%m-%d %H:%M} to {windows.until:%Y-%m-%d %H:%M} UTC"
    run = f"{windows.since.isoformat()}/{windows.until.isoformat()}"
    total = sum(mined.trajectories)

    def step(phase: str, what: str, summary: str, **facts: object) -> LearningEvent:
        return LearningEvent(at=now, phase=phase, what=what, summary=summary, key=run, role=role, facts=facts)

    read = f"{total} trajectories of two windows, {span}."
    yield step("monitoring", "windows_read", read, trajectories=[*mined.trajectories])
    counted = f"{sum(mined.rewarded)} of {total} trajectories have a reward, {sum(mined.rated)} feedback of people."
    known = {"rewarded": [*mined.rewarded], "rated": [*mined.rated]}
    yield step("feedback_collection", "feedback_counted", counted, **known)
    opened, closed = len(outcome.opened), len(outcome.closed)
    tested = f"{mined.tested} claims tested: {opened} patterns opened, {closed} closed."
    yield step("analysis", "run", tested, tested=mined.tested, opened=opened, closed=closed)
    yield from changes(role, windows, outcome, now)


def changes(role: str, windows: Windows, outcome: Outcome, now: datetime) -> Iterator[LearningEvent]:
    """The steps of patterns that opened and closed. An alert opens one once, whichever windows are the newest."""
    run = f"{windows.since.isoformat()}/{windows.until.isoformat()}"
    for what, patterns in (("pattern_opened", outcome.opened), ("pattern_closed", outcome.closed)):
        for pattern in patterns:
            yield LearningEvent(
                at=now,
                phase="pattern_identification",
                what=what,
                summary=_summary(what, pattern),
                key=f"{pattern.pattern_id}/{pattern.alert_id or run}",
                role=role,
                pattern_id=pattern.pattern_id,
                facts={"kind": pattern.kind, "share": pattern.share, "confidence": pattern.confidence},
            )


def dismissal(pattern: Pattern) -> LearningEvent:
    """The step of a pattern that a person dismissed."""
    at = pattern.closed_at or pattern.seen_at
    return _decision("pattern_dismissed", pattern, at, pattern.closed_by, f"Dismissed: {pattern.reason}")


def reopening(pattern: Pattern, at: datetime, by: str, reason: str | None) -> LearningEvent:
    """The step of a pattern whose dismissal a person undid."""
    return _decision("pattern_reopened", pattern, at, by, f"Open again: {reason or pattern.statement}")


def _decision(what: str, pattern: Pattern, at: datetime, by: str | None, summary: str) -> LearningEvent:
    return LearningEvent(
        at=at,
        phase="pattern_identification",
        what=what,
        summary=summary[:LONGEST_STATEMENT],
        key=f"{pattern.pattern_id}/{at.isoformat()}",
        role=pattern.role,
        pattern_id=pattern.pattern_id,
        facts={"by": by},
    )


def dismissed_since(looked: Looked, patterns: Sequence[Pattern]) -> Iterator[LearningEvent]:
    """Steps of patterns that were dismissed since the last run: a kill may have kept them from the trail."""
    for pattern in patterns:
        is_new = looked.windows is None or pattern.closed_at is None or pattern.closed_at > looked.windows.until
        if pattern.state == DISMISSED and is_new:
            yield dismissal(pattern)


def _summary(what: str, pattern: Pattern) -> str:
    if what == "pattern_opened":
        return pattern.statement
    return f"Over with {pattern.closed_by or 'no policy in place'}: {pattern.statement}"[:LONGEST_STATEMENT]
