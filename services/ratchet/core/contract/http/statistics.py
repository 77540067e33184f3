"""Statistics over HTTP: what trajectories and their calls were like, over time and by what they have in common."""

from __future__ import annotations

from typing import Annotated

from ratchet.core.contract.http.answers import Answer, Instant
from ratchet.core.contract.values import listed

Quantiles = tuple[float, float, float]
"""p50, p95 and p99."""


class MeasuresOut(Answer, frozen=True, kw_only=True):
    """Sums over trajectories that ended and calls that were made in one span of time. A message that came twice, a
    trajectory that was reported again and a reward that was revised count once, as they are now."""

    trajectories: int
    outcomes: int
    """Trajectories with an outcome."""
    successes: int
    success_share: float | None
    """Of those with an outcome; null: there is none."""
    rewarded: int
    """Trajectories with a reward for which something was known."""
    mean_reward: float | None
    reward_interval: tuple[float, float] | None
    """The 95 % interval of the mean, as if trajectories were independent; null for fewer than two."""
    calls: int
    errors: int
    """Calls that failed."""
    cancelled: int
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt's."""
    completion_tokens: int
    reasoning_tokens: int
    """Of the completion's."""
    cost_usd: float
    unpriced: int
    """Calls whose cost is not known."""
    latency_ms: Quantiles | None
    """p50, p95 and p99 of answered calls; null: none was answered."""
    first_token_ms: Quantiles | None
    """The same of streams, to their first token."""


class PointOut(MeasuresOut, frozen=True, kw_only=True):
    """A group in one bucket of time."""

    at: Instant
    """The bucket's beginning; the first and the last one may reach beyond the window, and count what is in it."""


class GroupOut(MeasuresOut, frozen=True, kw_only=True):
    """What trajectories and calls have in common, and what they were like."""

    names: list[str | None]
    """A name for each of `by`; null where it is not known. Empty: all of them."""
    points: list[PointOut]
    """Oldest first; a bucket in which nothing happened is left out."""


class StatisticsOut(Answer, frozen=True, kw_only=True):
    """Statistics of one window of time."""

    since: Instant
    until: Instant
    """Itself excluded."""
    every: Annotated[str, listed("hour", "day", "week")]
    """The width of a bucket, in UTC; weeks begin on Mondays."""
    by: list[str]
    evaluation: bool
    """False: runs and calls that asked for a version by name are left out."""
    total: GroupOut
    groups: list[GroupOut]
    """At most 50, those with the most trajectories first, then those with the most calls."""
    other: GroupOut | None
    """The sum of further groups; null: there are none."""
    others: int
    """How many these are."""
