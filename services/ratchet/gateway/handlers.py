"""The routes beside completions: which models there are, how a trajectory ended, and feedback on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import msgspec

from ratchet.bus.contracts import Contracts
from ratchet.contract import Feedback, TrajectoryEnd
from ratchet.contract.http.gateway import Ended, FeedbackTaken, Model, Models
from ratchet.errors import BadRequest, NotFound
from ratchet.gateway.answering import new_id
from ratchet.gateway.call_router import CallRouter
from ratchet.gateway.domain.requests import check_trajectory_id
from ratchet.gateway.domain.routing import Arms
from ratchet.gateway.recorder import Recorder
from ratchet.rules.arms import parse_model
from ratchet.service.asgi import Request, Response, json_response

FIRST_COUNTS = "the first outcome of a trajectory counts"
_ROLE_UNKNOWN = "name the `role`: this gateway has not seen a call of that trajectory"


@dataclass(frozen=True)
class Handlers:
    """One method per route; `trajectory` is the one that the path names."""

    router: CallRouter
    recorder: Recorder
    arms: Arms
    contracts: Contracts
    now: Callable[[], datetime]

    async def models(self, _: Request, __: str | None) -> Response:
        """GET /v1/models"""
        return json_response(Models(data=[Model(id=name) for name in self.router.model_names()]))

    async def model(self, name: str, _: Request, __: str | None) -> Response:
        """GET /v1/models/{name}: any name that a call may use. Raises `NotFound`."""
        try:
            await self.router.resolve(parse_model(name))
        except (ValueError, NotFound) as error:
            raise NotFound(str(error), param="model", code="model_not_found") from error
        return json_response(Model(id=name))

    async def end(self, request: Request, trajectory: str | None) -> Response:
        """POST /v1/trajectories/{id}/end: in the role that the body names, else in every role of its calls.

        Publishes a repeated end like the first one, which may not have arrived.
        """
        trajectory_id = check_trajectory_id(trajectory or "")
        body = request.json_object() if request.body else {}
        known = {arm.role: arm for arm in self.arms.of_trajectory(trajectory_id)}
        roles = [body["role"]] if body.get("role") else list(known)
        if not roles:
            raise BadRequest(_ROLE_UNKNOWN, param="role")
        members = {**body, "trajectory_id": trajectory_id, "timestamp": self.now()}
        if "task" in members:
            members["task_context"] = members.pop("task")
        strict = self.contracts.check_strict_json
        ends = [
            cast("TrajectoryEnd", strict(TrajectoryEnd.TOPIC, msgspec.json.encode({**members, "role": role})))
            for role in roles
        ]
        earlier = [known[role] for role in roles if role in known and known[role].ended]
        note = None
        if earlier and all(arm.has_outcome for arm in earlier):
            note = f"{FIRST_COUNTS}: this end changes nothing there; send a correction as feedback"
        elif earlier:
            note = f"{FIRST_COUNTS}: an outcome in this end counts where no earlier end gave one"
        for ended in ends:
            arm = known.get(ended.role)
            self.recorder.record_end(ended, arm)
            if arm is not None:
                arm.ended, arm.has_outcome = True, arm.has_outcome or ended.outcome is not None
        ended_before = [arm.role for arm in earlier]
        return json_response(Ended(trajectory_id=trajectory_id, roles=roles, ended_before=ended_before, note=note), 202)

    async def feedback(self, request: Request, trajectory: str | None) -> Response:
        """POST /v1/feedback: without a role, for the only role of the trajectory's calls."""
        body = request.json_object()
        trajectory_id = str(body.get("trajectory_id") or trajectory or "")
        roles = [body["role"]] if body.get("role") else [arm.role for arm in self.arms.of_trajectory(trajectory_id)]
        if not roles:
            raise BadRequest(_ROLE_UNKNOWN, param="role")
        if len(roles) > 1:
            raise BadRequest(f"name the `role`: the trajectory has calls in {', '.join(roles)}", param="role")
        members = {
            "feedback_id": new_id(),
            "at": self.now(),
            "source": "gateway",
            **body,
            "role": roles[0],
            "trajectory_id": trajectory_id,
        }
        checked = self.contracts.check_strict_json(Feedback.TOPIC, msgspec.json.encode(members))
        feedback = cast("Feedback", checked)
        self.recorder.record_feedback(feedback)
        return json_response(FeedbackTaken(feedback_id=feedback.event_id, trajectory_id=trajectory_id), 202)
