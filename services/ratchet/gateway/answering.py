"""Who answers a call: the policy, the cache in its place, stable after a canary that failed, then another server."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uuid_utils

from ratchet.gateway import metrics
from ratchet.gateway.domain.answer_cache import AnswerCache, cache_key
from ratchet.gateway.domain.calls import CallRequest
from ratchet.gateway.domain.capture import (
    CACHED,
    CANCELLED,
    CONSTRAINED,
    UNSEARCHABLE,
    Answer,
    Asked,
    cancelled,
    without_ids,
)
from ratchet.gateway.domain.conversations import Conversation
from ratchet.gateway.domain.forms import Form
from ratchet.gateway.domain.routes import claim_of, fall_back, lend
from ratchet.gateway.engines.base import Engine, EngineFailed
from ratchet.gateway.engines.openai import OpenAiEngine
from ratchet.gateway.engines.policies import PolicyEngine
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.recorder import Recorder
from ratchet.kernel.asgi import HttpError
from ratchet.messages.routing import Assignment
from ratchet.messages.turn import EngineInfo

CACHE = EngineInfo(name="cache")
OTHER_ROLES = "other"
"""Label of the roles that nobody has set up by name."""
WENT_AWAY = 499
"""Status under which calls are counted whose agent went away (nginx's number)."""


@dataclass(slots=True)
class Call:
    """One call on its way: who is asked changes while those before have failed."""

    form: Form
    request: CallRequest
    conversation: Conversation
    assignment: Assignment
    engine: Engine
    asked: Asked
    started: float
    cached: bool = False
    """The cache has answered."""


class Answering:
    """Asks one after the other until one answers, and records what became of the call."""

    def __init__(
        self,
        routes: Routes,
        policies: PolicyEngine,
        upstreams: Sequence[OpenAiEngine],
        cache: AnswerCache,
        recorder: Recorder,
    ) -> None:
        self._routes = routes
        self._upstreams = upstreams
        self._cache = cache
        self._recorder = recorder
        self.policies = policies

    def first_upstream(self, role: str, conversation: Conversation) -> tuple[OpenAiEngine, Assignment] | None:
        """Who answers for a role without a policy; None when nobody does."""
        return self._lent(role, conversation, None, self._upstreams)

    def lends_to(self, role: str) -> bool:
        """Whether another server answers for the role."""
        return any(upstream.policy_for(role) for upstream in self._upstreams)

    @property
    def upstream_roles(self) -> list[str]:
        """Roles for which another server answers, by name."""
        return sorted({role for upstream in self._upstreams for role in upstream.roles})

    async def answer(self, call: Call) -> tuple[Any, Answer]:
        """The answer's JSON and what it says; `record` it once the agent has it.

        A call that fails, or whose caller is cancelled, is recorded here. Raises `HttpError`.
        """
        try:
            while True:
                try:
                    return await self._ask(call)
                except EngineFailed as failure:
                    if not self._moved_on(call, failure):
                        self.record(call, Answer(message=None, error=str(failure)), failure.status)
                        raise
        except asyncio.CancelledError:
            self.record(call, cancelled(), WENT_AWAY)
            raise
        except HttpError as refusal:
            if refusal.status < 500 and not isinstance(
                refusal, EngineFailed
            ):  # the agent got it wrong: nothing that a policy did
                self._count(call.asked, refusal.status)
            raise

    def record(self, call: Call, answer: Answer, status: int) -> None:
        """The call becomes a turn."""
        spent = time.perf_counter() - call.started
        self._count(call.asked, status)
        metrics.LATENCY.labels(self._label(call.asked)).observe(spent)
        comparable = answer.barred not in {CACHED, CANCELLED}
        self._recorder.turn(call.conversation, call.asked, answer, spent * 1000 if comparable else None)

    async def _ask(self, call: Call) -> tuple[Any, Answer]:
        """From the cache, else from the engine. Raises `EngineFailed`, or `HttpError` for a request it refuses."""
        policy, key = call.assignment.policy, None
        if self._cache.takes(policy.digest, call.request.sampling):
            key = cache_key(policy.digest, call.form.path, call.form.upstream(call.request, policy.name))
            kept = self._cache.get(key)
            metrics.CACHE_LOOKUPS.labels("miss" if kept is None else "hit").inc()
            if kept is not None:
                call.cached, call.asked = True, dataclasses.replace(call.asked, engine=CACHE)
                return kept, dataclasses.replace(_said(call, kept), barred=CACHED)
        body = await call.engine.ask(call.form, call.request, policy)
        answer = _said(call, body)
        if key is not None:
            self._cache.put(key, body)
            metrics.CACHE_BYTES.set(self._cache.size)
        return body, answer

    def _moved_on(self, call: Call, failure: EngineFailed) -> bool:
        """Turn to the next one, after a turn of its own for the one that failed; False when nobody is left."""
        failed = call.asked
        following = self._next(call, failure)
        if following is None:
            return False
        engine, assignment = following
        self.record(_under_own_id(call, failed), Answer(message=None, error=str(failure)), failure.status)
        conversation, parent = call.conversation, failed.parent
        call.engine, call.assignment = engine, assignment
        call.started = time.perf_counter()
        call.asked = dataclasses.replace(
            failed,
            attempt=conversation.next_attempt(parent.turn_id if parent else None, failed.index),
            policy=claim_of(failed.role, assignment, mixed=conversation.mixed),
            engine=engine.info,
        )
        metrics.FALLBACKS.labels(self._label(failed), "stable" if engine is self.policies else engine.info.name).inc()
        return True

    def _next(self, call: Call, failure: EngineFailed) -> tuple[Engine, Assignment] | None:
        role, conversation, failed = call.asked.role, call.conversation, call.assignment
        if call.engine is self.policies and not failure.unreachable:
            stable = fall_back(self._routes.get(role), conversation, failed)
            if stable is not None:
                return self.policies, stable
        rest = list(self._upstreams)
        if call.engine in rest:
            rest = rest[rest.index(call.engine) + 1 :]  # pyright: ignore[reportArgumentType] - it is in the list
        return self._lent(role, conversation, failed, rest)

    @staticmethod
    def _lent(
        role: str, conversation: Conversation, failed: Assignment | None, upstreams: Sequence[OpenAiEngine]
    ) -> tuple[OpenAiEngine, Assignment] | None:
        for upstream in upstreams:
            policy = upstream.policy_for(role)
            assignment = lend(policy, conversation, failed) if policy else None
            if assignment is not None:
                return upstream, assignment
        return None

    def _label(self, asked: Asked) -> str:
        """The role as metrics name it: agents choose the roles that a `*` serves, and each name would cost memory."""
        known = asked.policy.digest or self._routes.get(asked.role) is not None or asked.role in self.upstream_roles
        return asked.role if known else OTHER_ROLES

    def _count(self, asked: Asked, status: int) -> None:
        metrics.CALLS.labels(f"{self._label(asked)}@{asked.policy.version}", asked.policy.arm, str(status)).inc()


def _said(call: Call, body: Any) -> Answer:
    """What an answer's JSON says. Raises `EngineFailed` when that is none."""
    try:
        answer = call.form.answer(body)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise EngineFailed(502, f"the engine's answer is none: {error!r}", code="engine_invalid") from error
    if not call.request.searchable:
        return without_ids(answer, UNSEARCHABLE)
    return dataclasses.replace(answer, barred=CONSTRAINED) if call.request.constrained else answer


def _under_own_id(call: Call, failed: Asked) -> Call:
    """The try that failed as a call of its own: the id that the agent was told belongs to the answer."""
    return dataclasses.replace(call, asked=dataclasses.replace(failed, turn_id=new_id()))


def new_id() -> str:
    """A UUIDv7: the time it carries decides which canary weight was in force."""
    return str(uuid_utils.uuid7())
