"""Has a call answered: by the cache, by the engine of its policy, or by those that come after a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from ratchet.core.contract.turn import BROKE, BY_AGENT, BY_GATEWAY, NO_MODEL, NOT_APPLIED, EngineInfo
from ratchet.core.errors import BadRequest, NotFound, Rejected
from ratchet.core.rules.capture import Reason
from ratchet.core.service.problems import HttpError, http_error
from ratchet.dialects.api_dialect import ENGINE_FIELDS
from ratchet.dialects.bundles import Applier
from ratchet.dialects.requests import CallRequest
from ratchet.dialects.streams import UNREADABLE
from ratchet.gateway import metrics
from ratchet.gateway.call_router import CallRouter, Choice
from ratchet.gateway.calls import ARM, Call, RequestReader, new_id
from ratchet.gateway.domain.identity import Identity
from ratchet.gateway.domain.past_calls import AnswerCache, cache_key
from ratchet.gateway.domain.prices import FREE, NO_PRICES, Prices
from ratchet.gateway.domain.routing import claim_of
from ratchet.gateway.domain.turns import CACHED, CANCELLED, policy_label
from ratchet.gateway.engine_answers import Answer, Answered, LiveAnswer, checked
from ratchet.gateway.engines.base import (
    EngineAnswer,
    EngineError,
    EngineFailed,
    EventReply,
    PolicyUnfit,
    request_id_of,
)
from ratchet.gateway.filtering import Filtering
from ratchet.gateway.recorder import Recorder
from ratchet.gateway.recorder_process import CallJob

CACHE = EngineInfo(name="cache")
RESPONSES = "responses"
"""The API whose answers have ids that a later call names."""
NO_TOOLS = (
    "{policy} takes no tools: its engine's chat template does not show them to it. Leave `tools` out, set "
    "`tool_choice` to `none`, or serve a policy of a base model whose template has a place for tools."
)
BUG = "the gateway failed on this call ({}); its log has the details"
CLIENT_CLOSED = 499
"""Metrics count calls whose agent disconnected under this status (nginx's number)."""


FAILURES: Sequence[tuple[type[Exception] | tuple[type[Exception], ...], Callable[[Any], HttpError]]] = (
    (HttpError, lambda error: error),
    ((Rejected, NotFound), http_error),
    (Exception, lambda error: HttpError(500, BUG.format(type(error).__name__))),
)
"""What a call fails of, and how its turn says so: an engine's failure or refusal, an upstream's, of which no policy has
failed but its run may die; what the engine's API has no equivalent for; a bug. `Any`: each takes its own kind."""


@dataclass(frozen=True)
class Answering:
    """Asks one engine after the other until one answers, and records what became of the call."""

    router: CallRouter
    cache: AnswerCache
    recorder: Recorder
    identity: Identity
    """Recognises the trajectories of calls; remembers what becomes of them."""
    reader: RequestReader
    """Changes requests by policies that are bundles, large ones beside the event loop."""
    logprob_modes: Mapping[str, str] = field(default_factory=dict[str, str])
    """By engine, which distribution it logs, where its answers do not name one."""
    prices: Prices = NO_PRICES
    limits: Mapping[str, str] = field(default_factory=dict[str, str])
    """By engine, the member of a chat that has the most tokens of an answer, for bundles that set it; else the newer
    `max_completion_tokens`."""
    filtering: Filtering = field(default_factory=Filtering)
    """Checks requests here, and answers where the agent is to get them."""

    async def answer(self, call: Call) -> Answer:
        """The answer, or a stream that has begun; the caller calls `record_answer` once the agent has it.

        Records a call that fails, or whose caller is cancelled, itself. Raises `HttpError`.
        """
        try:
            await self.filtering.request(call)
            while True:
                try:
                    return await self._ask(call)
                except EngineFailed as failure:
                    if not self._fall_back(call, failure):
                        raise
        except asyncio.CancelledError:
            self.record_cancelled(call)
            raise
        except Exception as error:  # the boundary: a call has a turn, whatever it met
            problem = next(problem_of(error) for kinds, problem_of in FAILURES if isinstance(error, kinds))
            self._record_failure(call, problem)
            self.identity.failed(call.recognised)  # no engine is asked any more: its retry may come
            if not isinstance(error, (Rejected, NotFound)):
                raise
            raise problem from error

    def record_answer(self, call: Call, answer: Answer) -> None:
        """The call becomes a turn with its answer; with `n` choices it becomes that many siblings."""
        answer.over()
        self.router.note_answer(call.arm.role, call.choice)
        self._remember(call, answer)
        barred = CACHED if call.cached else Reason.REDACTED if call.replaced else None
        for number in range(answer.choices):
            self._record(call, 200, answer, number=number, error=answer.error, barred=barred)
        call.recorded = True
        if call.cache_key is not None and not call.cached and answer.error is None and not call.arm.unrecorded:
            self._keep(call.cache_key, answer)

    def record_broken(self, call: Call, answer: Answer, failure: EngineFailed) -> None:
        """The call becomes a turn with the part of the answer that came, and the error that ended it; with `n` choices
        that many siblings, each with its part."""
        answer.over(failure if failure.fault is not None else None)
        for number in range(answer.choices):
            self._record(call, failure.status, answer, number=number, error=failure)
        call.recorded = True
        self.identity.failed(call.recognised)

    def record_cancelled(self, call: Call, answer: Answer | None = None) -> None:
        """The call becomes a turn whose answer the agent did not wait for, with the part that it got, or as many as
        `record_broken` makes: its latency is a lower bound."""
        for number in range(answer.choices if answer else 1):
            self._record(call, CLIENT_CLOSED, answer, number=number, barred=CANCELLED)
        call.recorded = True
        self.identity.failed(call.recognised)

    def record_abandoned(self, call: Call, answer: Answer) -> None:
        """The agent has left a stream: some do once the answer is whole, before the engine has said that nothing
        follows."""
        if isinstance(answer, LiveAnswer) and answer.error is None and answer.is_whole():
            self.record_answer(call, answer)
        else:
            self.record_cancelled(call, answer)

    def _remember(self, call: Call, answer: Answer) -> None:
        """Let the next call of an agent that names no trajectory be recognised by this answer."""
        if call.recognised.is_named:
            return
        with suppress(*UNREADABLE):  # what cannot be read here is not recognised again; the agent has it all the same
            response_id = None  # as the agent has it
            if call.dialect.name == RESPONSES:
                made = answer.dialect is not call.dialect
                response_id = call.request.answer_id if made else answer.whole().get("id")
            for number in range(answer.choices):
                message = answer.message(number)
                prompt = partial(call.request.messages_of, number)
                self.identity.answered(call.recognised, call.header.turn_id, prompt, message, response_id)

    def _record_failure(self, call: Call, failure: HttpError) -> None:
        if isinstance(failure, EngineError):
            _name_replica(call, failure.replica)
        self._record(call, failure.status, error=failure)

    def _record(
        self,
        call: Call,
        status: int,
        answer: Answer | None = None,
        *,
        number: int = 0,
        error: HttpError | str | None = None,
        barred: Reason | None = None,
    ) -> None:
        spent = time.perf_counter() - call.started
        header = call.header
        if number:
            header = msgspec.structs.replace(header, turn_id=new_id())
        else:
            metrics.series(metrics.CALLS, policy_label(header), header.policy.arm, str(status)).inc()
            metrics.series(metrics.LATENCY, header.policy.role, policy_label(header)).observe(spent)
        begun_s = answer.begun_s if answer else None
        failure = error if isinstance(error, HttpError) else None
        engine, served = call.choice.engine.info.name, call.choice.served.name
        fault = _fault_of(error, call.choice) if isinstance(error, EngineFailed) else None
        if isinstance(error, str):  # the engine's own words within a stream that had begun
            fault = BROKE
        if fault is not None:
            header = msgspec.structs.replace(header, engine=msgspec.structs.replace(header.engine, fault=fault))
        job = CallJob(
            header=msgspec.structs.replace(header, turns=call.arm.turns),
            dialect=call.dialect.name,
            request=call.sent,
            asked=msgspec.json.encode(call.asked.fields) if call.asked is not None else None,
            answer=answer.raw if answer else b"",
            answer_dialect=answer.dialect.name if answer else None,
            kept=answer is None or answer.kept,
            streamed=answer is not None and answer.streamed,
            choice=number,
            latency_ms=None if barred == CACHED else spent * 1000,
            first_token_ms=(begun_s - call.started) * 1000 if begun_s is not None else None,
            error=None if error is None else str(error),
            barred=barred,
            logprob_mode=self.logprob_modes.get(engine),
            price=FREE if call.cached else self.prices.price_of(engine, served.removeprefix(f"{engine}:")),
            request_id=request_id_of(answer.headers if answer else failure.headers if failure else ()),
        )
        self.recorder.record_call(call.arm, job)

    async def _ask(self, call: Call) -> Answer:
        """From the cache, else from the engine."""
        engine, assignment, served, *_ = call.choice
        asked = await self._changed(call)
        if self.router.takes_no_tools(engine, call.arm.role, assignment.policy) and asked.may_call_tools:
            message = NO_TOOLS.format(policy=assignment.policy.name)
            raise BadRequest(message, param="tools", code="unsupported_parameter")
        call.cache_key = None
        if self.cache.may_serve(served.digest, asked.sampling):
            dialect, request = call.dialect, asked
            if dialect.translation is not None:
                dialect, request = dialect.translation.to, dialect.translation.request(request)
            call.cache_key = cache_key(served.digest, dialect.path, ENGINE_FIELDS[dialect.name](request, served.name))
            cached = self.cache.get_value(call.cache_key)
            metrics.CACHE_LOOKUPS.labels("miss" if cached is None else "hit").inc()
            if cached is not None:
                call.cached, call.header = True, msgspec.structs.replace(call.header, engine=CACHE)
                return Answered(dialect, request, cached, of_policy=True)
        if self.router.serves_policies(engine):
            asked = msgspec.structs.replace(asked, headers=[*asked.headers, (ARM, assignment.arm.encode())])
        answer = await engine.ask(call.dialect, asked, served, call.arm.role)
        _name_replica(call, answer.reply.replica)
        if isinstance(answer.reply, EventReply):
            return await self._begun(answer, answer.reply)
        return checked(engine.info.name, answer, answer.reply)

    async def _changed(self, call: Call) -> CallRequest:
        """The request as the engine gets it. Raises `PolicyUnfit` where the policy cannot be applied to it."""
        bundle, call.asked, policy = call.choice.bundle, call.passed, call.choice.assignment.policy
        if bundle is None:
            return call.passed or call.request
        applied_by = BY_GATEWAY
        if call.arm.fetched or call.composed_by is not None:
            bundle, applied_by = bundle.without_texts, BY_AGENT if call.composed_by == policy.digest else NOT_APPLIED
        limit = self.limits.get(call.choice.engine.info.name)
        try:
            call.asked = await self.reader.apply(partial(_applied, bundle, call, limit), call.sent)
        except BadRequest as error:
            message = f"{policy.name} cannot answer this call: {error}"
            raise PolicyUnfit(400, message, code="policy_unfit") from error
        call.header = msgspec.structs.replace(call.header, applied_by=applied_by)
        return call.asked

    def _keep(self, key: bytes, answer: Answer) -> None:
        """Put a whole answer into the cache; a stream as the answer that it is."""
        raw = answer.raw
        if isinstance(answer, LiveAnswer):
            if not answer.kept or not answer.is_whole():
                return
            raw = msgspec.json.encode(answer.whole())
        self.cache.put_answer(key, raw)
        metrics.CACHE_BYTES.set(self.cache.size)

    async def _begun(self, answer: EngineAnswer, reply: EventReply) -> LiveAnswer:
        live = LiveAnswer(answer.dialect, answer.request, reply, answer.of_policy, self.recorder.streams)
        try:
            await live.begin()
        except EngineFailed as failure:
            live.over(failure)
            await live.close()
            raise
        except BaseException:  # whatever happens: the engine must not work on
            await live.close()
            raise
        return live

    def _fall_back(self, call: Call, failure: EngineFailed) -> bool:
        """Record the failure as a turn of its own and turn to the next engine; False when no one is left."""
        failed = call.header
        following = self.router.fall_back(call.arm, call.choice, failure)
        if following is None:
            return False
        call.header = msgspec.structs.replace(failed, turn_id=new_id())  # the agent knows the other id as its answer's
        self._record_failure(call, failure)
        call.choice, engine = following, following.engine
        call.started = time.perf_counter()
        policy = claim_of(failed.role, following.assignment, mixed=call.arm.mixed)
        call.header = msgspec.structs.replace(failed, policy=policy, engine=engine.info, applied_by=None)
        to = "stable" if self.router.serves_policies(engine) else engine.info.name
        metrics.FALLBACKS.labels(failed.role, to).inc()
        return True


def _applied(bundle: Applier, call: Call, limit: str | None, _: bytes) -> CallRequest:
    return bundle.apply(call.dialect, call.passed or call.request, limit=limit)


def _fault_of(failure: EngineFailed, choice: Choice) -> str | None:
    """What the engine did wrong. A model that the server lacks says something of the policy that names it, alone."""
    named = choice.bundle is not None and choice.bundle.bundle.model is not None
    return NO_MODEL if failure.lacks_model and named else failure.fault


def _name_replica(call: Call, replica: str | None) -> None:
    if replica is not None:
        engine = msgspec.structs.replace(call.choice.engine.info, replica=replica)
        call.header = msgspec.structs.replace(call.header, engine=engine)
