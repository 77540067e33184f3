"""Gathers what a change is made of: the bundle that serves, runs that failed and succeeded, a training, a weight."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from ratchet.analyst.domain.proposal import Material, component_of
from ratchet.analyst.effects import ENTRY, EpisodesOf
from ratchet.analyst.http_clients import Coordinator, Deployer, serving
from ratchet.analyst.mining.base import Episodes, Mask
from ratchet.core.contract.bundle import NO_BUNDLE
from ratchet.core.contract.learning import Pattern
from ratchet.core.contract.reward import Reward
from ratchet.core.contract.trajectory import Trajectory
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.stores.history import History

DAYS = (1, 7, 28)
"""How far back runs are looked for, until there are enough."""
RUNS, ENOUGH = 100, 5_000
"""Of either outcome; and trajectories after which no longer time is read."""


@dataclass(frozen=True)
class Drafting:
    """Raises `Unavailable`."""

    deployer: Deployer
    coordinator: Coordinator
    history: History
    episodes: EpisodesOf

    async def material(self, pattern: Pattern, kind: str) -> Material:
        """For a change of that kind."""
        if kind == "training":
            return await self._training(pattern.role)
        if kind == "reward_weight":
            return Material(weight=await self._weight(pattern))
        if kind not in ("bundle", "held_out_tasks"):
            return Material()
        stable = serving(await self.deployer.policies(pattern.role))
        bundle = await self.deployer.bundle(pattern.role, stable.version) if stable is not None else NO_BUNDLE
        succeeded, failed = await self._runs(pattern)
        return Material(stable.name if stable is not None else None, bundle, succeeded, failed)

    async def _weight(self, pattern: Pattern) -> float | None:
        component = component_of(pattern) or ""
        rewards = await self.history.messages("rewards", Reward, pattern.role, pattern.evidence)
        having = [reward for reward in rewards if component in reward.reward_components]
        newest = max(having, key=lambda reward: reward.timestamp, default=None)
        return newest.reward_components[component].weight if newest is not None else None

    async def _training(self, role: str) -> Material:
        stable = serving(await self.deployer.policies(role))
        if stable is None or (
            stable.bundle and (await self.deployer.bundle(role, stable.version)).model is None
        ):  # no weights that it could go on from
            return Material()
        try:
            proposal = await self.coordinator.proposal(role)
        except (NotFound, Rejected):
            return Material()
        if proposal.algorithm is None:
            return Material()
        before = await self.coordinator.hyperparameters(role, proposal.algorithm)
        return Material(training=proposal, hyperparameters=before)

    async def _runs(self, pattern: Pattern) -> tuple[list[Trajectory], list[Trajectory]]:
        """Runs that succeeded where the pattern could have been, and those that it is about; the newest of both."""
        good, bad = list[str](), list(pattern.evidence)
        for days in DAYS:
            since = pattern.seen_at - timedelta(days=days)
            episodes = await self.episodes(pattern.role, since, pattern.seen_at, pattern.triggers)
            good, bad = contrasted(episodes, pattern)
            if min(len(good), len(bad)) >= RUNS or len(episodes) >= ENOUGH:
                break
        ids = ([*good[-RUNS:]], [*dict.fromkeys((*pattern.evidence, *bad[-RUNS:]))])
        runs = [await self.history.messages("trajectories", Trajectory, pattern.role, part) for part in ids]
        return runs[0], runs[1]


def contrasted(episodes: Episodes, pattern: Pattern) -> tuple[list[str], list[str]]:
    """Ids of the episodes that succeeded where the pattern could have been, and of those that it is about."""
    failure = episodes.measures["failure"]
    bad: Mask = episodes.matching(pattern.triggers)
    if pattern.effect.measure == "failure":
        bad &= failure == 1
    known = [trigger for trigger in pattern.triggers if trigger.attribute in ENTRY]
    good = episodes.matching(known) & (failure == 0) & ~bad
    return [episodes.ids[n] for n in np.flatnonzero(good)], [episodes.ids[n] for n in np.flatnonzero(bad)]
