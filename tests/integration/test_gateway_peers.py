"""Any gateway answers any call: several of them share what they know, by notes on a real broker."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.bus.testing import eventually
from ratchet.core.contract import GatewayNotes, TrajectoryEnd, Turn
from ratchet.gateway.domain.identity import trajectory_id_of
from tests.support.consuming import messages_of
from tests.support.fake_engine import TOOLS, tool_call
from tests.support.gateway_scene import ROLE, version
from tests.support.running import http_client
from tests.support.servers import Broker, RunningServer
from tests.support.several_gateways import Several, peer_sync_of, several

USER: dict[str, Any] = {"role": "user", "content": "Where is my order?"}


def trajectory_of(raw: Any) -> str:
    return raw.headers["x-ratchet-trajectory"]


def by(raw: Any) -> str:
    return raw.headers["x-ratchet-trajectory-by"]


async def converse(here: Several, calls: int, question: str, *, tools: bool = False) -> list[Any]:
    """One run whose every call goes to another gateway, without a name; the answers' headers."""
    chat: list[Any] = [{"role": "user", "content": question}]
    answers: list[Any] = []
    for number in range(calls):
        here.engine.answer = f"Answer {number} to {question}"
        here.engine.tool_calls = [tool_call(f"call_{question}_{number}_x8Kq")] if tools else None
        raw = await here.ask(chat, at=number % len(here.scenes), **({"tools": TOOLS} if tools else {}))
        answers.append(raw)
        message = raw.parse().choices[0].message
        chat.append(message.model_dump(exclude_none=True))
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "ok"} if tools else None
        chat.append(result or {"role": "user", "content": f"and {number}?"})
    return answers


async def turns_of(here: Several, trajectory_id: str, number: int) -> list[Turn]:
    async def probe() -> list[Turn]:
        turns = [one for one in await messages_of(here.bus, Turn) if one.trajectory_id == trajectory_id]
        return turns if len(turns) >= number else []

    return await eventually(probe)


async def end(here: Several, at: int, trajectory_id: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        url = f"{here.scenes[at].url}/v1/trajectories/{trajectory_id}/end"
        return await client.post(url, json={"outcome": {"status": "success", "verified_by": "environment"}})


async def test_a_run_without_a_name_is_one_trajectory_over_all_gateways(nats: Broker, tmp_path: Path) -> None:
    async with several(nats, tmp_path, 3) as here:
        for tools in (False, True):
            answers = await converse(here, 6, f"order {tools}", tools=tools)
            assert len({trajectory_of(answer) for answer in answers}) == 1
            assert [by(answer) for answer in answers] == ["new"] + ["tool_call" if tools else "prefix"] * 5
            turns = sorted(await turns_of(here, trajectory_of(answers[0]), 6), key=lambda turn: turn.index)
            assert [turn.index for turn in turns] == [0, 1, 2, 3, 4, 5]
            assert [turn.parent_turn_id for turn in turns[1:]] == [turn.turn_id for turn in turns[:-1]]
            assert {turn.attempt for turn in turns} == {1}


async def test_gateway_records_what_a_call_adds_to_one_of_another_gateway(nats: Broker, tmp_path: Path) -> None:
    async with several(nats, tmp_path, 2) as here:
        first = await here.ask([USER], at=0)
        chat = [USER, first.parse().choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "?"}]
        (turn,) = await turns_of(here, trajectory_of(first), 1)
        await eventually(lambda: _noted(here, turn.turn_id))
        second = await here.ask(chat, at=1)
        turns = await turns_of(here, trajectory_of(first), 2)
        (later,) = [one for one in turns if one.turn_id == second.headers["x-ratchet-turn"]]
        assert (later.parent_turn_id, later.index, later.messages) == (turn.turn_id, 1, [chat[-1]])
        assert later.prompt_token_ids is not None
        assert turn.prompt_token_ids is not None
        assert turn.output_token_ids is not None
        whole = [*turn.prompt_token_ids.suffix, *turn.output_token_ids]
        assert later.prompt_token_ids.prefix_length in {0, len(whole)}


