"""A call to an engine of several replicas: which failures send it to another one, and which do not."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from ratchet.core.rules.engines import POLICY_REFUSED
from ratchet.core.service.asgi import Headers
from ratchet.core.service.problems import HttpError
from ratchet.dialects.api_dialect import CHAT
from ratchet.gateway.domain.replicas import AGAIN_S, FAILED_CHECKS, FAILURES, QUIET_S, Health, Replica
from ratchet.gateway.engines.base import EngineFailed, EventReply, Reply
from ratchet.gateway.engines.replicas import COMMENTS, SENDS, Replicas

CHUNK = b'data: {"choices": [{"delta": {"content": "hi"}}]}'
COMMENT = b": ping"
Answer = Reply | list[bytes] | Exception | None
"""A whole answer, the events of a stream, a failure, or none at all."""


def refused() -> EngineFailed:
    return EngineFailed(502, "no connection", code="engine_unavailable", unreachable=True)


def broken() -> EngineFailed:
    return EngineFailed(502, "broken off", code="engine_unavailable", broken_off=True)


def too_slow() -> EngineFailed:
    return EngineFailed(504, "too slow", code="engine_timeout")


@dataclass
class Scripted:
    """A replica that answers what a test says; `then` ends its streams."""

    answer: Answer = None
    then: Exception | None = None
    after_s: float = 0.0
    """How long it takes."""
    health: Health = Health.WELL
    asked: int = 0
    checks: int = 0
    closed: int = 0
    """Streams that were closed, or ended."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, path: str, body: bytes, headers: Headers = ()) -> Reply:
        reply = await self.stream(path, body, headers)
        assert isinstance(reply, Reply)
        return reply

    async def stream(self, path: str, body: bytes, headers: Headers = ()) -> Reply | EventReply:
        self.asked += 1
        self.reached.set()
        if self.answer is None:
            await asyncio.Event().wait()
        if self.after_s:
            await asyncio.sleep(self.after_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, Reply):
            return self.answer
        return EventReply(self._events(list(self.answer or ())))

    async def _events(self, events: list[bytes]) -> AsyncGenerator[list[bytes], None]:
        try:
            for event in events:
                yield [event]
            if self.then is not None:
                raise self.then
        finally:
            self.closed += 1

    async def check_health(self) -> Health:
        self.checks += 1
        return self.health


@dataclass
class Engine:
    """An engine with a clock that a test moves."""

    replicas: list[Scripted]
    answer_s: float = 60.0
    now_s: float = 0.0

    def __post_init__(self) -> None:
        transports = {f"r{n}": one for n, one in enumerate(self.replicas)}
        self.front = Replicas("engine", transports, self.answer_s, now_s=lambda: self.now_s, draw=lambda: 0.5)

    async def post(self, near: str = "") -> Reply:
        return await self.front.post("/v1/chat/completions", b"{}", near=near, dialect=CHAT)

    async def stream(self, near: str = "", *, whole: bool = True) -> list[bytes]:
        """All events of a stream; `whole`: what its reader makes of it. Raises as it does."""
        reply = await self.front.stream("/v1/chat/completions", b"{}", near=near, dialect=CHAT)
        assert isinstance(reply, EventReply)
        try:
            events = [event async for events in reply.events for event in events]
            reply.over(None if whole else broken())
            return events
        finally:
            await reply.events.aclose()

    @property
    def asked(self) -> list[int]:
        return [one.asked for one in self.replicas]

    @property
    def known(self) -> Sequence[Replica]:
        """What the gateway knows of them."""
        return self.front._set.all  # pyright: ignore[reportPrivateUsage]

    @property
    def outstanding(self) -> list[int]:
        return [one.outstanding for one in self.known]


WELL = Reply(200, b'{"choices": [{"message": {"role": "assistant", "content": "hi"}}]}')


async def every(engine: Engine, calls: int = 12) -> list[int]:
    """The statuses of some calls, which meet every replica first."""
    return [(await engine.post(f"trajectory-{number}")).status for number in range(calls)]


