"""What happens on each route: find the policy, ask the engine, answer, record."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import uuid_utils

from ratchet.gateway import metrics
from ratchet.gateway.domain.capture import Answer, Asked, answer_of
from ratchet.gateway.domain.chat import ChatRequest, agent_body, check_trajectory_id, read_chat, upstream_body
from ratchet.gateway.domain.conversations import Conversation, Conversations, prefix_digests
from ratchet.gateway.domain.routes import assign, claim_of, pin
from ratchet.gateway.http_engine import HttpEngine, Reply
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.recorder import Recorder
from ratchet.kernel.asgi import HttpError, Request, Response, json_response, problem_response
from ratchet.kernel.contracts import Contracts
from ratchet.kernel.errors import InvalidMessage, NotFound
from ratchet.messages import Feedback, JsonObject, Message, TrajectoryEnd
from ratchet.messages.routing import Assignment, started_at
from ratchet.messages.turn import EngineInfo

TRAJECTORY, SESSION, AGENT = b"x-ratchet-trajectory", b"x-ratchet-session", b"x-ratchet-agent"


@dataclass(frozen=True)
class Gateway:
    """The handlers and what they need."""

    routes: Routes
    engine: HttpEngine
    engine_info: EngineInfo
    recorder: Recorder
    conversations: Conversations
    contracts: Contracts
    user_key: str | None
    now: Callable[[], datetime]

    async def chat(self, request: Request, trajectory: str | None) -> Response:
        """POST /v1/chat/completions"""
        chat = read_chat(request.json_object())
        conversation = self._conversation(request, trajectory)
        assignment = await self._assignment(chat, conversation)
        conversation.role = chat.model.role
        asked = self._asked(request, chat, conversation, assignment)
        headers = _headers(asked, assignment)
        started = time.perf_counter()
        try:
            reply = await self._ask(chat, assignment)
        except HttpError as problem:
            self._failed(conversation, asked, str(problem), started, problem.status)
            return problem_response(problem, headers)
        if reply.status != 200:
            self._failed(conversation, asked, _reason(reply), started, reply.status)
            return json_response(reply.body, reply.status, headers)
        try:
            answer = answer_of(reply.body)
            shown = agent_body(chat, reply.body)
        except (KeyError, IndexError, TypeError) as error:
            problem = HttpError(502, f"the engine's answer lacks {error}", code="engine_invalid")
            self._failed(conversation, asked, str(problem), started, 502)
            return problem_response(problem, headers)
        self._record(conversation, asked, answer, started, 200)
        return json_response(shown, headers=headers)

    async def models(self, _: Request, __: str | None) -> Response:
        """GET /v1/models"""
        listed: list[JsonObject] = []
        for role in self.routes.roles():
            route = self.routes.get(role)
            served = [route.stable, route.canary.policy if route.canary else None] if route else []
            names = [role, *(f"{role}@{policy.version}" for policy in served if policy)]
            listed += [{"id": name, "object": "model", "created": 0, "owned_by": "ratchet"} for name in names]
        return json_response({"object": "list", "data": listed})

    async def end(self, request: Request, trajectory: str | None) -> Response:
        """POST /v1/trajectories/{id}/end"""
        trajectory_id = check_trajectory_id(trajectory or "")
        body = request.json_object() if request.body else {}
        known = self.conversations.get(trajectory_id)
        said = {
            **body,
            "role": _role(body, known),
            "trajectory_id": trajectory_id,
            "timestamp": self.now(),
        }
        if "task" in said:
            said["task_context"] = said.pop("task")
        if known is not None:
            said["turns"] = known.published
        self._publish(TrajectoryEnd.TOPIC, said)
        return json_response({"trajectory_id": trajectory_id, "status": "ended"}, 202)

    async def feedback(self, request: Request, trajectory: str | None) -> Response:
        """POST /v1/feedback"""
        body = request.json_object()
        trajectory_id = str(body.get("trajectory_id") or trajectory or "")
        known = self.conversations.get(trajectory_id)
        said = {
            "feedback_id": new_id(),
            "at": self.now(),
            "source": "gateway",
            **body,
            "role": _role(body, known),
            "trajectory_id": trajectory_id,
        }
        message = self._publish(Feedback.TOPIC, said)
        return json_response({"feedback_id": message.event_id, "trajectory_id": trajectory_id}, 202)

    def _publish(self, topic: str, said: JsonObject) -> Message:
        """Check what an agent said by the strict view, and queue it. Raises `HttpError` 400 with path and reason."""
        try:
            message = self.contracts.check_strict_json(topic, msgspec.json.encode(said))
        except InvalidMessage as error:
            raise HttpError(400, str(error), param=error.path, code="invalid_message") from error
        self.recorder.event(message)
        return message

    def _conversation(self, request: Request, trajectory: str | None) -> Conversation:
        named = request.header(TRAJECTORY) or trajectory
        trajectory_id = check_trajectory_id(named) if named else new_id()
        return self.conversations.open(trajectory_id, started_at(trajectory_id) or self.now())

    async def _assignment(self, chat: ChatRequest, conversation: Conversation) -> Assignment:
        """Which policy answers. Raises `HttpError` 404 for a role or version that is not there."""
        role, version = chat.model.role, chat.model.version
        if version is not None:
            try:
                found = await self.routes.version(role, version)
            except NotFound as error:
                raise HttpError(404, str(error), param="model", code="model_not_found") from error
            if chat.model.digest not in {None, found.digest[:8]}:
                raise HttpError(404, f"{role}@{version} has another digest", param="model", code="model_not_found")
            return pin(found, conversation)
        route = self.routes.get(role)
        lapsed = self.routes.lapsed(role)
        metrics.LAPSED.labels(role).set(lapsed)
        assignment = assign(route, conversation, lapsed=lapsed) if route else None
        if assignment is None:
            raise HttpError(404, f"no policy serves the role {role!r}", param="model", code="model_not_found")
        return assignment

    def _asked(self, request: Request, chat: ChatRequest, conversation: Conversation, assignment: Assignment) -> Asked:
        parent = conversation.parent_of(prefix_digests(chat.messages))
        index = parent.index + 1 if parent else 0
        mixed = conversation.mixed
        return Asked(
            turn_id=new_id(),
            trajectory_id=conversation.trajectory_id,
            role=chat.model.role,
            at=self.now(),
            index=index,
            attempt=conversation.next_attempt(parent.turn_id if parent else None, index),
            parent=parent,
            messages=chat.messages,
            tools=chat.tools,
            sampling=chat.sampling,
            policy=claim_of(chat.model.role, assignment, mixed=mixed),
            engine=self.engine_info,
            request_digest=hashlib.sha256(request.body).hexdigest(),
            session_id=request.header(SESSION),
            agent_id=request.header(AGENT),
            user_ref=self._user_ref(chat.body.get("user")),
        )

    async def _ask(self, chat: ChatRequest, assignment: Assignment) -> Reply:
        """Ask the engine; load the policy first if a restart made it forget."""
        body = upstream_body(chat, assignment.policy.name)
        reply = await self.engine.chat(body)
        if not reply.is_unknown_model:
            return reply
        version = await self.routes.version(chat.model.role, assignment.policy.version)
        loaded = await self.engine.load(version.name, version.uri)
        if loaded.status != 200:
            raise HttpError(503, f"the engine cannot load {version.name}: {_reason(loaded)}", code="engine_unavailable")
        return await self.engine.chat(body)

    def _failed(self, conversation: Conversation, asked: Asked, reason: str, started: float, status: int) -> None:
        """A call the policy failed becomes a turn; one that the agent got wrong does not."""
        if status >= 500:
            self._record(conversation, asked, Answer(message=None, error=reason), started, status)
        else:
            metrics.CALLS.labels(f"{asked.role}@{asked.policy.version}", asked.policy.arm, str(status)).inc()

    def _record(self, conversation: Conversation, asked: Asked, answer: Answer, started: float, status: int) -> None:
        spent = time.perf_counter() - started
        metrics.CALLS.labels(f"{asked.role}@{asked.policy.version}", asked.policy.arm, str(status)).inc()
        metrics.LATENCY.labels(asked.role).observe(spent)
        self.recorder.turn(conversation, asked, answer, spent * 1000)

    def _user_ref(self, user: Any) -> str | None:
        """A keyed hash of the agent's `user`; nothing without a key."""
        if not isinstance(user, str) or self.user_key is None:
            return None
        return hmac.new(self.user_key.encode(), user.encode(), hashlib.sha256).hexdigest()


def new_id() -> str:
    """A UUIDv7: the time it carries decides which canary weight was in force."""
    return str(uuid_utils.uuid7())


def _role(body: JsonObject, known: Conversation | None) -> object:
    """The trajectory's role, as the agent says or as its calls showed. Raises `HttpError` 400 when nobody knows."""
    role = body.get("role") or (known.role if known else None)
    if role is None:
        raise HttpError(400, "say the role: this gateway has not seen a call of that trajectory", param="role")
    return role


def _headers(asked: Asked, assignment: Assignment) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-ratchet-trajectory", asked.trajectory_id.encode()),
        (b"x-ratchet-turn", asked.turn_id.encode()),
        (b"x-ratchet-policy", assignment.policy.name.encode()),
        (b"x-ratchet-arm", asked.policy.arm.encode()),
    ]


def _reason(reply: Reply) -> str:
    """The engine's own words, when it has some."""
    error = reply.body.get("error") if isinstance(reply.body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or f"the engine answered {reply.status}")
