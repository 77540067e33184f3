"""The HTTP route of shadow replay: prompts as they were logged, which a candidate has not learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from fastapi import Query

from ratchet.contract.http.models import ReplayPromptOut, ReplayPromptsOut
from ratchet.rl_coordinator.registry.replay import Replay
from ratchet.rules.arms import ROLE
from ratchet.service.control_api import ControlApi

REFUSED: Mapping[int, str] = {
    404: "There is no such role or policy.",
    409: "Nothing says what the candidate's lineage has learned from.",
}


class ReplayRoutes:
    """`/v1/replay`."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def add_to(self, api: ControlApi) -> None:
        """Serve it."""
        api.route("GET", "/v1/replay/prompts", self.get_replay_prompts, tag="replay", errors=REFUSED)

    async def get_replay_prompts(
        self,
        role: Annotated[str, Query(pattern=f"^{ROLE.pattern}$")],
        version: Annotated[int, Query(ge=1, lt=2**31, description="The candidate.")],
        limit: Annotated[int, Query(ge=1, le=1_000)] = 400,
    ) -> ReplayPromptsOut:
        """Logged prompts newer than the candidate's snapshot and outside the groups that its lineage learned from."""
        found = await self._replay.prompts(role, version, limit)
        prompts = [
            ReplayPromptOut(
                turn_id=one.turn_id,
                trajectory_id=one.trajectory_id,
                task=task,
                at=one.at,
                messages=one.messages,
                tools=one.tools,
                sampling={
                    "temperature": one.sampling.temperature,
                    "top_p": one.sampling.top_p,
                    **msgspec.to_builtins(one.sampling),
                },
            )
            for task, one in found.prompts
        ]
        return ReplayPromptsOut(
            role=role,
            version=version,
            since=found.lineage.since,
            lineage=list(found.lineage.versions),
            prompts=prompts,
            left_out=dict(found.left_out),
        )
