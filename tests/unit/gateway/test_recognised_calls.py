"""Calls through the gateway's route: one run is one trajectory, without and with a name, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.core.contract import JsonObject
from ratchet.core.service.asgi import EventStream, Response
from ratchet.dialects.api_dialect import CHAT
from ratchet.dialects.responses.dialect import RESPONSES
from ratchet.gateway.domain.identity import trajectory_id_of
from tests.support.fake_streams import event_of
from tests.support.gateway_alone import Alone, alone, chat_request

USER: JsonObject = {"role": "user", "content": "hi"}
HELLO: JsonObject = {"role": "assistant", "content": "hello"}
FOLLOWING = [USER, HELLO, USER]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Alone]:
    async with alone(tmp_path) as gateway:
        gateway.server.may_answer.set()
        yield gateway


async def ask(
    here: Alone, path: str | None = None, headers: dict[bytes, bytes] | None = None, **members: Any
) -> dict[str, str]:
    """The headers of the answer, read to its end."""
    request = msgspec.structs.replace(chat_request(**members), headers=headers or {})
    answer = await here.completions.complete(CHAT, request, path)
    if isinstance(answer, EventStream):
        assert [event async for event in answer.events]
    else:
        assert isinstance(answer, Response)
        assert answer.status == 200
    return {name.decode(): value.decode() for name, value in answer.headers}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_without_a_name_is_one_trajectory_and_its_turns_are_linked(here: Alone, stream: bool) -> None:
    first = await ask(here, stream=stream)
    second = await ask(here, stream=stream, messages=FOLLOWING)
    other = await ask(here, stream=stream)
    assert (first["x-ratchet-trajectory-by"], second["x-ratchet-trajectory-by"]) == ("new", "prefix")
    assert second["x-ratchet-trajectory"] == first["x-ratchet-trajectory"] != other["x-ratchet-trajectory"]
    turns = await here.published()
    assert [turn["trajectory_by"] for turn in turns] == ["new", "prefix", "new"]
    assert turns[1]["parent_turn_id"] == turns[0]["turn_id"] == first["x-ratchet-turn"]
    assert turns[1]["messages"] == [USER]


def chunk(delta: JsonObject, finish_reason: str | None = None) -> bytes:
    """A chunk of a stream, without its blank line."""
    return event_of({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}).rstrip()


async def test_an_agent_that_leaves_with_the_whole_answer_has_it(here: Alone) -> None:
    """Some clients close a stream after the reason to finish, before usage and `[DONE]`."""
    here.server.events = [chunk({"content": "hello"}), chunk({}, "stop"), b"data: {}"]
    answer = await here.completions.complete(CHAT, chat_request(stream=True), None)
    assert isinstance(answer, EventStream)
    async with aclosing(answer.events) as events:
        assert b"hello" in await anext(events)
        assert b"stop" in await anext(events)
    here.server.events = None
    assert (await ask(here, messages=FOLLOWING))["x-ratchet-trajectory-by"] == "prefix"
    turns = await here.published()
    assert (turns[0]["finish_reason"], turns[0]["response"]["content"]) == ("stop", "hello")
    assert turns[1]["parent_turn_id"] == turns[0]["turn_id"]


async def test_an_agent_that_leaves_earlier_has_not(here: Alone) -> None:
    here.server.events = [chunk({"content": "hello"}), chunk({}, "stop")]
    answer = await here.completions.complete(CHAT, chat_request(stream=True), None)
    assert isinstance(answer, EventStream)
    async with aclosing(answer.events) as events:
        assert b"hello" in await anext(events)
    (turn,) = await here.published()
    assert (turn["finish_reason"], turn["trainable"]["reason"]) == ("cancelled", "cancelled")


async def test_the_retry_of_a_refused_call_is_another_attempt(here: Alone) -> None:
    """What a model has no equivalent for is refused, and recorded."""
    request = chat_request(input="hi", background=True)
    first, second = [await here.completions.complete(RESPONSES, request, None) for _ in range(2)]
    assert isinstance(first, Response)
    assert isinstance(second, Response)
    assert (first.status, second.status) == (400, 400)
    before, after = dict(first.headers), dict(second.headers)
    assert after[b"x-ratchet-trajectory"] == before[b"x-ratchet-trajectory"]
    assert after[b"x-ratchet-trajectory-by"] == b"retry"


async def test_the_end_user_is_in_no_turn(here: Alone) -> None:
    await ask(here, user="alice", safety_identifier="alice", metadata={"user_id": "alice", "team": "blue"})
    (turn,) = await here.published()
    assert "alice" not in msgspec.json.encode(turn).decode()
    assert turn["parameters"]["metadata"] == {"team": "blue"}


async def test_calls_of_different_keys_do_not_meet(here: Alone) -> None:
    first = await ask(here, headers={b"authorization": b"Bearer a"})
    second = await ask(here, headers={b"authorization": b"Bearer b"}, messages=FOLLOWING)
    third = await ask(here, headers={b"authorization": b"Bearer a"}, messages=FOLLOWING)
    assert second["x-ratchet-trajectory-by"] == "new"
    assert third["x-ratchet-trajectory"] == first["x-ratchet-trajectory"]


async def test_names_of_any_kind_lead_to_trajectory_that_end_by_same_name_ends(here: Alone) -> None:
    answers = [
        await ask(here, "run 7"),
        await ask(here, headers={b"x-ratchet-run": b"run 7"}),
        await ask(here, metadata={"run_id": "run 7"}),
    ]
    assert {one["x-ratchet-trajectory"] for one in answers} == {trajectory_id_of("run 7")}
    ended = await here.handlers.end("run 7", msgspec.structs.replace(chat_request(), body=b"{}"), None)
    assert ended.status == 202
    traced = await ask(here, headers={b"traceparent": f"00-{TRACE}-00f067aa0ba902b7-00".encode(), b"baggage": b"a=b"})
    assert traced["x-ratchet-trajectory"] == trajectory_id_of(TRACE)
    turn = (await here.published())[-1]
    assert turn["trace"] == {"trace_id": TRACE, "span_id": "00f067aa0ba902b7", "baggage": "a=b", "sampled": False}


async def test_turns_have_the_name_of_the_run_as_its_agent_gave_it(here: Alone) -> None:
    await ask(here, "run 7")
    await ask(here, headers={b"x-ratchet-run": "Füße 8".encode()})
    await ask(here, headers={b"x-ratchet-run": b"mail mia@example.com"})
    await ask(here, trajectory_id_of("run 9"))
    await ask(here, headers={b"traceparent": f"00-{TRACE}-00f067aa0ba902b7-00".encode()})
    await ask(here)
    turns = await here.published()
    names = ["run 7", "Füße 8", "mail [REDACTED:email]", None, None, None]
    assert [turn.get("trajectory_name") for turn in turns] == names
    assert turns[2]["trainable"].get("reason") != "redacted"


async def test_what_follows_an_end_without_a_name_is_another_trajectory(here: Alone) -> None:
    first = await ask(here)
    await here.handlers.end(first["x-ratchet-trajectory"], msgspec.structs.replace(chat_request(), body=b"{}"), None)
    second = await ask(here, messages=FOLLOWING)
    assert second["x-ratchet-trajectory-by"] == "new"


@pytest.mark.parametrize("name", ["x-ratchet-session", "x-ratchet-agent"])
async def test_a_label_that_each_turn_repeats_has_a_bound(here: Alone, name: str) -> None:
    await ask(here, headers={name.encode(): b"s" * 200})
    request = msgspec.structs.replace(chat_request(), headers={name.encode(): b"s" * 201})
    refused = await here.completions.complete(CHAT, request, None)
    assert isinstance(refused, Response)
    assert (refused.status, msgspec.json.decode(refused.body)["error"]["param"]) == (400, name)


async def test_an_evaluation_is_pinned_whatever_model_it_names(here: Alone) -> None:
    """Of an upstream too: no statistic and no training takes what is pinned."""
    assert (await ask(here))["x-ratchet-arm"] == "stable"
    assert (await ask(here, headers={b"x-ratchet-arm": b"pinned"}))["x-ratchet-arm"] == "pinned"
    assert [turn["policy"]["arm"] for turn in await here.published()] == ["stable", "pinned"]


async def test_no_agent_chooses_another_arm(here: Alone) -> None:
    request = msgspec.structs.replace(chat_request(), headers={b"x-ratchet-arm": b"canary"})
    refused = await here.completions.complete(CHAT, request, None)
    assert isinstance(refused, Response)
    assert (refused.status, msgspec.json.decode(refused.body)["error"]["param"]) == (400, "x-ratchet-arm")


async def test_a_baggage_that_nobody_must_carry_is_not_recorded(here: Alone) -> None:
    parent = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
    for baggage in (b"a=" + b"b" * 8190, b"a=" + b"b" * 8191):
        await ask(here, headers={b"traceparent": parent, b"baggage": baggage})
    short, long = await here.published()
    assert (len(short["trace"]["baggage"]), "baggage" in long["trace"]) == (8192, False)
