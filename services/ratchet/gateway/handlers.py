"""The routes beside calls: responses that are kept, how a trajectory ended, and feedback on it."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from urllib.parse import parse_qsl

import msgspec

from ratchet.bus.bodies import Bodies
from ratchet.bus.contracts import Contracts
from ratchet.core.contract import Feedback, TrajectoryEnd
from ratchet.core.contract.erasure import USER
from ratchet.core.contract.http.gateway import BodyKept, DeletedResponse, Ended, FeedbackTaken
from ratchet.core.contract.reward import FLAG, JUDGEMENT, PARENT_REWARD, UPDATE
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.errors import BadRequest, Forbidden, InvalidMessage, Unavailable
from ratchet.core.rules.access import Caller, KeyScope
from ratchet.core.rules.opt_outs import refs_of
from ratchet.core.rules.texts import user_ref
from ratchet.core.service.asgi import Request, Response, json_response
from ratchet.dialects.responses.state import PAGE, input_page
from ratchet.gateway.calls import new_id
from ratchet.gateway.continuing import Continuing
from ratchet.gateway.domain.identity import Identity
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.routing import Arm, Arms
from ratchet.gateway.peer_sync import PeerSync
from ratchet.gateway.recorder import Recorder
from ratchet.gateway.unrecorded import NOT_RECORDED, Unrecorded, is_off

FIRST_COUNTS = "the first outcome of a trajectory counts"
UNKNOWN_TRAJECTORY = (
    "no gateway remembers a call of this trajectory: the feedback is stored, and counts as soon as a trajectory with"
    " this id and role is stored; it waits for as long as feedback is kept"
)
RESERVED = {
    UPDATE: "the trajectory collector",
    JUDGEMENT: "the reward computer",
    PARENT_REWARD: "the reward computer",
    FLAG: "the gateway's filters",
}
"""Kinds of feedback that say what happened to a reward's facts, by who publishes them."""
_ROLE_UNKNOWN = "name the `role`: no gateway remembers a call of that trajectory"


