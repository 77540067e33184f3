"""Has a call answered: by the cache, by the engine of its policy, or by those that come after a failure."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import uuid_utils

from ratchet.contract.turn import EngineInfo
from ratchet.gateway import metrics
from ratchet.gateway.call_router import CallRouter
from ratchet.gateway.domain.forms import Form
from ratchet.gateway.domain.memory import AnswerCache, cache_key
from ratchet.gateway.domain.requests import CallRequest
from ratchet.gateway.domain.routing import Arm, claim_of
from ratchet.gateway.domain.turns import CACHED, CANCELLED, TurnHeader
from ratchet.gateway.engines.base import CallRefused, Engine, EngineFailed
from ratchet.gateway.recorder import Recorder
from ratchet.gateway.recorder_process import CallJob
from ratchet.rules.arms import Assignment
from ratchet.service.asgi import check_numbers
from ratchet.service.problems import HttpError

CACHE = EngineInfo(name="cache")
CLIENT_CLOSED = 499
"""Metrics count calls whose agent disconnected under this status (nginx's number)."""


@dataclass(slots=True)
class Call:
    """One call on its way; assignment, engine and header change when a fallback takes over."""

    form: Form
    request: CallRequest
    sent: bytes
    """The request as the agent sent it."""
    arm: Arm
    assignment: Assignment
    engine: Engine
    header: TurnHeader
    started: float
    cached: bool = False
    """The cache has answered."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of an engine, or of the cache in its place. `Any`: it is JSON from another process."""

    body: Any
    raw: bytes
    """The body as it came."""


class Answering:
    """Asks one engine after the other until one answers, and records what became of the call."""

    def __init__(
        self, router: CallRouter, cache: AnswerCache, recorder: Recorder, logprob_mode: str | None = None
    ) -> None:
        """`logprob_mode`: which distribution the policies' engine logs, where its answers do not name one."""
        self._router = router
        self._cache = cache
        self._recorder = recorder
        self._logprob_mode = logprob_mode

    async def answer(self, call: Call) -> Answered:
        """The answer; the caller calls `record_answer` once the agent has it.

        Records a call that fails, or whose caller is cancelled, itself. Raises `HttpError`.
        """
        try:
            while True:
                try:
                    return await self._ask(call)
                except EngineFailed as failure:
                    if not self._fall_back(call, failure):
                        self._record_failure(call, failure)
                        raise
        except asyncio.CancelledError:
            self.record_cancelled(call)
            raise
        except CallRefused as refusal:
            self._record_failure(call, refusal)
            raise
        except EngineFailed:
            raise
        except HttpError as refusal:  # an upstream's, or a lack of connections here: no policy has failed
            self._count(call.header, refusal.status)
            raise
        except Exception as error:  # the boundary: a call has a turn, whatever bug it met
            message = f"the gateway failed on this call ({type(error).__name__}); its log has the details"
            self._record_failure(call, HttpError(500, message))
            raise

    def record_answer(self, call: Call, answered: Answered) -> None:
        """The call becomes a turn with its answer."""
        self._record(call, 200, answer=answered.raw, barred=CACHED if call.cached else None)

    def record_cancelled(self, call: Call) -> None:
        """The call becomes a turn whose answer the agent did not wait for: its latency is a lower bound."""
        self._record(call, CLIENT_CLOSED, barred=CANCELLED)

    def _record_failure(self, call: Call, failure: HttpError) -> None:
        self._record(call, failure.status, error=str(failure))

    def _record(
        self, call: Call, status: int, *, answer: bytes = b"", error: str | None = None, barred: str | None = None
    ) -> None:
        spent = time.perf_counter() - call.started
        self._count(call.header, status)
        metrics.LATENCY.labels(self._router.label(call.header.policy)).observe(spent)
        job = CallJob(
            header=msgspec.structs.replace(call.header, turns=call.arm.turns),
            form=call.form.path,
            request=call.sent,
            answer=answer,
            latency_ms=None if barred == CACHED else spent * 1000,
            error=error,
            barred=barred,
            logprob_mode=self._logprob_mode if call.engine is self._router.policies else None,
        )
        self._recorder.record_call(call.arm, job)

    async def _ask(self, call: Call) -> Answered:
        """From the cache, else from the engine. Raises `EngineFailed`, or `HttpError` for a request that it refuses."""
        policy, key = call.assignment.policy, None
        if self._cache.may_serve(policy.digest, call.request.sampling):
            key = cache_key(policy.digest, call.form.path, call.form.engine_body(call.request, policy.name))
            cached = self._cache.get_answer(key)
            metrics.CACHE_LOOKUPS.labels("miss" if cached is None else "hit").inc()
            if cached is not None:
                call.cached, call.header = True, msgspec.structs.replace(call.header, engine=CACHE)
                return Answered(msgspec.json.decode(cached), cached)
        reply = await call.engine.ask(call.form, call.request, policy)
        raw = reply.raw or msgspec.json.encode(reply.body)
        try:
            call.form.answer(reply.body)
            check_numbers(raw, reply.body)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
            message = f"{call.engine.info.name} answered in a shape that is not OpenAI's ({type(error).__name__})"
            raise EngineFailed(502, message, code="engine_invalid") from error
        if key is not None:
            self._cache.put_answer(key, raw)
            metrics.CACHE_BYTES.set(self._cache.size)
        return Answered(reply.body, raw)

    def _fall_back(self, call: Call, failure: EngineFailed) -> bool:
        """Record the failure as a turn of its own and turn to the next engine; False when no one is left."""
        failed = call.header
        following = self._router.fall_back(call.arm, call.engine, call.assignment, unreachable=failure.unreachable)
        if following is None:
            return False
        call.header = msgspec.structs.replace(failed, turn_id=new_id())  # the agent knows the other id as its answer's
        self._record_failure(call, failure)
        call.engine, call.assignment = following
        call.started = time.perf_counter()
        policy = claim_of(failed.role, call.assignment, mixed=call.arm.mixed)
        call.header = msgspec.structs.replace(failed, policy=policy, engine=call.engine.info)
        to = "stable" if call.engine is self._router.policies else call.engine.info.name
        metrics.FALLBACKS.labels(self._router.label(failed.policy), to).inc()
        return True

    def _count(self, header: TurnHeader, status: int) -> None:
        policy = header.policy
        metrics.CALLS.labels(f"{self._router.label(policy)}@{policy.version}", policy.arm, str(status)).inc()


def new_id() -> str:
    """A UUIDv7: its time decides which canary weight was in force."""
    return str(uuid_utils.uuid7())
