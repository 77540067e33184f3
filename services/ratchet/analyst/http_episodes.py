"""The HTTP API of episodes: what is stored of one trajectory, and what the open patterns advise about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ratchet.analyst.clickhouse_episodes import Rated
from ratchet.analyst.episodes import Known, episode_of
from ratchet.core.contract.http.analyst import EpisodeOut
from ratchet.core.contract.learning import Pattern
from ratchet.core.errors import NotFound
from ratchet.core.rules.access import KeyScope, RoleSet
from ratchet.core.service.control_api import ControlApi
from ratchet.core.stores.trajectories import StoredTrajectories, ancestors

UNKNOWN = {404: "Nothing is stored of it, or it is not over yet."}
SEVERAL = {**UNKNOWN, 400: "Several roles have parts of it: name one."}
CALLS, REWARDS, FEEDBACK, RUN = 5_000, 50, 200, 200
"""Most that are read of one trajectory, and of the run that it belongs to."""


@dataclass(frozen=True)
class EpisodeRoutes:
    """`/v1/episodes`."""

    stored: StoredTrajectories
    open_patterns: Callable[[str], Awaitable[Sequence[Pattern]]]
    """Of a role."""

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        path = "/v1/episodes/{trajectory_id}"
        api.route("GET", path, self.get_episode, scope=KeyScope.VIEW, errors=SEVERAL, reads=True)

    async def get_episode(self, trajectory_id: str, roles: RoleSet, role: str | None = None) -> EpisodeOut:
        """A trajectory that is over, as an episode: context, actions, decisions, communication, resources, outcome,
        rewards, feedback, errors, and suggestions."""
        role = await self.stored.role_of(trajectory_id, role, roles)
        trajectory = await self.stored.newest(trajectory_id, role)
        if trajectory is None:
            raise NotFound(f"trajectory {trajectory_id} is not over: it becomes an episode with its end")
        calls, rewards, feedback, run, patterns = await asyncio.gather(
            self.stored.calls(role, trajectory.recorded_as or trajectory_id, CALLS),
            self.stored.rewards(trajectory_id, role, REWARDS),
            self.stored.feedback(trajectory_id, role, FEEDBACK),
            self.stored.run({trajectory_id, *ancestors(trajectory)}, roles, RUN),
            self.open_patterns(role),
        )
        known = Known(trajectory, calls, rewards, feedback, run)
        return await asyncio.to_thread(_shown, known, patterns)


def _shown(known: Known, patterns: Sequence[Pattern]) -> EpisodeOut:
    return episode_of(known, [pattern.advice for pattern in matching(known, patterns)])


def matching(known: Known, patterns: Sequence[Pattern]) -> list[Pattern]:
    """Those whose triggers all hold of the trajectory. A pattern without any is about the role, not about it."""
    # scipy comes with the extra `analyst`: who prints the document of this API needs none.
    from ratchet.analyst.mining.features import EpisodeBuilder  # noqa: PLC0415

    builder = EpisodeBuilder(keep=[trigger for pattern in patterns for trigger in pattern.triggers])
    documents = Rated(known.trajectory, None).documents
    builder.add(known.trajectory, reward=None, components={}, feedback=bool(known.feedback), documents=documents)
    episodes = builder.build()
    return [pattern for pattern in patterns if pattern.triggers and episodes.matching(pattern.triggers).all()]