ROLE_NAME = re.compile(r"[a-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Handlers:
    """One method per route; `trajectory` is the one that the path names."""

    recorder: Recorder
    continuing: Continuing
    arms: Arms
    identity: Identity
    peer_sync: PeerSync
    updates: PeerUpdates
    contracts: Contracts
    bodies: Bodies
    """Keeps the large ones of agents' messages."""
    unrecorded: Unrecorded
    user_key: str | None
    """Key of the hash of users' names."""
    now: Callable[[], datetime]

    async def get_response(self, response_id: str, request: Request, _: str | None) -> Response:
        """GET /v1/responses/{id}. Raises `NotFound`."""
        return json_response((await self.continuing.kept(response_id, _owner(request))).shown())

    async def delete_response(self, response_id: str, request: Request, _: str | None) -> Response:
        """DELETE /v1/responses/{id}: responses that continued it stay. Raises `NotFound`."""
        await self.continuing.forget(response_id, _owner(request))
        return json_response(DeletedResponse(id=response_id))

    async def list_input_items(self, response_id: str, request: Request, _: str | None) -> Response:
        """GET /v1/responses/{id}/input_items, in pages. Raises `NotFound` or `BadRequest`."""
        asked = dict(parse_qsl(request.query))
        limit = asked.get("limit", str(PAGE))
        if not limit.isdecimal() or len(limit) > 3:
            raise BadRequest("limit must be a number", param="limit")
        state = await self.continuing.kept(response_id, _owner(request))
        return json_response(
            input_page(state, after=asked.get("after"), limit=int(limit), order=asked.get("order", "desc"))
        )

    async def end(self, trajectory: str, request: Request, _: str | None) -> Response:
        """POST /v1/trajectories/{id}/end: in the role that the body names, else in every role of its calls.

        Publishes a repeated end like the first one, which may not have arrived. Raises `Forbidden` for another key than
        those that called, where one of those may end it.
        """
        body = request.record() if request.body else {}
        knows_all = await self.peer_sync.catch_up()
        trajectory_id = self._meant_by(trajectory, request)
        known = {arm.role: arm for arm in self._arms_for(request.caller, trajectory_id)}
        roles = _roles(request.caller, body, list(known), knows_all=knows_all)
        _check_ender(request.caller, [known[role] for role in roles if role in known])
        members = {**body, "trajectory_id": trajectory_id, "timestamp": self.now()}
        if "task" in members:
            members["task_context"] = members.pop("task")
        strict = self.contracts.check_strict_json
        try:
            ends = [
                cast("TrajectoryEnd", strict(TrajectoryEnd.TOPIC, msgspec.json.encode({**members, "role": role})))
                for role in roles
            ]
        except InvalidMessage as error:
            written = error.path.replace("/task_context", "/task", 1) if "task" in body else error.path
            raise InvalidMessage(error.reason, written) from error
        earlier = [known[role] for role in roles if role in known and known[role].ended]
        note = None
        if earlier and all(arm.has_outcome for arm in earlier):
            note = f"{FIRST_COUNTS}: this end changes nothing there; send a correction as feedback"
        elif earlier:
            note = f"{FIRST_COUNTS}: an outcome in this end counts where no earlier end gave one"
        for ended in ends:
            arm = known.get(ended.role)
            if self.unrecorded.heed(arm or Arm(trajectory_id, ended.role), [*refs_of(ended)], off=is_off(request)):
                note = NOT_RECORDED
            else:
                self.recorder.record_end(ended, arm, counted=knows_all)
            self.identity.ended(ended.trajectory_id)
            if arm is not None:
                arm.ended, arm.has_outcome = True, arm.has_outcome or ended.outcome is not None
                self.updates.changed(arm)
        ended_before = [arm.role for arm in earlier]
        return json_response(Ended(trajectory_id=trajectory_id, roles=roles, ended_before=ended_before, note=note), 202)

    def _is_unrecorded(self, feedback: Feedback) -> bool:
        """Whether its trajectory is not recorded, or someone has opted out whom it names: its rater among them."""
        rater = user_ref(self.user_key, feedback.rater)
        refs = [*refs_of(feedback), *([(USER, rater)] if rater else [])]
        arms = self.arms.of_trajectory(feedback.trajectory_id)
        is_off = any(arm.unrecorded for arm in arms if arm.role == feedback.role)
        return is_off or self.unrecorded.covers(feedback.trajectory_id, feedback.role, refs)

    def _arms_for(self, caller: Caller, trajectory_id: str) -> list[Arm]:
        """The calls of a trajectory in the roles that the caller may rate; for it there are no others."""
        rated = caller.roles(KeyScope.FEEDBACK)
        return [arm for arm in self.arms.of_trajectory(trajectory_id) if arm.role in rated]

    def _meant_by(self, name: str, request: Request) -> str:
        """The trajectory that a name means to the caller: the newest with calls. Raises `BadRequest`."""
        ids = self.identity.meant_by(name, _owner(request))
        return next((trajectory_id for trajectory_id in ids if self.arms.of_trajectory(trajectory_id)), ids[-1])

    async def feedback(self, request: Request, trajectory: str | None) -> Response:
        """POST /v1/feedback: without a role, for the only role of the trajectory's calls.

        Raises `Forbidden` for a key that may not rate the role, or not say who gave the feedback.
        """
        body = request.record()
        _check_claims(body)
        name = body.get("trajectory_id") or trajectory
        if name is None:
            raise BadRequest("`trajectory_id` is missing: the id or the name of a trajectory", param="trajectory_id")
        knows_all = await self.peer_sync.catch_up()
        trajectory_id = self._meant_by(str(name), request)
        known = [arm.role for arm in self._arms_for(request.caller, trajectory_id)]
        roles = _roles(request.caller, body, known, knows_all=knows_all)
        if len(roles) > 1:
            raise BadRequest(f"name the `role`: the trajectory has calls in {', '.join(roles)}", param="role")
        if (body.get("rater") or body.get("source")) and not request.caller.allows(KeyScope.ANNOTATE, roles[0]):
            key = request.caller.key_id
            raise Forbidden(f"to say who gave feedback, or where, the key {key} needs the scope `annotate`")
        members = {
            "feedback_id": new_id(),
            "at": self.now(),
            "source": "gateway",
            **body,
            "role": roles[0],
            "trajectory_id": trajectory_id,
            **({"key_id": request.caller.key_id} if request.caller.key_id is not None else {}),
        }
        checked = self.contracts.check_strict_json(Feedback.TOPIC, msgspec.json.encode(members))
        feedback = cast("Feedback", checked)
        note = None if known else UNKNOWN_TRAJECTORY
        if is_off(request) or self._is_unrecorded(feedback):
            note = NOT_RECORDED
        else:
            self.recorder.record_feedback(feedback)
        return json_response(FeedbackTaken(feedback_id=feedback.event_id, trajectory_id=trajectory_id, note=note), 202)

    async def keep_body(self, sha256: str, request: Request, _: str | None) -> Response:
        """PUT /v1/bodies/{sha256}?role=: for the messages of that role, which refer to it; agents have no object store.

        Raises `BadRequest` for bytes of another digest, `Forbidden` for a role that is not the key's, and `Unavailable`
        while the object store is away.
        """
        role = dict(parse_qsl(request.query)).get("role", DEFAULT_ROLE)
        if not ROLE_NAME.fullmatch(role):
            raise BadRequest("`role` is no name of a role", param="role")
        request.caller.require(KeyScope.INFER, role)
        digest = await asyncio.to_thread(hashlib.sha256, request.body)
        if digest.hexdigest() != sha256:
            raise BadRequest(f"these {len(request.body)} bytes have another SHA-256 than the path", param="sha256")
        await self.bodies.put(role, sha256, request.body)
        return json_response(BodyKept(sha256=sha256, bytes=len(request.body)))


def _check_ender(caller: Caller, arms: Sequence[Arm]) -> None:
    """Raises `Forbidden` where the trajectory is another key's to end."""
    if caller.key_id is None:
        return
    annotated = caller.roles(KeyScope.ANNOTATE)
    theirs = next((arm for arm in arms if arm.role not in annotated and not arm.may_be_ended_by(caller.key_id)), None)
    if theirs is not None:
        message = (
            f"the calls of this trajectory in the role {theirs.role} came with another key, which may end it: use that"
            " one, or one with the scope `annotate`, or send feedback"
        )
        raise Forbidden(message, code="not_its_caller")


def _check_claims(body: Mapping[str, Any]) -> None:
    """Raises `BadRequest` for feedback that says of itself what no caller may say."""
    kind = str(body.get("kind"))
    if kind in RESERVED:
        raise BadRequest(f"feedback of the kind `{kind}` comes from {RESERVED[kind]} alone", param="kind")
    if "key_id" in body:
        raise BadRequest("the gateway itself records the key that feedback came with", param="key_id")


def _owner(request: Request) -> str:
    """Whose responses a request may read, and whose names count."""
    return request.caller.key_id or ""


def _roles(caller: Caller, body: Mapping[str, Any], known: Sequence[str], *, knows_all: bool) -> list[str]:
    """The roles that a request is about: the one that it names, else the `known` ones, which the key may rate.

    `knows_all`: no other gateway knows more of the trajectory just now. Raises `BadRequest` where there is no role, or
    where the trajectory has no call in the named one, `Unavailable` where another gateway may know one, `Forbidden`
    where the key may not rate the named one.
    """
    if role := body.get("role"):
        if not isinstance(role, str):
            raise BadRequest("`role` is no text", param="role")
        caller.require(KeyScope.FEEDBACK, role)
        if known and knows_all and role not in known:
            raise BadRequest(f"the trajectory has no call in the role {role[:64]!r}", param="role")
        return [role]
    if not knows_all and len(known) != 1:
        raise Unavailable("the gateway cannot ask the others for the roles of this trajectory now: name the `role`")
    if not known:
        raise BadRequest(_ROLE_UNKNOWN, param="role")
    return [*known]
