"""An agent's call from its request to its answer, whole or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import structlog

from ratchet.bus.tasks import end
from ratchet.core.errors import RatchetError
from ratchet.core.service.asgi import Answer as HttpAnswer, EventStream, Headers, Request, Response
from ratchet.core.service.problems import HttpError, http_error, internal_error
from ratchet.dialects.answers import agent_body
from ratchet.dialects.api_dialect import ApiDialect
from ratchet.dialects.responses.answers import ResponseStream
from ratchet.dialects.responses.dialect import RESPONSES
from ratchet.dialects.streams import KEEP_ALIVE, UNREADABLE, PassedStream, Problem, ShownStream, TranslatedStream
from ratchet.gateway import metrics
from ratchet.gateway.answering import Answering
from ratchet.gateway.calls import Call, CallOpener
from ratchet.gateway.continuing import Continuing
from ratchet.gateway.engine_answers import Answer, Answered
from ratchet.gateway.engines.base import EngineError, EngineFailed, relayed_headers

log = structlog.get_logger()


@dataclass(frozen=True)
class Completions:
    """Both completion routes, with and without a stream."""

    calls: CallOpener
    answering: Answering
    continuing: Continuing
    keep_alive_s: float

    async def complete(self, dialect: ApiDialect, request: Request, trajectory: str | None) -> HttpAnswer:
        """POST of any API that answers calls; `trajectory`: the one that the path names."""
        try:
            call = await self.calls.open(dialect, request, trajectory)
        except RatchetError as error:
            return _problem_response(dialect, http_error(error))
        if call.request.stream:
            return await self._stream(call)
        try:
            answer = await self.answering.answer(call)
        except RatchetError as error:
            return _problem_response(dialect, http_error(error), call.headers)
        try:
            if isinstance(answer, Answered):
                answer = await self.answering.filtering.answer(call, answer)
            shown = _shown_body(call, answer)
            if dialect is RESPONSES and answer.dialect is not dialect:
                await self.continuing.keep(call.request, shown, call.owner)
        except (EngineFailed, *UNREADABLE) as error:
            failure = error if isinstance(error, EngineFailed) else _unreadable(error)
            self.answering.record_broken(call, answer, failure)
            return _problem_response(dialect, failure, call.headers)
        except asyncio.CancelledError:
            self.answering.record_cancelled(call, answer)
            raise
        self.answering.record_answer(call, answer)
        return Response(200, shown, [*call.headers, *relayed_headers(answer.headers)])

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
            return _problem_response(call.dialect, problem, call.headers)
        relayed = relayed_headers(working.result().headers) if working.done() else []
        return EventStream(self._events(call, working), [*call.headers, *relayed])

    async def _events(self, call: Call, working: asyncio.Task[Answer]) -> AsyncGenerator[bytes, None]:
        """Comments until the engine begins to answer, then its events as they come, or an error in their place.

        When the agent disconnects, the server closes the generator: it then ends the engine's call, and records the
        part of the answer that came.
        """
        metrics.STREAMS.inc()
        try:
            while not working.done():
                yield KEEP_ALIVE
                await asyncio.wait({working}, timeout=self.keep_alive_s)
            problem = _problem_of(working)
            if problem is not None:
                yield call.dialect.error_event(_problem(problem))
                return
            async with aclosing(self._shown(call, working.result())) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            metrics.STREAMS.dec()
            await self._abandon(call, working)

    async def _shown(self, call: Call, answer: Answer) -> AsyncGenerator[bytes, None]:
        """The answer's events as the agent gets them. Records the turn before the agent can make its next call."""
        shown: ShownStream
        if answer.dialect is call.dialect:
            shown = PassedStream(answer.request, call.dialect.error_event, of_policy=answer.of_policy)
        else:
            assert call.dialect.translation is not None  # noqa: S101 - the engine answered in the translation's dialect
            shown = TranslatedStream(call.dialect.translation.stream(call.request))
        parts = list[bytes]()
        checked = self.answering.filtering.stream(call)
        try:
            async with aclosing(answer.pieces()) as pieces:
                async for events in pieces:
                    parts.clear()
                    passed = events if checked is None else await checked.passed(events, last=answer.ended)
                    parts.extend(map(shown.feed, passed))
                    if answer.ended:
                        parts.append(shown.finish())
                        await self._keep(call, shown)
                        self.answering.record_answer(call, answer)
                    if piece := b"".join(parts):
                        parts.clear()
                        yield piece
            if checked is not None and (rest := await checked.passed([], last=True)):
                yield b"".join(map(shown.feed, rest))
        except (EngineFailed, *UNREADABLE) as error:
            if call.recorded:
                return
            failure = error if isinstance(error, EngineFailed) else _unreadable(error)
            self.answering.record_broken(call, answer, failure)
            yield b"".join(parts) + shown.fail(_problem(failure))
        if not call.recorded:  # a server that ends its stream without saying so
            tail = shown.finish()
            await self._keep(call, shown)
            self.answering.record_answer(call, answer)
            if tail:
                yield tail

    async def _keep(self, call: Call, shown: ShownStream) -> None:
        """Keep a response that the gateway made, before the agent can continue it."""
        if isinstance(shown, TranslatedStream) and isinstance(shown.translator, ResponseStream):
            response = shown.translator.response
            if response is not None and response["error"] is None:
                await self.continuing.keep(call.request, response, call.owner)

    async def _abandon(self, call: Call, working: asyncio.Task[Answer]) -> None:
        """End a call that is not recorded yet: its agent has disconnected."""
        await end(working)
        if not working.cancelled() and working.exception() is None:
            answer = working.result()
            await answer.close()
            if not call.recorded:
                self.answering.record_abandoned(call, answer)


def _shown_body(call: Call, answer: Answer) -> bytes:
    """A whole answer as the agent gets it. Raises `EngineFailed` where it cannot be read after all."""
    try:
        if answer.dialect is not call.dialect:
            assert call.dialect.translation is not None  # noqa: S101 - the engine answered in the translation's dialect
            return call.dialect.translation.answer(call.request, msgspec.json.decode(answer.raw))
        return agent_body(answer.request, answer.raw) if answer.of_policy else answer.raw
    except UNREADABLE as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> EngineFailed:
    message = f"the engine answered in a shape that cannot be shown ({type(error).__name__})"
    return EngineFailed(502, message, code="engine_invalid")


def _problem(error: HttpError) -> Problem:
    return Problem(error.status, error.body.error)


def _problem_response(dialect: ApiDialect, problem: HttpError, headers: Headers = ()) -> Response:
    """An error as the agent's API writes it: in the provider's own words where the provider speaks that API."""
    relayed = problem.relayed if isinstance(problem, EngineError) else None
    raw = relayed[1] if relayed is not None and relayed[0] == dialect.name else dialect.error(_problem(problem))
    return Response(problem.status, raw, [*headers, *problem.headers])


def _problem_of(working: asyncio.Task[Answer]) -> HttpError | None:
    """The error of a call that has ended, as the agent gets it."""
    error = working.exception()
    if error is None or isinstance(error, HttpError):
        return error
    log.error("call failed", exc_info=error)
    return internal_error()
