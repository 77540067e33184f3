"""What happens on each route: find the policy, have the call answered, answer the agent, record."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import hmac
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, cast

import msgspec
import structlog

from ratchet.bus.contracts import Contracts
from ratchet.bus.tasks import end
from ratchet.contract import Feedback, JsonObject, Message, TrajectoryEnd
from ratchet.contract.http.gateway import Ended, FeedbackTaken, Model, Models
from ratchet.contract.state import PolicyVersion
from ratchet.errors import BadRequest, NotFound
from ratchet.gateway import metrics
from ratchet.gateway.answering import Answered, Answering, Call, new_id
from ratchet.gateway.domain.arms import Arm, Arms
from ratchet.gateway.domain.calls import agent_body, check_trajectory_id
from ratchet.gateway.domain.capture import Asked
from ratchet.gateway.domain.chunks import KEEP_ALIVE, event_of
from ratchet.gateway.domain.forms import CHAT, TEXT, Form
from ratchet.gateway.domain.routes import assign, claim_of, pin, start_of
from ratchet.gateway.engines.base import Engine
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.recorder import Recorder
from ratchet.rules.arms import Assignment, ModelName, parse_model, variant_of
from ratchet.service.asgi import Answer as HttpAnswer, EventStream, Request, Response, json_response, problem_response
from ratchet.service.problems import HttpError, internal_error

log = structlog.get_logger()

FIRST_COUNTS = "the first outcome of a trajectory counts"
TRAJECTORY, SESSION, AGENT = b"x-ratchet-trajectory", b"x-ratchet-session", b"x-ratchet-agent"


@dataclass(frozen=True)
class Gateway:
    """The handlers and what they need."""

    routes: Routes
    answering: Answering
    recorder: Recorder
    arms: Arms
    contracts: Contracts
    user_key: str | None
    keep_alive_s: float
    is_blind: Callable[[], bool]
    """Whether what is published is not stored any more: a canary that cannot be observed is not served."""
    now: Callable[[], datetime]

    async def chat(self, request: Request, trajectory: str | None) -> HttpAnswer:
        """POST /v1/chat/completions"""
        return await self._completion(CHAT, request, trajectory)

    async def complete(self, request: Request, trajectory: str | None) -> HttpAnswer:
        """POST /v1/completions"""
        return await self._completion(TEXT, request, trajectory)

    async def models(self, _: Request, __: str | None) -> Response:
        """GET /v1/models"""
        listed: list[str] = []
        for role in self.routes.roles():
            route = self.routes.get(role)
            served = [route.stable, route.canary.policy if route.canary else None] if route else []
            listed += [role, *(f"{role}@{policy.version}" for policy in served if policy)]
        listed += [role for role in self.answering.upstream_roles if role not in listed]
        return json_response(Models(data=[Model(id=name) for name in listed]))

    async def model(self, name: str, _: Request, __: str | None) -> Response:
        """GET /v1/models/{name}: any name that a call may ask for. Raises `NotFound`."""
        try:
            await self._checked(self._resolved(parse_model(name)))
        except (ValueError, NotFound) as error:
            raise _not_found(error, "model") from error
        return json_response(Model(id=name))

    async def end(self, request: Request, trajectory: str | None) -> Response:
        """POST /v1/trajectories/{id}/end: in the role that it names, else in every role that the trajectory met.

        An end that is said again is published like the first one, which may not have arrived.
        """
        trajectory_id = check_trajectory_id(trajectory or "")
        body = request.json_object() if request.body else {}
        known = {arm.role: arm for arm in self.arms.of(trajectory_id)}
        said = {**body, "trajectory_id": trajectory_id, "timestamp": self.now()}
        if "task" in said:
            said["task_context"] = said.pop("task")
        roles = [body["role"]] if body.get("role") else list(known) or [_unknown_role()]
        ends = [
            cast("TrajectoryEnd", self._checked_message(TrajectoryEnd.TOPIC, {**said, "role": role})) for role in roles
        ]
        before = [known[role] for role in roles if role in known and known[role].ended]
        note = _said_again(before)
        for ended in ends:
            arm = known.get(ended.role)
            self.recorder.end(ended, arm)
            if arm is not None:
                arm.ended, arm.has_outcome = True, arm.has_outcome or ended.outcome is not None
        ended_before = [arm.role for arm in before]
        return json_response(Ended(trajectory_id=trajectory_id, roles=roles, ended_before=ended_before, note=note), 202)

    async def feedback(self, request: Request, trajectory: str | None) -> Response:
        """POST /v1/feedback"""
        body = request.json_object()
        trajectory_id = str(body.get("trajectory_id") or trajectory or "")
        said = {
            "feedback_id": new_id(),
            "at": self.now(),
            "source": "gateway",
            **body,
            "role": body.get("role") or self._only_role(trajectory_id),
            "trajectory_id": trajectory_id,
        }
        feedback = cast("Feedback", self._checked_message(Feedback.TOPIC, said))
        self.recorder.feedback(feedback)
        return json_response(FeedbackTaken(feedback_id=feedback.event_id, trajectory_id=trajectory_id), 202)

    def _only_role(self, trajectory_id: str) -> str:
        """The role in which the trajectory's calls were. Raises `BadRequest` unless it is known to be just one."""
        roles = [arm.role for arm in self.arms.of(trajectory_id)]
        if len(roles) > 1:
            raise BadRequest(f"say which role: the trajectory has calls in {', '.join(roles)}", param="role")
        return roles[0] if roles else _unknown_role()

    def _checked_message(self, topic: str, said: JsonObject) -> Message:
        """What an agent said, by the strict view. Raises `InvalidMessage`."""
        return self.contracts.check_strict_json(topic, msgspec.json.encode(said))

    async def _completion(self, form: Form, request: Request, trajectory: str | None) -> HttpAnswer:
        call = await self._call(form, request, trajectory)
        return await (self._streamed(call) if call.request.stream else self._whole(call))

    async def _whole(self, call: Call) -> Response:
        try:
            answered = await self.answering.answer(call)
        except HttpError as problem:
            return problem_response(problem, _headers(call))
        response = json_response(agent_body(call.request, answered.body), headers=_headers(call))
        self.answering.record(call, answered)
        return response

    async def _streamed(self, call: Call) -> HttpAnswer:
        """A stream that has begun can no longer have a status: it begins with the answer, or some time before it."""
        working = asyncio.create_task(self.answering.answer(call))
        try:
            await asyncio.wait({working}, timeout=self.keep_alive_s)
        except asyncio.CancelledError:
            await self._abandoned(call, working)
            raise
        problem = _problem(working) if working.done() else None
        if problem is not None:
            return problem_response(problem, _headers(call))
        return EventStream(self._events(call, working), _headers(call))

    async def _events(self, call: Call, working: asyncio.Task[Answered]) -> AsyncGenerator[bytes, None]:
        """Comments while the engine works, then the whole answer in chunks, or an error in their place.

        It is closed where it stands when the agent goes away: the engine's call is then cancelled, or what it answered
        is recorded as never received. The turn is recorded before the agent can make its next call.
        """
        received = False
        metrics.STREAMS.inc()
        try:
            while not working.done():
                yield KEEP_ALIVE
                await asyncio.wait({working}, timeout=self.keep_alive_s)
            problem = _problem(working)
            if problem is not None:
                yield event_of(problem.body)
                return
            answered = working.result()
            *begun, end = call.form.stream(call.request, agent_body(call.request, answered.body))
            for event in begun:
                yield event
            received = True
            self.answering.record(call, answered)
            yield end
        finally:
            metrics.STREAMS.dec()
            if not received:
                await self._abandoned(call, working)

    async def _abandoned(self, call: Call, working: asyncio.Task[Answered]) -> None:
        """End a call for which nobody waits any more: `answer` records that, unless there was an answer already."""
        await end(working)
        if not working.cancelled() and working.exception() is None:
            self.answering.gone(call)

    async def _call(self, form: Form, request: Request, trajectory: str | None) -> Call:
        """Everything that is known before anybody is asked; a call that nobody can answer leaves no trace here.

        Raises `BadRequest` or `NotFound`.
        """
        wanted = form.read(request.json_object())
        try:
            wanted = dataclasses.replace(wanted, model=self._resolved(wanted.model))
            pinned = await self._checked(wanted.model)
            named = request.header(TRAJECTORY) or trajectory
            trajectory_id = check_trajectory_id(named) if named else new_id()
            arm = self.arms.open(trajectory_id, wanted.model.role)
            engine, assignment = self._assignment(pinned, arm)
        except NotFound as error:
            raise _not_found(error, wanted.named_by) from error
        asked = self._asked(request, wanted.body.get("user"), arm, engine, assignment)
        return Call(form, wanted, request.body, arm, assignment, engine, asked, time.perf_counter())

    def _resolved(self, model: ModelName) -> ModelName:
        """`<role>_<algorithm>` as the version that it stands for. Raises `NotFound` when there is none."""
        variant = variant_of(model.role)
        if variant is None or model.version is not None or self.routes.get(model.role) is not None:
            return model
        role, algorithm = variant
        if self.routes.get(role) is None:
            return model
        newest = self.routes.newest(role, algorithm)
        if newest is not None:
            return ModelName(role, newest.version)
        raise NotFound(f"{role} has no version trained with {algorithm} that can be used")

    async def _checked(self, model: ModelName) -> PolicyVersion | None:
        """The version that is asked for by name, if one is. Raises `NotFound` when nobody can answer."""
        if model.version is not None:
            return await self._version(model, model.version)
        route = self.routes.get(model.role)
        if (route is None or route.stable is None) and not self.answering.lends_to(model.role):
            raise _unserved(model.role)
        return None

    def _assignment(self, pinned: PolicyVersion | None, arm: Arm) -> tuple[Engine, Assignment]:
        """Who answers. An arm that is drawn here is announced before anybody is asked. Raises `NotFound`."""
        policies = self.answering.policies
        if pinned is not None:
            return policies, pin(pinned, arm)
        route, begins = self.routes.get(arm.role), arm.assignment is None
        if route is not None:
            lapsed = self.routes.lapsed(arm.role) or self.is_blind()
            metrics.LAPSED.labels(arm.role).set(lapsed)
            assignment = assign(route, arm, lapsed=lapsed)
            if assignment is not None:
                if begins:
                    self.recorder.start(start_of(route, arm, assignment, lapsed=lapsed, at=self.now()))
                return policies, assignment
        lent = self.answering.first_upstream(arm)
        if lent is None:
            raise _unserved(arm.role)
        return lent

    async def _version(self, model: ModelName, version: int) -> PolicyVersion:
        found = await self.routes.version(model.role, version)
        if model.digest not in {None, found.digest[:8]}:
            raise NotFound(f"{model.role}@{version} has another digest")
        return found

    def _asked(self, request: Request, user: Any, arm: Arm, engine: Engine, assignment: Assignment) -> Asked:
        return Asked(
            turn_id=new_id(),
            trajectory_id=arm.trajectory_id,
            role=arm.role,
            at=self.now(),
            policy=claim_of(arm.role, assignment, mixed=arm.mixed),
            engine=engine.info,
            turns=arm.turns,
            session_id=request.header(SESSION),
            agent_id=request.header(AGENT),
            user_ref=self._user_ref(user),
        )

    def _user_ref(self, user: Any) -> str | None:
        """A keyed hash of the agent's `user`; nothing without a key."""
        if not isinstance(user, str) or self.user_key is None:
            return None
        return hmac.new(self.user_key.encode(), user.encode(), hashlib.sha256).hexdigest()