@pytest.mark.parametrize(
    "failure", [refused(), broken(), *(Reply(status, b"") for status in (408, 429, 502, 503, 504))], ids=repr
)
async def test_a_call_goes_elsewhere_where_a_replica_dies_or_is_busy(failure: Answer) -> None:
    engine = Engine([Scripted(failure), Scripted(WELL)])
    assert await every(engine) == [200] * 12
    assert engine.replicas[0].asked >= 1
    assert engine.outstanding == [0, 0]


REFUSALS = [
    Reply(401, b""),
    Reply(403, b""),
    Reply(404, b""),
    Reply(POLICY_REFUSED, b""),
    Reply(400, b'{"error": {"message": "LoRA adapter \'x\' was found but could not be loaded."}}'),
]
"""Of a replica with another key, base model, plugin or maximal rank than the engine's others."""


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda reply: str(reply.status))
async def test_a_replica_that_refuses_what_another_one_serves_gets_no_more_calls(refusal: Reply) -> None:
    engine = Engine([Scripted(refusal), Scripted(WELL)])
    assert await every(engine, 40) == [200] * 40
    assert engine.replicas[0].asked == FAILURES
    assert engine.front.away == ["r0"]
    engine.now_s += 1
    await engine.front.check_health()
    assert await every(engine, 10) == [200] * 10
    assert engine.replicas[0].asked == FAILURES + 1, "one call on trial"


async def test_replica_refusing_on_trial_draws_no_calls_while_another_works() -> None:
    engine = Engine([Scripted(Reply(POLICY_REFUSED, b"")), Scripted(WELL)])
    await every(engine)
    engine.now_s += 1
    await engine.front.check_health()
    engine.replicas[1].answer = None
    before = engine.replicas[0].asked
    calls = [asyncio.create_task(engine.post(f"trajectory-{number}")) for number in range(20)]
    await asyncio.wait(calls, timeout=0.1)
    assert engine.replicas[0].asked == before + 1
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda reply: str(reply.status))
async def test_what_every_replica_refuses_is_no_failure_of_any(refusal: Reply) -> None:
    engine = Engine([Scripted(refusal) for _ in range(3)])
    assert await every(engine, 20) == [refusal.status] * 20
    assert engine.asked == [20, 20, 20]
    assert engine.front.away == []


async def test_a_call_finds_the_one_replica_that_does_not_refuse_it() -> None:
    engine = Engine([*(Scripted(reply) for reply in REFUSALS), Scripted(WELL)])
    assert await every(engine, 40) == [200] * 40
    assert len(engine.front.away) == len(REFUSALS)


@pytest.mark.parametrize("status", [429, 500])
async def test_refusal_of_one_replica_and_silence_of_the_other_is_no_failure(status: int) -> None:
    engine = Engine([Scripted(Reply(POLICY_REFUSED, b"")), Scripted(Reply(status, b""))])
    engine.known[1].outstanding = 9  # so that the one that refuses comes first
    assert await every(engine, FAILURES) == [status] * FAILURES
    assert engine.known[0].failures == 0


async def test_a_refusal_is_not_hidden_by_a_replica_without_a_connection() -> None:
    """Else the gateway would not ask the engine for another policy."""
    engine = Engine([Scripted(Reply(POLICY_REFUSED, b"")), Scripted(refused(), health=Health.GONE)])
    engine.known[1].outstanding = 9  # so that the one that refuses comes first
    assert await every(engine) == [POLICY_REFUSED] * 12
    assert engine.asked == [12, 1]


@pytest.mark.parametrize("status", [400, 413, 422, 500])
async def test_answer_that_may_be_the_fault_of_the_call_is_not_asked_for_again(status: int) -> None:
    engine = Engine([Scripted(Reply(status, b"")), Scripted(Reply(status, b""))])
    assert (await engine.post()).status == status
    assert sum(engine.asked) == 1


@pytest.mark.parametrize(
    "failure", [too_slow(), HttpError(503, "no file left", code="overloaded"), ValueError("a bug")], ids=repr
)
async def test_other_failures_end_the_call(failure: Exception) -> None:
    engine = Engine([Scripted(failure), Scripted(failure)])
    with pytest.raises(type(failure)):
        await engine.post()
    assert sum(engine.asked) == 1
    assert engine.outstanding == [0, 0]


