"""A stream on its way: where it is whole, where it breaks off, and what is kept of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from ratchet.dialects.api_dialect import CHAT
from ratchet.dialects.requests import MAX_CHOICES, read_fields
from ratchet.gateway import engine_answers
from ratchet.gateway.engine_answers import LiveAnswer, checked
from ratchet.gateway.engines.base import EngineAnswer, EngineFailed, EventReply, Reply
from ratchet.gateway.recorder import StreamMemory

DONE = b"data: [DONE]"
ASKED = {"model": "support", "messages": [{"role": "user", "content": "hi"}], "stream": True}


def event_of(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return b"data: " + msgspec.json.encode({"choices": [choice]})


HELLO = [event_of("Hel"), event_of("lo", "stop")]


def live(*pieces: Sequence[bytes], memory: StreamMemory | None = None, **members: Any) -> LiveAnswer:
    """An answer whose events come in these pieces."""

    async def events() -> AsyncGenerator[list[bytes], None]:
        for piece in pieces:
            yield list(piece)

    request = CHAT.read(read_fields(msgspec.json.encode({**ASKED, **members})))
    memory = memory or StreamMemory(2 * engine_answers.LARGEST_STREAM)
    return LiveAnswer(CHAT, request, EventReply(events()), of_policy=False, memory=memory)


async def read(answer: LiveAnswer) -> list[bytes]:
    await answer.begin()
    async with aclosing(answer.pieces()) as pieces:
        return [event async for events in pieces for event in events]


async def test_stream_without_its_last_event_is_whole_when_its_answer_has_an_end() -> None:
    assert await read(live(HELLO)) == HELLO


@pytest.mark.parametrize("members", [{}, {"n": 2}])
async def test_a_stream_that_ends_before_every_answer_has_ended_is_broken(members: dict[str, Any]) -> None:
    events = HELLO if members else HELLO[:1]
    with pytest.raises(EngineFailed, match="before its answer was whole"):
        await read(live(events, **members))


async def test_nothing_after_the_last_event_is_shown_or_recorded() -> None:
    answer = live([*HELLO, DONE, event_of("!")], [event_of("?")])
    assert await read(answer) == [*HELLO, DONE]
    assert answer.raw == b"\n\n".join([*HELLO, DONE])


@pytest.mark.parametrize("line", [b"event: error\n", b"event:error\n"])
async def test_an_event_named_error_is_one_whatever_its_data_is(line: bytes) -> None:
    answer = live([event_of("Hel"), line + b'data: {"message": "out of memory"}', DONE])
    await read(answer)
    assert answer.error == "out of memory"


async def test_comments_reach_the_agent_and_are_not_kept() -> None:
    answer = live([b": at work"], [event_of("Hel"), b": on"], [HELLO[1], DONE])
    assert await read(answer) == [b": at work", event_of("Hel"), b": on", HELLO[1], DONE]
    assert answer.events == [event_of("Hel"), HELLO[1], DONE]


async def test_a_stream_that_never_answers_is_given_up_within_its_bound() -> None:
    many = [b":"] * (engine_answers.LARGEST_STREAM // engine_answers.EVENT_BYTES)
    with pytest.raises(EngineFailed, match="without an answer"):
        await live(many, many).begin()


async def test_comments_beside_an_answer_take_no_room_of_its_turn() -> None:
    many = [b":"] * (engine_answers.LARGEST_STREAM // engine_answers.EVENT_BYTES)
    answer = live([HELLO[0]], many, many, [HELLO[1], DONE])
    await read(answer)
    assert answer.raw == b"\n\n".join([*HELLO, DONE])


async def test_of_a_crowd_of_comments_before_the_answer_the_agent_gets_a_few() -> None:
    answer = live([b": queued"] * 1000, [*HELLO, DONE], [b": late"])
    assert (await read(answer)).count(b": queued") == engine_answers.COMMENTS


async def test_streams_under_way_share_one_memory_and_give_it_back() -> None:
    memory = StreamMemory(1000)
    first, second = live([*HELLO, DONE], memory=memory), live([*HELLO, DONE], memory=memory)
    for answer in (first, second):
        await read(answer)
        assert answer.kept
    assert memory.held == sum(len(event) + engine_answers.EVENT_BYTES for event in [*HELLO, DONE]) * 2
    for answer in (first, second):
        await answer.close()
        await answer.close()
    assert memory.held == 0


@pytest.mark.parametrize("last", [[DONE], []], ids=["with an end", "that just stops"])
async def test_a_stream_without_room_goes_on_and_keeps_what_tells_its_usage(last: list[bytes]) -> None:
    memory = StreamMemory(1000)
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 99}}'
    events = [*(event_of("x") for _ in range(100)), event_of("", "stop"), usage, *last]
    answer = live(events, memory=memory)
    assert await read(answer) == events
    assert (answer.kept, memory.held) == (False, 0)
    assert answer.raw.startswith(events[0])
    assert usage in answer.raw
    assert len(answer.raw) < 1000


async def test_large_events_of_a_stream_without_room_are_not_kept() -> None:
    large = event_of("x" * engine_answers.LAST_BYTES)
    answer = live([event_of("x"), large, large, event_of("", "stop"), large, DONE], memory=StreamMemory(200))
    await read(answer)
    assert len(answer.raw) < 1000


async def test_a_stream_without_room_and_without_an_answer_is_given_up_early() -> None:
    role = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}'
    many = [role] * (engine_answers.UNANSWERED // len(role))
    with pytest.raises(EngineFailed, match="without an answer"):
        await live(many, [*HELLO, DONE], memory=StreamMemory(1000)).begin()


def choices_of(number: int) -> bytes:
    choices = [{"index": k, "message": {"content": "x"}, "delta": {"content": "x"}} for k in range(number)]
    return msgspec.json.encode({"choices": choices})


def test_whole_answer_of_more_choices_than_a_call_asks_for_is_refused() -> None:
    asked = EngineAnswer(CHAT, live().request, Reply(200, choices_of(MAX_CHOICES + 1)), of_policy=False)
    with pytest.raises(EngineFailed, match="engine gave 65 choices, where a call asks for 64 at most"):
        checked("engine", asked, Reply(200, choices_of(MAX_CHOICES + 1)))
    assert checked("engine", asked, Reply(200, choices_of(MAX_CHOICES))).choices == 1


async def test_stream_of_more_choices_than_a_call_asks_for_is_not_put_together() -> None:
    answer = live([b"data: " + choices_of(MAX_CHOICES + 1), DONE])
    await read(answer)
    with pytest.raises(ValueError, match="more than 64 choices"):
        answer.whole()
