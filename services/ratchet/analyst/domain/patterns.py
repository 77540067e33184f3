"""Patterns over runs: which are the same, which open, which are over. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ratchet.analyst.domain.windows import Windows
from ratchet.bus.message import Value, named_id
from ratchet.core.contract.learning import Effect, Pattern, Trigger
from ratchet.core.contract.values import Count, Share

OPEN, CLOSED, DISMISSED = "open", "closed", "dismissed"
MOST_OPEN = 100
"""Of a role: what people shall act on they must be able to read. The dearest open first."""
MOST_TREND = 60
FALLS = frozenset({"reward_fell", "component_fell", "shorter_answers", "calls_fell"})
"""Findings of alerts that a level fell: of one whose mean went the other way, the effect does not tell."""
ALIKE = 0.5
"""Share of words that two clusters have in common, from which they are one."""


class Seen(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A pattern in a window."""

    share: Share
    count: Count
    effect: Effect | None = None
    """None where the window cannot tell."""


@dataclass(slots=True)
class Outcome:
    """What a run makes of the patterns of its role."""

    changed: list[Pattern] = field(default_factory=list[Pattern])
    opened: list[Pattern] = field(default_factory=list[Pattern])
    """Of those that changed."""
    closed: list[Pattern] = field(default_factory=list[Pattern])
    """The same."""
    left_out: int = 0
    """That did not open, because as many are open as people can read."""


def pattern_id_of(role: str, kind: str, finding: str, measure: str, triggers: Sequence[Trigger]) -> str:
    """The id of what is claimed: the same claim has it in every run, whichever detector was first to make it."""
    words = sorted(f"{trigger.attribute}={trigger.value}" for trigger in triggers)
    if not words or finding in FALLS:  # a component's fall is another claim than its rise
        words.append(finding)
    about = "failure" if measure == "reward" else measure  # the one is the other's other side
    return named_id("pattern", role, "drift" if kind == "drift" else "", about, *words).replace("-", "")


def settled(
    known: Iterable[Pattern], claims: Sequence[Pattern], seen: Mapping[str, Seen], windows: Windows, stable: str | None
) -> Outcome:
    """What becomes of the patterns of a role. `claims`: what this run bears out, as if each opened now; `seen`: what
    was measured of known ones, by id."""
    outcome = Outcome()
    left = {pattern.pattern_id: pattern for pattern in known}
    dearest = {each.pattern_id: each for each in sorted(claims, key=lambda each: (each.reward_cost, each.cost_usd))}
    others = [pattern for pattern in left.values() if pattern.pattern_id not in dearest]
    again = {name: left.get(name) or _alike(pattern, others) for name, pattern in dearest.items()}
    room = MOST_OPEN - sum(pattern.state == OPEN for pattern in left.values())
    for name, pattern in reversed(dearest.items()):
        before = again[name]
        if before is not None and left.pop(before.pattern_id, None) is None:
            continue  # two clusters of this run are the same known one
        if before is not None and before.state == DISMISSED:
            continue
        if before is not None and before.state == OPEN:
            outcome.changed.append(_seen_again(before, pattern))
        elif room > 0:
            room -= 1
            reopened = replace(pattern, pattern_id=before.pattern_id if before else name, opened_under=stable)
            outcome.opened.append(reopened)
            outcome.changed.append(reopened)
        else:
            outcome.left_out += 1
    for pattern in left.values():
        if pattern.state == OPEN:
            _measured(outcome, pattern, seen.get(pattern.pattern_id), windows, stable)
    return outcome


def _alike(pattern: Pattern, known: Iterable[Pattern]) -> Pattern | None:
    """The known cluster of nearly the same words."""
    if pattern.kind != "failure_cluster":
        return None
    clusters = [each for each in known if each.kind == pattern.kind]
    best = max(clusters, key=lambda each: _overlap(each, pattern), default=None)
    return best if best is not None and _overlap(best, pattern) >= ALIKE else None


def _overlap(one: Pattern, other: Pattern) -> float:
    """Jaccard's index of the triggers and terms."""
    first, second = ({*(trigger.value for trigger in each.triggers), *each.terms} for each in (one, other))
    return len(first & second) / max(1, len(first | second))


def _seen_again(before: Pattern, now: Pattern) -> Pattern:
    trend = before.trend if before.seen_at >= now.seen_at else (*before.trend, *now.trend)[-MOST_TREND:]
    return replace(
        now,
        pattern_id=before.pattern_id,
        opened_at=before.opened_at,
        opened_under=before.opened_under,
        seen_at=max(before.seen_at, now.seen_at),
        trend=trend,
    )


def _measured(outcome: Outcome, pattern: Pattern, seen: Seen | None, windows: Windows, stable: str | None) -> None:
    """An open pattern that this run does not bear out anew: it is there still, over, or the window cannot tell. Only a
    policy that became stable since it opened has closed it."""
    if seen is None:
        return
    now = replace(pattern, share=seen.share, count=seen.count, trend=(*pattern.trend, seen.share)[-MOST_TREND:])
    if seen.effect is not None and _is_there(pattern, seen.effect):
        outcome.changed.append(replace(now, seen_at=windows.until))
    elif _is_gone(pattern, seen) and pattern.seen_at < windows.middle:
        closed_by = stable if stable != pattern.opened_under else None
        over = replace(now, state=CLOSED, closed_at=windows.until, closed_by=closed_by)
        outcome.changed.append(over)
        outcome.closed.append(over)
    else:
        outcome.changed.append(now)


def _is_there(pattern: Pattern, effect: Effect) -> bool:
    """Whether the interval of its effect still lies on its side of zero; of what is rare, reaches where it lay."""
    if pattern.effect.measure == "share":
        return effect.low <= pattern.effect.high
    rises = pattern.effect.value > 0 or (not pattern.effect.value and pattern.finding not in FALLS)
    return effect.low > 0 if rises else effect.high < 0


def _is_gone(pattern: Pattern, seen: Seen) -> bool:
    """Whether nothing matches any more, or the interval excludes half of the effect that was borne out last. Of inputs
    no effect is measured, and an alert whose mean went the other way has none: that no run bears it out any more is
    what there is to know."""
    if not seen.count or pattern.effect.measure == "inputs":
        return True
    if seen.effect is None:
        return False
    if pattern.effect.measure == "share":
        return seen.effect.low > pattern.effect.high
    if not pattern.effect.value:
        return True
    half = pattern.effect.value / 2
    return seen.effect.high < half if half > 0 else seen.effect.low > half