async def test_call_reaches_a_bounded_number_of_replicas() -> None:
    engine = Engine([Scripted(broken()) for _ in range(4)])
    with pytest.raises(EngineFailed, match="broken off") as failed:
        await engine.post()
    assert sum(engine.asked) == SENDS
    assert not failed.value.unreachable
    assert failed.value.replica in {"r0", "r1", "r2", "r3"}


async def test_replicas_without_a_connection_do_not_count_for_that_bound() -> None:
    engine = Engine([*(Scripted(refused()) for _ in range(3)), Scripted(WELL)])
    assert await every(engine) == [200] * 12


async def test_the_last_busy_answer_reaches_the_agent() -> None:
    engine = Engine([Scripted(Reply(429, b"slow down")), Scripted(Reply(429, b"slow down"))])
    reply = await engine.post()
    assert (reply.status, reply.raw, engine.asked) == (429, b"slow down", [1, 1])


async def test_engine_whose_replicas_are_away_is_unreachable_after_a_check() -> None:
    engine = Engine([Scripted(refused(), health=Health.GONE), Scripted(refused(), health=Health.GONE)])
    for _ in range(3):
        with pytest.raises(EngineFailed, match="none of its 2 replicas answers; try again later") as failed:
            await engine.post()
        assert failed.value.unreachable
    assert engine.asked == [1, 1], "calls that find all of them away do not ask"
    assert engine.front.away == ["r0", "r1"]


async def test_the_first_call_after_a_restart_is_answered() -> None:
    engine = Engine([Scripted(refused(), health=Health.GONE)])
    for words in ("no connection", "the engine is not reachable: it does not answer; try again later"):
        with pytest.raises(EngineFailed, match=words):
            await engine.post()
    engine.now_s += 1
    engine.replicas[0].answer, engine.replicas[0].health = WELL, Health.WELL
    assert (await engine.post()).status == 200
    assert engine.front.away == []


async def test_many_calls_that_find_all_replicas_away_share_a_health_check() -> None:
    engine = Engine([Scripted(refused(), health=Health.GONE)])
    with suppress(EngineFailed):
        await engine.post()
    engine.now_s += 1
    before = engine.replicas[0].checks
    failures = await asyncio.gather(*(engine.post() for _ in range(50)), return_exceptions=True)
    assert all(isinstance(one, EngineFailed) for one in failures)
    assert engine.replicas[0].checks == before + 1


async def test_replica_gets_calls_again_once_a_health_check_sees_it_well() -> None:
    engine = Engine([Scripted(refused(), health=Health.GONE), Scripted(WELL)])
    await every(engine)
    asked = engine.replicas[0].asked
    assert asked == 1, "one refused connection is enough"
    engine.now_s += 10
    await engine.front.check_health()
    await every(engine)
    assert engine.replicas[0].asked == asked
    engine.replicas[0].answer, engine.replicas[0].health = WELL, Health.WELL
    engine.now_s += 10
    await engine.front.check_health()
    assert await every(engine, 20) == [200] * 20
    assert engine.replicas[0].asked > asked + 3


async def test_replica_that_answers_errors_gets_one_call_on_trial() -> None:
    engine = Engine([Scripted(Reply(500, b"")), Scripted(WELL)])
    statuses = await every(engine, 40)
    assert statuses.count(500) == engine.replicas[0].asked == FAILURES
    engine.now_s += 1
    await engine.front.check_health()
    statuses = await every(engine, 10)
    assert statuses.count(500) == 1


async def test_an_only_replica_that_answers_errors_is_asked_all_the_same() -> None:
    engine = Engine([Scripted(Reply(500, b""))])
    for _ in range(FAILURES * 3):
        assert (await engine.post()).status == 500
        engine.now_s += 1


async def test_a_replica_that_asks_for_a_pause_is_left_alone_for_so_long() -> None:
    engine = Engine([Scripted(Reply(429, b"", [(b"Retry-After", b"20")])), Scripted(WELL)])
    await every(engine, 20)
    assert engine.replicas[0].asked == 1
    engine.now_s += 20
    await every(engine, 20)
    assert engine.replicas[0].asked == 2


