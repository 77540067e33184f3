"""Statistics, as the console answers them, in tests and in the documentation's pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from ratchet.core.contract.http.statistics import GroupOut, MeasuresOut, PointOut, StatisticsOut

EACH = 4
"""Trajectories of a bucket."""


def measures(trajectories: int, mean: float | None) -> MeasuresOut:
    """Half of the trajectories succeed, all have a reward where there is a mean; each has three calls."""
    calls = 3 * trajectories
    return MeasuresOut(
        trajectories=trajectories,
        outcomes=trajectories,
        successes=trajectories // 2,
        success_share=trajectories // 2 / trajectories if trajectories else None,
        rewarded=0 if mean is None else trajectories,
        mean_reward=mean,
        reward_interval=None if mean is None or trajectories < 2 else (mean - 0.04, mean + 0.04),
        calls=calls,
        errors=calls // 40,
        cancelled=0,
        prompt_tokens=410 * calls,
        cached_tokens=120 * calls,
        completion_tokens=85 * calls,
        reasoning_tokens=0,
        cost_usd=0.0021 * calls,
        unpriced=0,
        latency_ms=(640.0, 1900.0, 4100.0) if calls else None,
        first_token_ms=None,
    )


def group(name: str | None, begin: datetime, means: Sequence[float | None], each: int = EACH) -> GroupOut:
    """A group with a bucket of a day for each mean reward."""
    known = [mean for mean in means if mean is not None]
    whole = measures(each * len(means), sum(known) / len(known) if known else None)
    points = [
        PointOut(at=begin + timedelta(days=day), **_members(measures(each, mean))) for day, mean in enumerate(means)
    ]
    return GroupOut(names=[name], points=points, **_members(whole))


def statistics_out(begin: datetime, groups: Sequence[GroupOut], others: int = 0) -> StatisticsOut:
    """Statistics by agent, from the first bucket to the end of the last one; `others`: groups that are left out."""
    smallest = msgspec.structs.replace(groups[-1], names=[])
    days = max(len(one.points) for one in groups)
    shown = [*groups, *([smallest] if others else [])]
    by_day = [[one.points[day] for one in shown if day < len(one.points)] for day in range(days)]
    points = [PointOut(at=points[0].at, **_members(_sum(points))) for points in by_day]
    return StatisticsOut(
        since=begin,
        until=begin + timedelta(days=days),
        every="day",
        by=["agent"],
        evaluation=False,
        total=GroupOut(names=[], points=points, **_members(_sum(shown))),
        groups=list(groups),
        other=smallest if others else None,
        others=others,
    )


def _sum(parts: Sequence[MeasuresOut]) -> MeasuresOut:
    rewarded = sum(part.rewarded for part in parts)
    rewards = sum((part.mean_reward or 0) * part.rewarded for part in parts)
    return measures(sum(part.trajectories for part in parts), rewards / rewarded if rewarded else None)


def statistics_scene(now: datetime) -> dict[str, Any]:
    """By `METHOD path`: the answers."""
    begin = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=6)
    names = ("support-agent", "triage-agent", "returns-agent", None)
    groups = [
        group(name, begin, [0.55 + 0.06 * n + 0.02 * day + 0.03 * math.sin(day + n) for day in range(7)], 40 - 9 * n)
        for n, name in enumerate(names)
    ]
    return {"GET /v1/statistics": statistics_out(begin, groups, others=3)}


def _members(of: MeasuresOut) -> dict[str, Any]:
    return {name: getattr(of, name) for name in MeasuresOut.__struct_fields__}
