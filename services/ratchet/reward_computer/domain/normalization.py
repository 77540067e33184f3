"""Scores on the scale of their own recent past, for training; the raw score always stands beside them.

The past is a fold over RL_REWARDS: the trailing scores of every component under one role and reward function. A first
reward adds all its applicable components; a later revision adds what people say, which is what changes, and what no
revision before it had, such as a judge's score.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from ratchet.bus.message import named_id
from ratchet.bus.received import Received
from ratchet.core.contract import JsonObject, Message, Reward, Value
from ratchet.core.contract.reward import Normalization, RewardFunction

V = TypeVar("V")

CAPACITY = 1000
"""Scores kept per component."""
MIN_WINDOW = 10
"""With less past than this a score is average by definition."""
TOTAL = "total"
"""Name under which the totals' window is kept; components may not be called that."""
REVISED = "user_feedback"


@dataclass(frozen=True, slots=True)
class Stats:
    """Moments and bounds of a window; `std` is the population's. All 0 while the window is empty."""

    count: int = 0
    mean: float = 0.0
    std: float = 0.0
    minimum: float = 0.0
    maximum: float = 0.0


NOTHING_YET = Stats()


def stats_of(values: Sequence[float]) -> Stats:
    """Summarise a window."""
    if not values:
        return NOTHING_YET
    distinct = set(values)  # counts of calls are few numbers, and a window is summarised for each trajectory
    least, greatest = min(distinct), max(distinct)
    if least == greatest:  # rounding must not give equal values a deviation, nor a mean outside their range
        return Stats(len(values), least, 0.0, least, greatest)
    mean = min(greatest, max(least, math.fsum(values) / len(values)))
    std = math.dist(values, [mean] * len(values)) / math.sqrt(len(values))
    return Stats(len(values), mean, std, least, greatest)


class ScoreWindows(Value, frozen=True, kw_only=True, dict=True):
    """Trailing raw scores by component, and of the totals."""

    scores: Mapping[str, Sequence[float]]

    @cached_property
    def _known(self) -> dict[tuple[str, int], Stats]:
        return {}

    def stats(self, component: str, window: int) -> Stats:
        """What the last `window` scores of a component look like: computed once, for all trajectories of a batch."""
        key = component, window
        if key not in self._known:
            self._known[key] = stats_of(self.scores.get(component, ())[-window:])
        return self._known[key]


NO_PAST = ScoreWindows(scores={})


def function_of(received: Received[Message]) -> str | None:
    """The key of a reward's windows."""
    message = received.message
    if not isinstance(message, Reward) or message.reward_function is None:
        return None
    return windows_key(message.role, message.reward_function)


def windows_key(role: str, function: RewardFunction) -> str:
    """`<role>.<function>`: scores of different functions are not comparable."""
    label = f"{function.name}-{function.version}"
    plain = re.fullmatch(r"[A-Za-z0-9_-]{1,100}", label)
    return f"{role}.{label if plain else named_id('function', function.name, function.version)}"


def add_reward(windows: ScoreWindows | None, received: Received[Message]) -> ScoreWindows:
    """The windows with one more reward."""
    return grown(windows or NO_PAST, received.message) if isinstance(received.message, Reward) else windows or NO_PAST


def grown(past: ScoreWindows, reward: Reward) -> ScoreWindows:
    """The same of a reward that no stream holds."""
    applicable = {name: part.score for name, part in reward.reward_components.items() if part.applicable}
    if reward.revision == 0:
        fresh = {**applicable, TOTAL: reward.total_reward} if applicable else {}
    else:
        first = reward.first_scored or ()
        fresh = {name: score for name, score in applicable.items() if name == REVISED or name in first}
    added = {name: longer(past.scores.get(name, ()), score, CAPACITY) for name, score in fresh.items()}
    return ScoreWindows(scores={**past.scores, **added})


def longer(values: Sequence[V], value: V, capacity: int) -> list[V]:
    """The newest of these values, with one more: copied once, for it happens for each trajectory."""
    kept = [*values, value]
    del kept[:-capacity]
    return kept


def normalized(score: float, past: Stats, method: str) -> float:
    """`score` by `method`. Average (z-score 0, min-max 1/2) while there is no past or it has no spread."""
    if method == "none":
        return score
    flat = past.count < MIN_WINDOW or past.std == 0.0
    if method == "z-score":
        return 0.0 if flat else (score - past.mean) / past.std
    if flat:
        return 0.5
    return min(1.0, max(0.0, (score - past.minimum) / (past.maximum - past.minimum)))


def parameters(past: Stats, method: str) -> JsonObject:
    """What `normalized` used, as a reward records it."""
    bounds = {"min": past.minimum, "max": past.maximum}
    return {"method": method, "count": past.count, "mean": past.mean, "std": past.std, **bounds}


def of_total(past: Stats, method: str) -> Normalization:
    """The same for the total."""
    if past.count == 0:
        return Normalization(method=method)
    return Normalization(method=method, mean=past.mean, std=past.std, min=past.minimum, max=past.maximum)