@pytest.mark.parametrize(
    ("events", "then"),
    [([], broken()), ([COMMENT], broken()), ([COMMENT] * COMMENTS, broken()), ([COMMENT], None)],
    ids=["at once", "after a comment", "after comments", "by its end"],
)
async def test_a_stream_that_ends_before_its_first_event_begins_elsewhere(
    events: list[bytes], then: Exception | None
) -> None:
    engine = Engine([Scripted(events, then=then), Scripted([CHUNK, CHUNK])])
    for _ in range(4):
        assert await engine.stream() == [CHUNK, CHUNK]
    assert engine.replicas[0].asked >= 1
    assert engine.outstanding == [0, 0]


@pytest.mark.parametrize("code", [b"500", b"501", b"null", b'"internal"', b"200"])
async def test_a_stream_whose_first_event_is_an_error_begins_anew_elsewhere(code: bytes) -> None:
    """So answers vLLM, with status 200, once its core is dead."""
    error = b'data: {"error": {"message": "EngineCore encountered an issue.", "code": %b}}' % code
    engine = Engine([Scripted([COMMENT, error, b"data: [DONE]"]), Scripted([CHUNK])])
    for _ in range(20):
        assert await engine.stream() == [CHUNK]
    assert engine.replicas[0].asked == engine.replicas[0].closed == FAILURES
    assert engine.front.away == ["r0"]
    assert engine.outstanding == [0, 0]


@pytest.mark.parametrize(("code", "status", "asks"), [(500, 502, 2), (400, 400, 1)])
async def test_a_stream_that_begins_with_an_error_everywhere_is_that_answer(code: int, status: int, asks: int) -> None:
    """vLLM finds some flaws of a call once its stream has begun: another replica would find them too."""
    error = b'{"error": {"message": "EngineCore encountered an issue.", "code": %d}}' % code
    engine = Engine([Scripted([b"data: " + error]), Scripted([b"data: " + error])])
    reply = await engine.front.stream("/v1/chat/completions", b"{}", dialect=CHAT)
    assert isinstance(reply, Reply)
    assert (reply.status, reply.raw, reply.reason) == (status, error, "EngineCore encountered an issue.")
    assert sum(engine.asked) == asks
    assert engine.front.away == []


async def test_an_answer_about_errors_is_an_answer() -> None:
    chunk = b'data: {"choices": [{"delta": {"content": "{\\"error\\": 500}"}}], "error": null}'
    engine = Engine([Scripted([chunk])])
    assert await engine.stream() == [chunk]


async def test_a_stream_that_breaks_off_after_its_first_event_is_broken() -> None:
    engine = Engine([Scripted([CHUNK], then=broken()), Scripted([CHUNK], then=broken())])
    with pytest.raises(EngineFailed, match="broken off") as failed:
        await engine.stream()
    assert sum(engine.asked) == 1
    assert failed.value.replica in {"r0", "r1"}
    assert engine.outstanding == [0, 0]


async def test_streams_that_break_off_count_as_failures_of_their_replica() -> None:
    engine = Engine([Scripted([CHUNK], then=broken()), Scripted([CHUNK])])
    for _ in range(20):
        with suppress(EngineFailed):
            await engine.stream()
    assert engine.front.away == ["r0"]
    assert engine.replicas[0].asked == FAILURES


async def test_streams_that_break_at_their_reader_are_failures_of_the_replica() -> None:
    engine = Engine([Scripted([CHUNK])])
    for _ in range(FAILURES):
        await engine.stream(whole=False)
    assert engine.front.away == ["r0"]


async def test_a_stream_that_its_agent_leaves_shows_nothing_of_its_replica() -> None:
    engine = Engine([Scripted([CHUNK, CHUNK])])
    for _ in range(FAILURES - 1):
        await engine.stream(whole=False)
    reply = await engine.front.stream("/", b"", dialect=CHAT)
    assert isinstance(reply, EventReply)
    await reply.events.aclose()
    assert engine.known[0].failures == FAILURES - 1
    assert engine.front.away == []


