"""Who answers a call: the policy, the cache in its place, stable after a canary that failed, then another server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import uuid_utils

from ratchet.contract.turn import EngineInfo
from ratchet.gateway import metrics
from ratchet.gateway.domain.answer_cache import AnswerCache, cache_key
from ratchet.gateway.domain.arms import Arm
from ratchet.gateway.domain.calls import CallRequest
from ratchet.gateway.domain.capture import CACHED, CANCELLED, Asked
from ratchet.gateway.domain.forms import Form
from ratchet.gateway.domain.routes import claim_of, fall_back, lend
from ratchet.gateway.engines.base import CallRefused, Engine, EngineFailed, Upstream
from ratchet.gateway.engines.policies import PolicyEngine
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.recorder import Recorder
from ratchet.gateway.recording import CallJob
from ratchet.rules.arms import Assignment
from ratchet.service.asgi import check_numbers
from ratchet.service.problems import HttpError

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
    sent: bytes
    """The request as the agent sent it."""
    arm: Arm
    assignment: Assignment
    engine: Engine
    asked: Asked
    started: float
    cached: bool = False
    """The cache has answered."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What an engine, or the cache in its place, has answered. `Any`: it is JSON from another process."""

    body: Any
    raw: bytes
    """The body as it came."""


class Answering:
    """Asks one after the other until one answers, and records what became of the call."""

    def __init__(
        self,
        routes: Routes,
        policies: PolicyEngine,
        upstreams: Sequence[Upstream],
        cache: AnswerCache,
        recorder: Recorder,
        logprob_mode: str | None = None,
    ) -> None:
        """`logprob_mode`: what the log-probabilities of the policies' engine are of, where its answers do not say."""
        self._routes = routes
        self._logprob_mode = logprob_mode
        self._upstreams = upstreams
        self._cache = cache
        self._recorder = recorder
        self.policies = policies

    def first_upstream(self, arm: Arm) -> tuple[Upstream, Assignment] | None:
        """Who answers for a role without a policy; None when nobody does."""
        return self._lent(arm, None, self._upstreams)

    def lends_to(self, role: str) -> bool:
        """Whether another server answers for the role."""
        return any(upstream.policy_for(role) for upstream in self._upstreams)

    @property
    def upstream_roles(self) -> list[str]:
        """Roles for which another server answers, by name."""
        return sorted({role for upstream in self._upstreams for role in upstream.roles})

    async def answer(self, call: Call) -> Answered:
        """The answer; `record` it once the agent has it.

        A call that fails, or whose caller is cancelled, is recorded here. Raises `HttpError`.
        """
        try:
            while True:
                try:
                    return await self._ask(call)
                except EngineFailed as failure:
                    if not self._moved_on(call, failure):
                        self._failed(call, failure)
                        raise
        except asyncio.CancelledError:
            self.gone(call)
            raise
        except CallRefused as refusal:
            self._failed(call, refusal)
            raise
        except EngineFailed:
            raise
        except HttpError as refusal:  # another server's, or our own want of connections: nothing that a policy did
            self._count(call.asked, refusal.status)
            raise
        except Exception as error:  # the boundary: whatever broke, the call is in no answer's way and has a turn
            self._failed(call, HttpError(500, f"the call broke: {type(error).__name__}"))
            raise

    def record(self, call: Call, answered: Answered) -> None:
        """The call becomes a turn with its answer."""
        self._record(call, 200, answer=answered.raw, barred=CACHED if call.cached else None)

    def gone(self, call: Call) -> None:
        """The call becomes a turn of which nobody took the answer: its latency is the least that it may have been."""
        self._record(call, WENT_AWAY, barred=CANCELLED)

    def _failed(self, call: Call, failure: HttpError) -> None:
        self._record(call, failure.status, error=str(failure))

    def _record(
        self, call: Call, status: int, *, answer: bytes = b"", error: str | None = None, barred: str | None = None
    ) -> None:
        spent = time.perf_counter() - call.started
        self._count(call.asked, status)
        metrics.LATENCY.labels(self._label(call.asked)).observe(spent)
        job = CallJob(
            asked=msgspec.structs.replace(call.asked, turns=call.arm.turns),
            form=call.form.path,
            request=call.sent,
            answer=answer,
            latency_ms=None if barred == CACHED else spent * 1000,
            error=error,
            barred=barred,
            logprob_mode=self._logprob_mode if call.engine is self.policies else None,
        )
        self._recorder.call(call.arm, job)

    async def _ask(self, call: Call) -> Answered:
        """From the cache, else from the engine. Raises `EngineFailed`, or `HttpError` for a request it refuses."""
        policy, key = call.assignment.policy, None
        if self._cache.takes(policy.digest, call.request.sampling):
            key = cache_key(policy.digest, call.form.path, call.form.upstream(call.request, policy.name))
            kept = self._cache.get(key)
            metrics.CACHE_LOOKUPS.labels("miss" if kept is None else "hit").inc()
            if kept is not None:
                call.cached, call.asked = True, msgspec.structs.replace(call.asked, engine=CACHE)
                return Answered(msgspec.json.decode(kept), kept)
        reply = await call.engine.ask(call.form, call.request, policy)
        raw = reply.raw or msgspec.json.encode(reply.body)
        _check(call, reply.body, raw)
        if key is not None:
            self._cache.put(key, raw)
            metrics.CACHE_BYTES.set(self._cache.size)
        return Answered(reply.body, raw)

    def _moved_on(self, call: Call, failure: EngineFailed) -> bool:
        """Turn to the next one, after a turn of its own for the one that failed; False when nobody is left."""
        failed = call.asked
        following = self._next(call, failure)
        if following is None:
            return False
        engine, assignment = following
        call.asked = msgspec.structs.replace(failed, turn_id=new_id())  # the id that the agent was told is the answer's
        self._failed(call, failure)
        call.engine, call.assignment = engine, assignment
        call.started = time.perf_counter()
        policy = claim_of(failed.role, assignment, mixed=call.arm.mixed)
        call.asked = msgspec.structs.replace(failed, policy=policy, engine=engine.info)
        metrics.FALLBACKS.labels(self._label(failed), "stable" if engine is self.policies else engine.info.name).inc()
        return True

    def _next(self, call: Call, failure: EngineFailed) -> tuple[Engine, Assignment] | None:
        arm, failed = call.arm, call.assignment
        if call.engine is self.policies and not failure.unreachable:
            stable = fall_back(self._routes.get(arm.role), arm, failed)
            if stable is not None:
                return self.policies, stable
        rest = list(self._upstreams)
        if call.engine in rest:
            rest = rest[rest.index(call.engine) + 1 :]  # pyright: ignore[reportArgumentType] - it is in the list
        return self._lent(arm, failed, rest)

    @staticmethod
    def _lent(arm: Arm, failed: Assignment | None, upstreams: Sequence[Upstream]) -> tuple[Upstream, Assignment] | None:
        for upstream in upstreams:
            policy = upstream.policy_for(arm.role)
            assignment = lend(policy, arm, failed) if policy else None
            if assignment is not None:
                return upstream, assignment
        return None

    def _label(self, asked: Asked) -> str:
        """The role as metrics name it: agents choose the roles that a `*` serves, and each name would cost memory."""
        known = asked.policy.digest or self._routes.get(asked.role) is not None or asked.role in self.upstream_roles
        return asked.role if known else OTHER_ROLES

    def _count(self, asked: Asked, status: int) -> None:
        metrics.CALLS.labels(f"{self._label(asked)}@{asked.policy.version}", asked.policy.arm, str(status)).inc()


def _check(call: Call, body: Any, raw: bytes) -> None:
    """Raises `EngineFailed` for what is no answer, or none that can be handed on."""
    try:
        call.form.answer(body)
        check_numbers(raw, body)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        message = f"the engine's answer is none: {type(error).__name__}"
        raise EngineFailed(502, message, code="engine_invalid") from error


def new_id() -> str:
    """A UUIDv7: the time it carries decides which canary weight was in force."""
    return str(uuid_utils.uuid7())