def _unknown_role() -> NoReturn:
    """Raises `BadRequest`."""
    raise BadRequest("say the role: this gateway has not seen a call of that trajectory", param="role")


def _said_again(before: Sequence[Arm]) -> str | None:
    """What becomes of an end in roles that have ended before; None where it is the first one."""
    if not before:
        return None
    if all(arm.has_outcome for arm in before):
        return f"{FIRST_COUNTS}: this end changes nothing there; say what is to be corrected as feedback"
    return f"{FIRST_COUNTS}: one in this end counts where none was said"


def _unserved(role: str) -> NotFound:
    return NotFound(f"no policy serves the role {role!r}: a training makes its first one; /v1/models lists what serves")


def _not_found(error: Exception, param: str) -> NotFound:
    return NotFound(str(error), param=param, code="model_not_found")


def _headers(call: Call) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"x-ratchet-trajectory", call.asked.trajectory_id.encode()),
        (b"x-ratchet-turn", call.asked.turn_id.encode()),
        (b"x-ratchet-policy", call.assignment.policy.name.encode("latin-1", "replace")),
        (b"x-ratchet-arm", call.asked.policy.arm.encode()),
    ]
    return [*headers, (b"x-ratchet-cache", b"hit")] if call.cached else headers


def _problem(working: asyncio.Task[Answered]) -> HttpError | None:
    """What went wrong with a call that has ended, as the agent is told it."""
    error = working.exception()
    if error is None or isinstance(error, HttpError):
        return error
    log.error("call failed", exc_info=error)
    return internal_error()