async def test_stream_on_trial_lets_others_follow_and_the_next_failure_ends_that() -> None:
    engine = Engine([Scripted([CHUNK]), Scripted([CHUNK])])
    for _ in range(FAILURES * 2):
        await engine.stream(whole=False)
    assert engine.front.away == ["r0", "r1"]
    engine.now_s += 1
    await engine.front.check_health()
    open_streams = [await engine.front.stream("/", b"", dialect=CHAT) for _ in range(6)]
    assert engine.outstanding == [3, 3]
    for reply in open_streams[:1]:
        assert isinstance(reply, EventReply)
        reply.over(broken())
    assert len(engine.front.away) == 1


ROLE_EVENT = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}'
RUBBISH = {
    "a page": Reply(200, b"<html>log in</html>"),
    "an error": Reply(200, b'{"error": {"message": "EngineCore died", "code": 500}}'),
    "no choices": Reply(200, b'{"choices": []}'),
    "no choice that is one": Reply(200, b'{"choices": [1]}'),
    "a role, then the end": [ROLE_EVENT],
    "a role, then an error": [ROLE_EVENT, b'data: {"error": {"message": "EngineCore died", "code": 500}}'],
    "another API's events": [b'data: {"hello": 1}', b"data: [DONE]"],
    "no JSON": [b"data: <html>log in</html>"],
    "a redirect": EngineFailed(502, "a redirect", code="engine_invalid"),
}


@pytest.mark.parametrize("kind", RUBBISH)
async def test_answer_that_is_none_is_got_elsewhere_and_ends_its_replicas_calls(kind: str) -> None:
    rubbish = RUBBISH[kind]
    streams = isinstance(rubbish, list)
    engine = Engine([Scripted(rubbish), Scripted([CHUNK] if streams else WELL)])
    for number in range(40):
        near = f"trajectory-{number}"
        assert (await engine.stream(near) == [CHUNK]) if streams else (await engine.post(near)).status == 200
    assert engine.replicas[0].asked == FAILURES
    assert engine.front.away == ["r0"]
    assert engine.outstanding == [0, 0]


async def test_answer_of_another_kind_shows_no_more_than_that_its_replica_lives() -> None:
    engine = Engine([Scripted(Reply(200, b"<html>log in</html>"))])
    for _ in range(FAILURES):
        with suppress(EngineFailed):
            await engine.post()
        await engine.front.post("/tokenize", b"{}")
    assert engine.known[0].failures == FAILURES


@pytest.mark.parametrize("failure", [Reply(500, b""), too_slow(), [CHUNK]], ids=["500", "too slow", "a broken stream"])
async def test_the_repetition_of_a_failed_call_begins_at_another_replica(failure: Answer) -> None:
    streams = isinstance(failure, list)
    well = Scripted([CHUNK] if streams else WELL)
    engine = Engine([Scripted(failure, then=broken()), well, Scripted(failure, then=broken())])
    for number in range(9):
        near, before = f"trajectory-{number}", list(engine.asked)
        for _ in range(len(engine.replicas)):
            with suppress(EngineFailed):
                await (engine.stream(near) if streams else engine.post(near))
            if engine.asked[1] > before[1]:
                break
        assert engine.asked[1] > before[1]
        assert max(now - then for now, then in zip(engine.asked, before, strict=True)) == 1
        for one in engine.known:
            one.failures = 0  # so that circuits stay closed


async def test_repetition_of_an_abandoned_call_begins_at_another_replica() -> None:
    engine = Engine([Scripted(), Scripted()])
    for _ in range(2):
        call = asyncio.create_task(engine.post("trajectory"))
        await asyncio.wait({call}, timeout=0.05)
        call.cancel()
        await asyncio.wait({call})
    assert engine.asked == [1, 1]


async def test_replica_that_streams_comments_alone_counts_as_answering() -> None:
    engine = Engine([Scripted([COMMENT] * (COMMENTS + 1), then=broken())])
    with pytest.raises(EngineFailed, match="broken off"):
        await engine.stream()
    assert engine.asked == [1]


async def test_an_open_stream_counts_as_work_until_it_ends_or_is_closed() -> None:
    engine = Engine([Scripted([CHUNK, CHUNK])])
    ended, left, unread = [await engine.front.stream("/", b"", dialect=CHAT) for _ in range(3)]
    assert engine.outstanding == [3]
    assert isinstance(ended, EventReply)
    assert isinstance(left, EventReply)
    assert isinstance(unread, EventReply)
    assert [event async for events in ended.events for event in events] == [CHUNK, CHUNK]
    assert engine.outstanding == [2]
    assert [event async for event in _first(left)] == [[CHUNK]]
    await left.events.aclose()
    await left.events.aclose()
    await unread.events.aclose()
    assert (engine.outstanding, engine.replicas[0].closed) == ([0], 3)


