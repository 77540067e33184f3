"""Which numbers of a role's rewards are watched for a change of level: a fold over RL_REWARDS, with its alerts.

| metric | of every trajectory | an alert means |
|---|---|---|
| `reward` | its total | quality fell, or traffic changed |
| `length`, `calls` | characters that the policy wrote, model calls | it found that more (or less) pays |
| `<component>` | its score less the reward that the others give | it is gamed, or no longer measures the same |

A component without weight is independent of the reward, so its metric asks whether the reward still means what that
component measures: a judge, a reward model, or a metric of a team's own against the reward.

Each metric of a trajectory counts once, when it is first known: late feedback and late scores come with a revision,
which names what no revision before it had (`Reward.first_scored`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from ratchet.bus.message import named_id
from ratchet.bus.received import Received
from ratchet.core.contract import Alert, Message, Reward, Value
from ratchet.core.contract.reward import RewardComponent
from ratchet.reward_computer.domain.normalization import function_of
from ratchet.reward_computer.domain.shifts import Reading, Shift, Tracker, follow

REWARD, LENGTH, CALLS = "reward", "length", "calls"
NOUNS = {REWARD: "the reward", LENGTH: "the length of answers", CALLS: "the number of model calls"}
SETTLED = 1000
"""So many trajectories without a further change make a new level the usual one: its alert is cleared."""
EVIDENCE = 20
"""Trajectories that an alert names: the newest of those since the change."""
DOUBLINGS = 21
"""Lengths and counts are compared by their logarithm to the base 2, which is at most this."""
SOURCE = "reward_computer"


class Watch(Value, frozen=True, kw_only=True):
    """One metric."""

    trackers: list[Tracker] = msgspec.field(default_factory=list[Tracker])
    alert: Alert | None = None
    """The newest one; it holds unless it is `cleared`."""
    newest: list[str] = msgspec.field(default_factory=list[str])
    """The last trajectories that were read for it, the oldest first."""


Drift = dict[str, Watch]
"""By metric, under one role and reward function."""


def watch_reward(drift: Drift | None, received: Received[Message]) -> Drift:
    """The watches with one more reward. Pure, and decided by the order of the stream alone."""
    watches, reward = dict(drift or {}), received.message
    if not isinstance(reward, Reward):
        return watches
    for metric, reading in readings(reward).items():
        watch = watches.get(metric) or Watch()
        trackers, shift = follow(watch.trackers, reading)
        alert, newest = watch.alert, [*watch.newest, reward.trajectory_id][-EVIDENCE:]
        if shift is not None:
            alert = _raised(metric, shift, newest[-shift.values :], reward, received)
        elif alert is not None and not alert.cleared and trackers[0].values == SETTLED:
            alert = replace(
                alert,
                alert_id=named_id("drift", alert.alert_id, "cleared"),
                severity="info",
                summary=f"{alert.summary}; no further change in the {SETTLED} since, which are the usual level now",
                at=received.time,
                cleared=True,
            )
        watches[metric] = Watch(trackers=trackers, alert=alert, newest=newest)
    return watches


def readings(reward: Reward) -> Mapping[str, Reading]:
    """What a revision is the first to tell of its trajectory, by metric."""
    parts = {name: part for name, part in reward.reward_components.items() if part.applicable and 0 <= part.score <= 1}
    first = set(parts) if reward.revision == 0 else set(reward.first_scored or ())
    weighted = {name for name, part in parts.items() if part.weight}
    read: dict[str, Reading] = {}
    if weighted and weighted <= first and 0 <= reward.total_reward <= 1:
        read[REWARD] = Reading(reward.total_reward, reward.total_reward)
    if reward.effort is not None and reward.revision == 0:
        read[LENGTH] = _size(reward.effort.characters)
        read[CALLS] = _size(reward.effort.model_calls)
    return read | dict(_compared(parts, first))


def _compared(parts: Mapping[str, RewardComponent], first: set[str]) -> Iterator[tuple[str, Reading]]:
    """Each component's score less the weighted mean of the others, where that is known for the first time."""
    for name, part in parts.items():
        others = [(other, their) for other, their in parts.items() if other != name and their.weight]
        if not others or not (name in first or all(other in first for other, _ in others)):
            continue
        mass = math.fsum(their.weight for _, their in others)
        gap = part.score - math.fsum(their.score * their.weight for _, their in others) / mass
        yield name, Reading(gap, (gap + 1) / 2)


def _size(count: int) -> Reading:
    bounded = min(count, 2**DOUBLINGS)
    return Reading(float(bounded), math.log2(1 + bounded) / DOUBLINGS)


def _raised(metric: str, shift: Shift, evidence: list[str], reward: Reward, received: Received[Message]) -> Alert:
    weight = reward.reward_components[metric].weight if metric in reward.reward_components else None
    good = shift.rises and (metric == REWARD or weight == 0)
    return Alert(
        alert_id=named_id("drift", function_of(received), metric, received.stream, received.identity),
        key=f"drift-{function_of(received)}-{metric}",
        severity="info" if good else "warning",
        summary=stated(NOUNS.get(metric, f"`{metric}` less the rest of the reward"), shift),
        source=SOURCE,
        at=received.time,
        role=reward.role,
        labels={
            "metric": metric,
            "rises": shift.rises,
            "before": shift.before,
            "after": shift.after,
            "trajectories": shift.values,
            "evidence": evidence,
        },
    )


def stated(what: str, shift: Shift) -> str:
    """Ranks are what changed: a few extreme values may move the mean the other way."""
    means, over = f"from {shift.before:.3g} to {shift.after:.3g}", f"over the last {shift.values} trajectories"
    if (shift.after > shift.before) == shift.rises:
        return f"{what} {'rose' if shift.rises else 'fell'} {means} {over}"
    return f"{what} is {'higher' if shift.rises else 'lower'} than before in most, though its mean went {means}, {over}"
