"""An agent's call: decode the request, choose who answers, have it answered, send the answer, record the turn."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import hmac
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from ratchet.bus.tasks import end
from ratchet.errors import NotFound
from ratchet.gateway import metrics
from ratchet.gateway.answering import Answered, Answering, Call, new_id
from ratchet.gateway.call_router import CallRouter
from ratchet.gateway.domain.answers import KEEP_ALIVE, agent_body, event_of
from ratchet.gateway.domain.forms import Form
from ratchet.gateway.domain.requests import check_trajectory_id
from ratchet.gateway.domain.routing import Arms, claim_of
from ratchet.gateway.domain.turns import TurnHeader
from ratchet.service.asgi import Answer as HttpAnswer, EventStream, Request, json_response, problem_response
from ratchet.service.problems import HttpError, internal_error

log = structlog.get_logger()

TRAJECTORY, SESSION, AGENT = b"x-ratchet-trajectory", b"x-ratchet-session", b"x-ratchet-agent"


@dataclass(frozen=True)
class Completions:
    """Both completion routes, with and without a stream."""

    router: CallRouter
    answering: Answering
    arms: Arms
    user_key: str | None
    """Key of the hash that turns `user` into `user_ref`."""
    keep_alive_s: float
    now: Callable[[], datetime]

    async def complete(self, form: Form, request: Request, trajectory: str | None) -> HttpAnswer:
        """POST /v1/chat/completions and /v1/completions; `trajectory`: the one that the path names."""
        call = await self._open(form, request, trajectory)
        if call.request.stream:
            return await self._stream(call)
        try:
            answered = await self.answering.answer(call)
        except HttpError as problem:
            return problem_response(problem, _headers(call))
        response = json_response(agent_body(call.request, answered.body), headers=_headers(call))
        self.answering.record_answer(call, answered)
        return response

    async def _open(self, form: Form, request: Request, trajectory: str | None) -> Call:
        """Decode the request and choose who answers. A call that no engine can answer leaves no trace here.

        Raises `BadRequest`, `NotFound`, or `Unavailable` when the gateway cannot look up a named version.
        """
        asked = form.read(request.json_object())
        try:
            model, version = await self.router.resolve(asked.model)
            asked = dataclasses.replace(asked, model=model)
            named = request.header(TRAJECTORY) or trajectory
            trajectory_id = check_trajectory_id(named) if named else new_id()
            arm = self.arms.open(trajectory_id, model.role)
            engine, assignment = self.router.assign(arm, version)
        except NotFound as error:
            raise NotFound(str(error), param=asked.named_by, code="model_not_found") from error
        user, user_ref = asked.body.get("user"), None
        if isinstance(user, str) and self.user_key is not None:
            user_ref = hmac.new(self.user_key.encode(), user.encode(), hashlib.sha256).hexdigest()
        header = TurnHeader(
            turn_id=new_id(),
            trajectory_id=trajectory_id,
            role=arm.role,
            at=self.now(),
            policy=claim_of(arm.role, assignment, mixed=arm.mixed),
            engine=engine.info,
            turns=arm.turns,
            session_id=request.header(SESSION),
            agent_id=request.header(AGENT),
            user_ref=user_ref,
        )
        return Call(form, asked, request.body, arm, assignment, engine, header, time.perf_counter())

    async def _stream(self, call: Call) -> HttpAnswer:
        """A stream begins with the answer, or after `keep_alive_s` without one; from then on it can have no status."""
        working = asyncio.create_task(self.answering.answer(call))
        try:
            await asyncio.wait({working}, timeout=self.keep_alive_s)
        except asyncio.CancelledError:
            await self._abandon(call, working)
            raise
        problem = _problem_of(working) if working.done() else None
        if problem is not None:
            return problem_response(problem, _headers(call))
        return EventStream(self._events(call, working), _headers(call))

    async def _events(self, call: Call, working: asyncio.Task[Answered]) -> AsyncGenerator[bytes, None]:
        """Comments while the engine works, then the whole answer in chunks, or an error in their place.

        When the agent disconnects, the server closes the generator: it then cancels the engine's call, or records that
        the answer was not received. It records the turn before the agent can make its next call.
        """
        received = False
        metrics.STREAMS.inc()
        try:
            while not working.done():
                yield KEEP_ALIVE
                await asyncio.wait({working}, timeout=self.keep_alive_s)
            problem = _problem_of(working)
            if problem is not None:
                yield event_of(problem.body)
                return
            answered = working.result()
            *begun, last = call.form.stream(call.request, agent_body(call.request, answered.body))
            for event in begun:
                yield event
            received = True
            self.answering.record_answer(call, answered)
            yield last
        finally:
            metrics.STREAMS.dec()
            if not received:
                await self._abandon(call, working)

    async def _abandon(self, call: Call, working: asyncio.Task[Answered]) -> None:
        """End a call whose agent has disconnected: `answer` records that, unless there was an answer already."""
        await end(working)
        if not working.cancelled() and working.exception() is None:
            self.answering.record_cancelled(call)


def _headers(call: Call) -> list[tuple[bytes, bytes]]:
    headers = [
        (TRAJECTORY, call.header.trajectory_id.encode()),
        (b"x-ratchet-turn", call.header.turn_id.encode()),
        (b"x-ratchet-policy", call.assignment.policy.name.encode("latin-1", "replace")),
        (b"x-ratchet-arm", call.header.policy.arm.encode()),
    ]
    return [*headers, (b"x-ratchet-cache", b"hit")] if call.cached else headers


def _problem_of(working: asyncio.Task[Answered]) -> HttpError | None:
    """The error of a call that has ended, as the agent gets it."""
    error = working.exception()
    if error is None or isinstance(error, HttpError):
        return error
    log.error("call failed", exc_info=error)
    return internal_error()