async def _noted(here: Several, turn_id: str) -> bool:
    return any(call.turn_id == turn_id for notes in await messages_of(here.bus, GatewayNotes) for call in notes.calls)


async def test_an_end_at_any_gateway_counts_the_turns_of_all(nats: Broker, tmp_path: Path) -> None:
    async with several(nats, tmp_path, 3) as here:
        answers = await converse(here, 5, "count")
        run = trajectory_of(answers[0])
        ended = await end(here, 2, run)
        assert (ended.status_code, ended.json()["roles"]) == (202, [ROLE])
        again = await end(here, 0, run)
        assert again.json()["ended_before"] == [ROLE]

        await turns_of(here, run, 5)

        async def ends() -> set[int | None]:
            return {one.turns for one in await messages_of(here.bus, TrajectoryEnd) if one.trajectory_id == run}

        assert await eventually(ends) == {5}


async def test_a_retry_at_another_gateway_is_another_attempt_of_the_same_call(nats: Broker, tmp_path: Path) -> None:
    async with several(nats, tmp_path, 2) as here:
        here.engine.failing.add(version(1).name)
        failed = await post(here, 0)
        assert failed.status_code >= 500
        here.engine.failing.clear()
        again = await post(here, 1, **{"x-stainless-retry-count": "1"})
        run = failed.headers["x-ratchet-trajectory"]
        assert (again.headers["x-ratchet-trajectory-by"], again.headers["x-ratchet-trajectory"]) == ("retry", run)
        third = await post(here, 0)
        assert third.headers["x-ratchet-trajectory-by"] == "new"
        turns = await turns_of(here, run, 2)
        assert sorted(turn.attempt for turn in turns) == [1, 2]


async def post(here: Several, at: int, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        body = {"model": ROLE, "messages": [USER]}
        return await client.post(f"{here.scenes[at].url}/v1/chat/completions", json=body, headers=headers)


async def test_a_gateway_that_joins_later_knows_what_was_answered_before(nats: Broker, tmp_path: Path) -> None:
    async with several(nats, tmp_path, 2) as here:
        chat = [USER]
        first = await here.ask(chat, at=0)
        chat += [first.parse().choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "more"}]
        late = await here.join()
        await here.meet()
        assert peer_sync_of(late).has_others
        again = await here.ask(chat, at=2)
        assert (by(again), trajectory_of(again)) == ("prefix", trajectory_of(first))


@pytest.mark.own_broker
async def test_gateways_share_again_what_they_answer_after_their_broker_died(
    nats: RunningServer, tmp_path: Path
) -> None:
    async with several(nats, tmp_path, 2) as here:
        before = await converse(here, 2, "before")
        await asyncio.to_thread(nats.kill)
        alone = await here.ask([USER], at=0)
        assert by(alone) == "new"
        await asyncio.to_thread(nats.start)

        questions = (f"after {number}" for number in count())  # one that was asked twice would tell no run from another

        async def shared() -> bool:
            answers = await converse(here, 2, next(questions))
            return trajectory_of(answers[0]) == trajectory_of(answers[1])

        await eventually(shared)
        assert trajectory_of(before[0]) == trajectory_of(before[1])


@pytest.mark.own_broker
async def test_equal_runs_are_cut_apart_and_never_mixed_without_a_broker(nats: RunningServer, tmp_path: Path) -> None:
    """Each gateway gave the same answer to the same question; each run goes on at the other gateway."""
    chat = [USER, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "go on"}]

    async def go_on(here: Several) -> list[str]:
        return [by(await here.ask(chat, at=at)) for at in (0, 1)]

    async with several(nats, tmp_path, 2) as here:
        here.engine.answer = "hello"
        await asyncio.to_thread(nats.kill)
        begun = [trajectory_of(await here.ask([USER], at=at)) for at in (0, 1)]
        assert begun[0] != begun[1]
        assert await go_on(here) == ["new", "new"]
        await asyncio.to_thread(nats.start)

        async def know_all() -> bool:
            return all([await peer_sync_of(scene).catch_up() for scene in here.scenes])

        await eventually(know_all)
        assert await go_on(here) == ["new", "new"]


