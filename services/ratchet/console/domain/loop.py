"""Parts of the loop's picture that are put together from what several sources say."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime

from ratchet.console.domain.attention import Growth
from ratchet.core.contract.http.console import LoopRoleOut, StreamOut
from ratchet.core.contract.http.rollouts import RolloutOut
from ratchet.core.contract.http.status import RoleOut, TrainingStatusOut
from ratchet.core.contract.state import Route

COMPARED_S = 30.0
"""A consumer falls behind when it is further behind than it was so long ago: bursts are shorter."""


def loop_roles(
    routes: Mapping[str, Route],
    states: Mapping[str, RoleOut],
    training: TrainingStatusOut | None,
    rollouts: Sequence[RolloutOut],
    now: datetime,
) -> list[LoopRoleOut]:
    """Every role that a source knows, by name. `states`: by role, as the coordinator gives them."""
    newest = {rollout.role: rollout for rollout in rollouts}
    active = [*training.active, *training.waiting] if training is not None else []
    return [
        _role(name, routes.get(name), states.get(name), newest.get(name), [job.role for job in active].count(name), now)
        for name in sorted({*routes, *states, *newest})
    ]


def _role(
    name: str, route: Route | None, state: RoleOut | None, rollout: RolloutOut | None, active: int, now: datetime
) -> LoopRoleOut:
    stable = route.stable if route is not None else None
    canary = route.canary if route is not None else None
    begun = [step.weight for step in canary.schedule if step.at <= now] if canary is not None else []
    return LoopRoleOut(
        role=name,
        stable=stable.name if stable is not None else state.stable if state is not None else None,
        canary=canary.policy.name if canary is not None else None,
        weight=begun[-1] if begun else None,
        rollout=rollout.state if rollout is not None else None,
        active_jobs=active,
        since_last_training=state.since_last_training if state is not None else None,
        threshold=state.threshold if state is not None else None,
    )


class Lags:
    """How far behind consumers were, lately: `growths` compares two pictures that lie `COMPARED_S` apart."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[tuple[str, str], int]]] = deque()

    def growths(self, streams: Sequence[StreamOut], monotonic_s: float) -> list[Growth]:
        """Consumers that are further behind now than then; none while there is nothing to compare with."""
        lags = {(stream.name, consumer.name): consumer.lag for stream in streams for consumer in stream.consumers}
        self._seen.append((monotonic_s, lags))
        while len(self._seen) > 1 and self._seen[1][0] <= monotonic_s - COMPARED_S:
            self._seen.popleft()
        then, before = self._seen[0]
        if monotonic_s - then < COMPARED_S:
            return []
        return [
            Growth(stream, consumer, before[stream, consumer], lag, monotonic_s - then)
            for (stream, consumer), lag in lags.items()
            if lag > before.get((stream, consumer), lag)
        ]
