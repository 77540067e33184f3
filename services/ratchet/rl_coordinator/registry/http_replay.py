"""The HTTP route of shadow replay: prompts as they were logged, which a candidate has not learned from."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from ratchet.rl_coordinator.http.models import ErrorOut
from ratchet.rl_coordinator.registry.replay import Replay
from ratchet.rules.arms import ROLE

REFUSED: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorOut, "description": "There is no such role or policy."},
    409: {"model": ErrorOut, "description": "Nobody can say what the candidate's lineage has learned from."},
}


class ReplayPromptOut(BaseModel):
    """What one call was asked, as it is stored: redacted."""

    turn_id: str = Field(description="The call that asked it.")
    trajectory_id: str
    task: str = Field(description="Group key, or task id.")
    at: datetime
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    sampling: dict[str, Any] = Field(description="How the logged answer was sampled.")


class ReplayPromptsOut(BaseModel):
    """Prompts for one candidate, newest first, one of each task."""

    role: str
    version: int
    since: datetime = Field(description="When the candidate's snapshot was made: prompts are newer.")
    lineage: list[int] = Field(description="The candidate and its ancestors; prompts of their groups are left out.")
    prompts: list[ReplayPromptOut]
    left_out: dict[str, int] = Field(description="Trajectories that were looked at and not taken, by reason.")


def replay_routes(replay: Replay) -> APIRouter:
    """`/v1/replay`."""
    routes = APIRouter(prefix="/v1/replay", tags=["replay"])

    @routes.get("/prompts", responses=REFUSED)
    async def get_replay_prompts(
        role: Annotated[str, Query(pattern=f"^{ROLE.pattern}$")],
        version: Annotated[int, Query(ge=1, lt=2**31, description="The candidate.")],
        limit: Annotated[int, Query(ge=1, le=1_000)] = 400,
    ) -> ReplayPromptsOut:
        """Logged prompts newer than the candidate's snapshot and outside the groups that its lineage learned from."""
        found = await replay.prompts(role, version, limit)
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

    return routes