@pytest.mark.own_broker
async def test_an_end_counts_no_turns_while_other_gateways_cannot_be_asked(nats: RunningServer, tmp_path: Path) -> None:
    async with several(nats, tmp_path, 2) as here, http_client() as http:
        begun = trajectory_of(await here.ask([USER], at=0))
        await asyncio.to_thread(nats.kill)
        unknown = await http.post(f"{here.scenes[1].url}/v1/trajectories/{trajectory_id_of('run')}/end", json={})
        known = await http.post(f"{here.scenes[0].url}/v1/trajectories/{begun}/end", json={})
        assert (unknown.status_code, known.status_code) == (503, 202)
        await asyncio.to_thread(nats.start)
        (ended,) = await here.scenes[0].published(TrajectoryEnd, 1)
        assert (ended.trajectory_id, ended.turns) == (begun, None)


async def test_requests_of_a_key_in_a_minute_count_at_all_gateways(nats: Broker, tmp_path: Path) -> None:
    keys = ["none-0123456789a", "of-this-test-0123456789"]
    async with several(nats, tmp_path, 2, api_keys=keys, requests_per_minute=60) as here, http_client() as http:

        async def asks(at: int) -> int:
            url = f"{here.scenes[at].url}/v1/models"
            return (await http.get(url, headers={"authorization": f"Bearer {keys[1]}"})).status_code

        async def know_each_other() -> bool:  # a key's first request decides how large a share it begins with
            return all(peer_sync_of(scene)._updates.gateways == 2 for scene in here.scenes)

        await eventually(know_each_other)
        assert await asks(1) == 200
        began = time.monotonic()
        assert [await asks(0) for _ in range(25)] == [200] * 25, "half of the limit is its share to begin with"
        for at in (0, 1):  # all that the first one tells has left it, then has come to the other one
            await eventually(peer_sync_of(here.scenes[at]).catch_up)
        answered = 0
        while await asks(1) == 200:
            answered += 1
        assert answered < 10 + time.monotonic() - began, "4, and one more for each second; 29 by its own count"


async def test_interleaved_runs_at_drawn_gateways_stay_apart_by_the_contract(nats: Broker, tmp_path: Path) -> None:
    async with several(nats, tmp_path, 3) as here:
        chats = {number: [{"role": "user", "content": f"Where is order {number}?"}] for number in range(6)}
        owners: dict[int, set[str]] = {number: set() for number in chats}
        for step in range(4):
            for number in here.chance.sample(sorted(chats), k=len(chats)):
                here.engine.answer = f"Order {number}, answer {step}"
                raw = await here.ask(chats[number])
                owners[number].add(trajectory_of(raw))
                answer = raw.parse().choices[0].message.model_dump(exclude_none=True)
                chats[number] += [answer, {"role": "user", "content": f"and {step}?"}]
        assert all(len(owner) == 1 for owner in owners.values())
        assert len(set[str]().union(*owners.values())) == len(owners)
        sent = await messages_of(here.bus, GatewayNotes)
        assert {len(notes.process) for notes in sent} == {32}
        for notes in sent:
            here.bus.contracts.check_strict(notes)


async def test_named_run_with_calls_at_all_gateways_at_once_has_all_turns(nats: Broker, tmp_path: Path) -> None:
    async with several(nats, tmp_path, 3) as here:
        headers = {"x-ratchet-trajectory": "team 7"}
        prompts = [[{"role": "user", "content": f"Part {number}"}] for number in range(9)]
        answers = await asyncio.gather(
            *(here.ask(prompt, at=number % 3, extra_headers=headers) for number, prompt in enumerate(prompts))
        )
        (run,) = {trajectory_of(answer) for answer in answers}
        ended = await end(here, 1, run)
        assert ended.json()["roles"] == [ROLE]
        assert len(await turns_of(here, run, 9)) == 9

        async def ends() -> set[int | None]:
            return {one.turns for one in await messages_of(here.bus, TrajectoryEnd) if one.trajectory_id == run}

        assert await eventually(ends) == {9}
