"""The trail of a rollout's e-values: bounded, evenly spread, without repetitions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import msgspec

from ratchet.canary_deployer.domain.rollout_statistics import LEAST_MS, MOMENTS, Trail

BEGAN = datetime(2026, 11, 20, 8, tzinfo=UTC)


def values(failure: float) -> dict[str, dict[str, float]]:
    return {"rollback": {"failure": failure, "combined": failure}, "tests": {"safety": 1.0}}


def trail_of(samples: int, every: timedelta) -> Trail:
    trail = Trail()
    for place in range(samples):
        trail = trail.sampled(BEGAN + place * every, values(float(place)))
    return trail


def test_a_trail_of_weeks_is_bounded_and_spans_them_evenly() -> None:
    minute = timedelta(minutes=1)
    trail = trail_of(5_000, minute)
    samples = list(trail.samples())
    assert MOMENTS // 2 <= len(samples) <= MOMENTS
    assert samples[0] == (BEGAN, values(0.0))
    assert samples[-1] == (BEGAN + 4_999 * minute, values(4_999.0))
    *gaps, newest = [later - earlier for (earlier, _), (later, _) in pairwise(samples)]
    assert newest <= max(gaps) <= 4 * min(gaps)
    assert len(msgspec.json.encode(trail)) < 20_000


def test_after_a_long_pause_each_new_value_is_seen_at_once() -> None:
    trail, began = trail_of(600, timedelta(seconds=2)), BEGAN + timedelta(days=30)
    for place in range(600):
        now = began + place * timedelta(seconds=2)
        trail = trail.sampled(now, values(float(-place)))
        assert list(trail.samples())[-1] == (now, values(float(-place)))
    moments = [at for at, _ in trail.samples()]
    after = [at for at in moments if at >= began]
    assert len(moments) == MOMENTS
    assert MOMENTS // 3 <= len(after) <= 2 * MOMENTS // 3
    assert max(later - earlier for earlier, later in pairwise(after)) <= timedelta(minutes=1)


def test_what_has_not_changed_and_what_comes_at_once_is_no_new_moment() -> None:
    trail = trail_of(1, timedelta())
    assert trail.sampled(BEGAN + timedelta(hours=1), values(0.0)) is trail
    assert trail.sampled(BEGAN + timedelta(milliseconds=LEAST_MS - 1), values(2.0)) is trail
    assert len(trail.sampled(BEGAN + timedelta(milliseconds=LEAST_MS), values(2.0)).at) == 2


def test_other_metrics_begin_a_new_trail() -> None:
    trail = trail_of(5, timedelta(minutes=1)).sampled(BEGAN + timedelta(hours=1), {"tests": {"safety": 2.0}})
    assert list(trail.samples()) == [(BEGAN + timedelta(hours=1), {"tests": {"safety": 2.0}})]