async def _first(reply: EventReply) -> AsyncGenerator[list[bytes], None]:
    yield await anext(reply.events)


async def test_a_replica_that_answers_nothing_does_not_take_all_calls() -> None:
    engine = Engine([Scripted(), Scripted(WELL)])
    calls = [asyncio.create_task(engine.post(f"trajectory-{number}")) for number in range(100)]
    await asyncio.wait(calls, timeout=0.2)
    stuck = [call for call in calls if not call.done()]
    assert 1 <= len(stuck) <= 2
    for call in stuck:
        call.cancel()
    await asyncio.wait(stuck)
    assert engine.outstanding == [0, 0]


async def test_calls_of_replica_whose_health_answers_nothing_either_go_elsewhere() -> None:
    engine = Engine([Scripted(health=Health.SILENT), Scripted(WELL)])
    calls = [asyncio.create_task(engine.post(f"trajectory-{number}")) for number in range(8)]
    await engine.replicas[0].reached.wait()
    for _ in range(FAILED_CHECKS):
        engine.now_s += QUIET_S
        await engine.front.check_health()
    assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * 8
    assert engine.front.away == ["r0"]


async def test_an_only_replica_keeps_its_calls_however_silent_it_is() -> None:
    engine = Engine([Scripted(health=Health.SILENT)])
    call = asyncio.create_task(engine.post())
    await engine.replicas[0].reached.wait()
    for _ in range(FAILED_CHECKS * 2):
        engine.now_s += QUIET_S
        await engine.front.check_health()
    assert engine.front.away == ["r0"]
    assert not call.done()
    call.cancel()
    await asyncio.wait({call})


async def test_all_replicas_together_have_the_time_of_one_answer() -> None:
    engine = Engine([Scripted(broken()), *(Scripted() for _ in range(3))], answer_s=0.5)
    for one in engine.known[1:]:
        one.outstanding = 9  # so that the one that breaks off comes first
    with pytest.raises(EngineFailed, match=r"no answer within 0\.5 s") as failed:
        await engine.post()
    assert (failed.value.status, failed.value.code) == (504, "engine_timeout")
    assert sum(engine.asked) == 2
    assert engine.outstanding == [0, 9, 9, 9]
    assert [one.failures for one in engine.known] == [1, 0, 0, 0], "the second one had only what was left of the time"


async def test_a_call_whose_time_is_up_is_sent_to_no_further_replica() -> None:
    engine = Engine([Scripted(broken(), after_s=0.05), Scripted(WELL)], answer_s=0.01)
    engine.known[1].outstanding = 9
    with pytest.raises(EngineFailed, match="broken off"):
        await engine.post()
    assert engine.asked == [1, 0]
    assert [one.failures for one in engine.known] == [1, 0]


async def test_call_that_meets_all_replicas_away_checks_them_once() -> None:
    now_s = itertools.count(step=AGAIN_S * 2)  # each time that it reads the clock
    gone = [Scripted(refused(), health=Health.GONE) for _ in range(2)]
    front = Replicas("engine", {"r0": gone[0], "r1": gone[1]}, 60.0, now_s=lambda: next(now_s), draw=lambda: 0.5)
    checks = list[int]()
    for _ in range(2):
        checks.append(gone[0].checks)
        with pytest.raises(EngineFailed, match="none of its 2 replicas answers"):
            async with asyncio.timeout(10):
                await front.post("/v1/chat/completions", b"{}", dialect=CHAT)
    assert gone[0].checks == checks[-1] + 1


async def test_an_agent_that_leaves_ends_the_call_at_its_replica() -> None:
    engine = Engine([Scripted()])
    call: asyncio.Task[Any] = asyncio.create_task(engine.post())
    await engine.replicas[0].reached.wait()
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    assert (engine.outstanding, engine.asked) == ([0], [1])
