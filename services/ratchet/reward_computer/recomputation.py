"""History under another reward function: judged, computed and compared beside the rewards that count, then accepted.

The same facts give the same rewards, so each step may be repeated after a kill: what is there already is not published
again. A recomputed reward compares with the baseline that the trajectory's rewards recorded, and is normalised by the
recomputed ones before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from msgspec.structs import replace

from ratchet.bus.connection import Bus
from ratchet.core.contract import Feedback, Reward, Trajectory
from ratchet.core.contract.reward import RewardFunction
from ratchet.core.contract.reward_commands import Accepted, Recomputed
from ratchet.core.errors import NotFound, Rejected
from ratchet.reward_computer.clickhouse_facts import Facts, Key
from ratchet.reward_computer.clickhouse_proposals import PAGE, Proposals
from ratchet.reward_computer.components import Evidence
from ratchet.reward_computer.domain.comparison import Compared
from ratchet.reward_computer.domain.normalization import NO_PAST, NOTHING_YET, ScoreWindows, Stats, grown
from ratchet.reward_computer.domain.reward import (
    Circumstances,
    RewardSpec,
    named,
    recorded_history,
    revision_of,
    reward_of,
    scored_in,
)
from ratchet.reward_computer.history_judging import HistoryJudging, OnProgress, Testimony
from ratchet.reward_computer.kv_functions import Functions

IN_FORCE_ALREADY = "it computes rewards already, so its judges stay as they are: raise its version to calibrate them"


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a page of trajectories."""

    trajectories: Mapping[Key, Sequence[Trajectory]]
    rewards: Mapping[Key, Sequence[Reward]]
    feedback: Mapping[Key, Sequence[Feedback]]


