"""Alerts on the rewards of a role as patterns: of hacking, and of levels that changed. Pure.

The reward computer follows each reward in its order, and pays for every look by its own bound. So no window tests again
what it tells of, and it is no discovery of mining; where mining makes the same claim, the pattern is the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import structlog
from msgspec.structs import replace

from ratchet.analyst.domain.patterns import CLOSED, OPEN, pattern_id_of
from ratchet.analyst.domain.windows import Windows
from ratchet.analyst.mining.base import Hypothesis
from ratchet.analyst.mining.behavior import COMPONENT_DIVERGED, COMPONENT_FELL
from ratchet.analyst.mining.texts import sentence_of
from ratchet.analyst.mining.wording import advised
from ratchet.bus.message import Value, decode
from ratchet.core.contract import Alert
from ratchet.core.contract.learning import Effect, Pattern, Trigger

log = structlog.get_logger()

_CLAIMS: Mapping[tuple[str, bool], tuple[str, str, str]] = {
    ("reward", False): ("drift", "reward_fell", "reward"),
    ("length", True): ("behavior", "longer_answers", "answer_chars"),
    ("length", False): ("behavior", "shorter_answers", "answer_chars"),
    ("calls", True): ("drift", "calls_rose", "calls"),
    ("calls", False): ("drift", "calls_fell", "calls"),
}
"""Metric, and whether it rises -> kind, finding and measure; any other metric is a component."""


class Shift(Value, frozen=True, kw_only=True):
    """Labels of an alert on a level."""

    metric: str
    rises: bool
    before: float
    after: float
    trajectories: int
    """Since it changed."""
    evidence: tuple[str, ...] = ()


def alerted(
    alerts: Iterable[Alert], known: Sequence[Pattern], claims: Sequence[Pattern], windows: Windows
) -> list[Pattern]:
    """What warnings that still stand tell beside what the windows bear out (`claims`): those raised since the windows
    began, and older ones that came after their pattern was seen last."""
    before, warned = {pattern.pattern_id: pattern for pattern in known}, dict[str, Pattern]()
    for alert in alerts:
        if alert.cleared or alert.severity == "info" or alert.role is None:
            continue
        try:
            pattern = _pattern(alert, alert.role, windows)
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            log.error("an alert cannot be read as a pattern", alert=alert.alert_id, reason=str(error))
            continue
        last = before.get(pattern.pattern_id)
        if last is not None and alert.at < windows.since and alert.at <= last.seen_at:
            continue
        if last is not None and last.state == OPEN and last.alert_id is None:  # windows bore it out: that says more
            pattern = replace(last, seen_at=windows.until, trend=(last.share,))
        if last is None or last.state != CLOSED or last.alert_id != alert.alert_id:
            warned[pattern.pattern_id] = pattern
    claimed = {claim.pattern_id for claim in claims}
    return [pattern for name, pattern in warned.items() if name not in claimed]


def _pattern(alert: Alert, role: str, windows: Windows) -> Pattern:
    shift = msgspec.convert(alert.labels, Shift)
    kind, finding, measure = _CLAIMS.get(
        (shift.metric, shift.rises), ("behavior", COMPONENT_DIVERGED if shift.rises else COMPONENT_FELL, "reward")
    )
    is_component = finding in (COMPONENT_DIVERGED, COMPONENT_FELL)
    triggers = (Trigger(attribute="component", value=shift.metric),) if is_component else ()
    area, action, advice = advised(Hypothesis(kind, finding, measure, triggers, between_windows=True))
    at = max(windows.until, alert.at)  # the last windows may have ended long before it
    moved = shift.after - shift.before
    moved = max(0.0, moved) if shift.rises else min(0.0, moved)  # the mean may have gone the other way
    pattern = Pattern(
        pattern_id=pattern_id_of(role, kind, finding, measure, triggers),
        role=role,
        kind=kind,
        finding=finding,
        statement=sentence_of(f"By an alert, which no windows tested: {alert.summary}"),
        focus_area=area,
        triggers=triggers,
        effect=Effect(measure=measure, value=moved, low=moved, high=moved),
        share=1.0,
        count=shift.trajectories,
        reward_cost=-moved * shift.trajectories if finding == "reward_fell" else 0.0,
        alert_id=alert.alert_id,
        trend=(1.0,),
        evidence=shift.evidence[::-1],
        action=action,
        advice=advice,
        opened_at=at,
        seen_at=at,
    )
    return decode(msgspec.json.encode(pattern), Pattern)  # what is decided must be readable