@dataclass(frozen=True)
class Recomputation:
    """The work of one command."""

    functions: Functions
    facts: Facts
    proposals: Proposals
    judging: HistoryJudging
    bus: Bus
    on_progress: OnProgress
    _windows: dict[str, ScoreWindows] = field(default_factory=dict[str, ScoreWindows], init=False)
    """By role: the recent scores of what was recomputed."""

    async def recompute(self, function: RewardFunction, since: datetime, role: str | None, asks: bool) -> Recomputed:
        """Propose a reward for each rewarded trajectory that was stored since an instant.

        `asks`: judges are asked about those that they have not judged. Raises `NotFound` or `Rejected` for a function
        that the settings do not describe as it has to be.
        """
        spec, is_new = await self._described(function)
        keys = await self._keys(role, since)
        testimony = await self.judging.testimony(spec.judge_of, keys, asks, self.on_progress)
        if is_new:
            spec = dataclasses.replace(spec, calibrations=testimony.calibrations())
        await self.functions.propose(spec, since)
        compared, number = Compared(), 0
        for start in range(0, len(keys), PAGE):
            self.on_progress(start, len(keys), "computing rewards")
            page = await self._computed(spec, keys[start : start + PAGE], testimony)
            await self.proposals.propose(enumerate(page, number), spec.digest)
            number += len(page)
            for before, after in page:
                compared.add(before, after)
        return Recomputed(
            function=function,
            digest=spec.digest,
            since=since,
            trajectories=number,
            unrewarded=len(keys) - number,
            judged=testimony.report,
            judges=await self.judging.reports(spec.judges, testimony, spec.calibrations),
            comparisons=compared.comparisons(),
            changes=compared.changes(),
            note=None if is_new or not spec.judges else IN_FORCE_ALREADY,
        )

    async def accept(self, function: RewardFunction) -> Accepted:
        """Have the function count: for what comes, then for what was proposed. Raises `NotFound` where nothing was."""
        record = await self.functions.proposed(function)
        if record is None:
            raise NotFound(f"nothing was recomputed as {named(function)}: `ratchet rewards recompute` comes first")
        spec = record.spec()
        await self.functions.accept(spec)
        counts, proposed = {"published": 0, "present": 0, "revised": 0}, set[Key]()
        async for page in self.proposals.proposed(function, spec.digest):
            proposed |= {(reward.role, reward.trajectory_id) for reward in page}
            self.on_progress(len(proposed), len(proposed), "publishing rewards")
            await self._publish(spec, page, counts)
        left = await self._left(spec, proposed, record.since)
        return Accepted(function=function, digest=spec.digest, left=left, **counts)

    async def _described(self, function: RewardFunction) -> tuple[RewardSpec, bool]:
        """The function, and whether no reward was computed with it yet."""
        configured, accepted = self.functions.configured, await self.functions.accepted()
        if accepted is not None and accepted.function == function:
            if note := await self.functions.check():
                raise Rejected(note)
            return accepted, False
        if configured.function != function:
            here = named(configured.function)
            raise NotFound(
                f"the settings describe {here}, not {named(function)}: set function_name and function_version of"
                " [reward_computer], here or in the environment"
            )
        in_use = await self.proposals.is_in_use(function)
        if in_use and accepted is not None:
            raise Rejected(
                f"{named(function)} was in force before {named(accepted.function)}, and rewards only go forward: give"
                " what it was a new function_version"
            )
        return configured, not in_use

    async def _keys(self, role: str | None, since: datetime) -> list[Key]:
        roles = await self.proposals.roles()
        if role is not None and role not in roles:
            raise NotFound(f"no such role: {role}; roles with trajectories: {', '.join(roles) or 'none yet'}")
        return [key for name in ([role] if role else roles) for key in await self.proposals.stored(name, since)]

    async def _known(self, keys: Sequence[Key]) -> _Known:
        return _Known(
            await self.facts.trajectories(keys), await self.facts.rewards(keys), await self.facts.feedback(keys)
        )

    async def _computed(
        self, spec: RewardSpec, keys: Sequence[Key], testimony: Testimony
    ) -> list[tuple[Reward, Reward]]:
        """The reward that counts and the one under the function, of those that have one."""
        known = await self._known(keys)
        page: list[tuple[Reward, Reward]] = []
        for key in keys:
            rewards, further = known.rewards.get(key), testimony.further.get(key, [])
            if rewards and known.trajectories.get(key):
                after = self._reward(spec, known, key, further)
                page.append((max(rewards, key=lambda one: (one.timestamp, one.revision)), after))
        return page

    def _reward(
        self,
        spec: RewardSpec,
        known: _Known,
        key: Key,
        further: Sequence[Feedback] = (),
        previous: Reward | None = None,
    ) -> Reward:
        """The reward of a trajectory, as one more of those that are recomputed."""
        role, rewards = key[0], known.rewards[key]
        feedback = [*{opinion.feedback_id: opinion for opinion in (*further, *known.feedback.get(key, ()))}.values()]
        past = self._windows.get(role, NO_PAST)
        scored = scored_in(rewards, spec.function)
        when = Circumstances(self.bus.now(), revision_of(feedback), past, previous, scored=scored)
        evidence = Evidence(known.trajectories[key][0], feedback, _baseline(rewards))
        reward = replace(reward_of(spec, evidence, when), recomputed=True)
        self._windows[role] = grown(past, reward)
        return reward

    async def _publish(self, spec: RewardSpec, page: Sequence[Reward], counts: dict[str, int]) -> None:
        """Publish what was proposed, or what opinions have made of it since; what is there already stays."""
        known = await self._known([(reward.role, reward.trajectory_id) for reward in page])
        fresh: list[Reward] = []
        for proposed in page:
            key = (proposed.role, proposed.trajectory_id)
            self._windows[key[0]] = grown(self._windows.get(key[0], NO_PAST), proposed)
            own = [reward for reward in known.rewards.get(key, ()) if reward.reward_function == spec.function]
            if any(reward.revision >= proposed.revision for reward in own):
                counts["present"] += 1
            elif revision_of(known.feedback.get(key, ())) > proposed.revision and known.trajectories.get(key):
                counts["revised"] += 1
                fresh.append(self._reward(spec, known, key, previous=proposed))
            else:
                fresh.append(replace(proposed, timestamp=self.bus.now()))
        await self.bus.publish_all(fresh)
        counts["published"] += len(fresh)

    async def _left(self, spec: RewardSpec, proposed: set[Key], since: datetime | None) -> int:
        """Trajectories since then that were not proposed, and have rewards, but none under the function."""
        keys = [key for key in await self._keys(None, since) if key not in proposed] if since else []
        left = 0
        for start in range(0, len(keys), PAGE):
            rewards = (await self.facts.rewards(keys[start : start + PAGE])).values()
            left += sum(all(reward.reward_function != spec.function for reward in own) for own in rewards)
        return left


def _baseline(rewards: Sequence[Reward]) -> Stats:
    """What efficiency compares with: as the newest reward recorded it that needed it."""
    by_age = sorted(rewards, key=lambda reward: (reward.timestamp, reward.revision), reverse=True)
    return next((history for reward in by_age if (history := recorded_history(reward)) is not None), NOTHING_YET)
