"""Calls of which nothing is recorded: by their agents' word, or because someone has opted out. Answers are as ever."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.core.contract import OptOut, Start
from ratchet.core.errors import BadRequest, Forbidden, Unavailable
from ratchet.core.rules.access import ANYONE, Caller
from ratchet.core.rules.texts import user_ref
from ratchet.core.service.asgi import EventStream, Request, Response
from ratchet.dialects.api_dialect import CHAT
from ratchet.gateway.domain.routing import Arm
from ratchet.gateway.unrecorded import NOT_RECORDED
from tests.support.gateway_alone import USER_KEY, Alone, alone, chat_request
from tests.support.gateway_scene import ROLE
from tests.unit.gateway.test_call_router import routed, routes_of

OFF = {b"x-ratchet-record": b"off"}


async def called(here: Alone, trajectory: str, headers: dict[bytes, bytes] | None = None, **members: Any) -> Response:
    here.server.may_answer.set()
    request = msgspec.structs.replace(chat_request(**members), headers=headers or {})
    answer = await here.completions.complete(CHAT, request, trajectory)
    assert isinstance(answer, Response)
    return answer


async def topics(here: Alone) -> list[str]:
    """What the broker was sent, starts included."""
    assert await here.outbox.flush(5)
    return [record.subject.removeprefix("agent.rl.") for record in here.broker.stored]


async def forgotten(here: Alone) -> None:
    """From here on `topics` are those of what comes."""
    await topics(here)
    here.broker.stored.clear()


async def posted(here: Alone, path: str, caller: Caller = ANYONE, **body: Any) -> dict[str, Any]:
    request = Request("POST", path, {}, msgspec.json.encode(body), caller=caller)
    answer = await (here.opt_outs.opt_in if path.endswith("ins") else here.opt_outs.opt_out)(request, None)
    assert answer.status == 202
    return msgspec.json.decode(answer.body)


@pytest.mark.parametrize("word", [b"off", b" OFF "])
async def test_call_with_the_header_is_answered_and_leaves_nothing(tmp_path: Path, word: bytes) -> None:
    async with alone(tmp_path) as here:
        answer = await called(here, str(uuid.uuid4()), {b"x-ratchet-record": word})
        names = dict(answer.headers)
        assert (answer.status, names[b"x-ratchet-record"], b"x-ratchet-turn" in names) == (200, b"off", False)
        assert await topics(here) == []


@pytest.mark.parametrize("word", [b"", b"on", b"no", b"off,off", b"\xff\x00", b"o" * 9000])
async def test_other_word_in_the_header_is_refused_and_no_engine_asked(tmp_path: Path, word: bytes) -> None:
    async with alone(tmp_path) as here:
        answer = await called(here, str(uuid.uuid4()), {b"x-ratchet-record": word})
        assert (answer.status, here.server.asked.is_set(), await topics(here)) == (400, False, [])
        assert b"takes `off` alone" in answer.body


async def test_trajectory_that_was_switched_off_stays_so_with_end_and_label(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        trajectory = str(uuid.uuid4())
        await called(here, trajectory, OFF)
        await called(here, trajectory)
        await called(here, trajectory, model="planner")
        end = Request("POST", "", {}, b"{}", caller=ANYONE)
        ended = await here.handlers.end(trajectory, end, None)
        body = msgspec.json.encode({"trajectory_id": trajectory, "role": "support", "kind": "thumbs", "value": True})
        rated = await here.handlers.feedback(Request("POST", "", {}, body, caller=ANYONE), None)
        assert [msgspec.json.decode(each.body)["note"] for each in (ended, rated)] == [NOT_RECORDED] * 2
        assert await topics(here) == []


async def test_trajectory_that_is_switched_off_on_its_way_is_to_be_erased(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        trajectory = str(uuid.uuid4())
        await called(here, trajectory)
        before = await topics(here)
        await called(here, trajectory, OFF)
        await called(here, trajectory)
        after = await topics(here)
        assert (before, after) == (["start.v1.support", "turn.v1.support"], [*before, "opt_out.v1.support"])
        asked = msgspec.json.decode(here.broker.stored[-1].body, type=OptOut)
        assert (asked.kind, asked.ref, asked.is_over) == ("trajectory", trajectory, False)


async def test_user_who_opted_out_is_not_recorded_and_is_again_after_opting_in(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        await posted(here, "/v1/opt-outs", user="mia", role="support")
        for user in ("mia", "mia2", "mi"):
            await called(here, str(uuid.uuid4()), user=user)
        await called(here, str(uuid.uuid4()), user="mia", model="planner")
        turns = ["start.v1.support", "turn.v1.support"] * 2 + ["start.v1.planner", "turn.v1.planner"]
        assert sorted(await topics(here)) == sorted(["opt_out.v1.support", *turns])
        await posted(here, "/v1/opt-ins", user="mia", role="support")
        await forgotten(here)
        await called(here, str(uuid.uuid4()), user="mia")
        assert await topics(here) == ["start.v1.support", "turn.v1.support"]


async def test_stream_of_someone_who_opts_out_meanwhile_becomes_no_turn(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        here.server.may_answer.set()
        request = chat_request(stream=True, user="mia")
        answer = await here.completions.complete(CHAT, request, str(uuid.uuid4()))
        assert isinstance(answer, EventStream)
        await posted(here, "/v1/opt-outs", user="mia")
        assert [event async for event in answer.events][-1].endswith(b"data: [DONE]\n\n")
        assert await topics(here) == ["start.v1.support", "opt_out.v1._all", "opt_out.v1.support"]


async def test_session_and_agent_that_opted_out_are_known_by_their_headers(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        for kind in ("session", "agent"):
            await posted(here, "/v1/opt-outs", **{kind: "seven"})
        await forgotten(here)
        for name in (b"x-ratchet-session", b"x-ratchet-agent"):
            await called(here, str(uuid.uuid4()), {name: b"seven"})
        assert await topics(here) == []


async def test_feedback_of_a_rater_who_opted_out_is_dropped_alone(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        trajectory = str(uuid.uuid4())
        await called(here, trajectory)
        await posted(here, "/v1/opt-outs", user="mia")
        await forgotten(here)
        for rater in ("mia", "ana"):
            body = {"trajectory_id": trajectory, "kind": "thumbs", "value": True, "rater": rater}
            await here.handlers.feedback(Request("POST", "", {}, msgspec.json.encode(body), caller=ANYONE), None)
        await called(here, trajectory)
        assert await topics(here) == ["feedback.v1.support", "turn.v1.support"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"user": "mia", "session": "s"},
        {"user": ""},
        {"user": 7},
        {"user": "m" * 1025},
        {"user": "mia", "role": "A role"},
        {"user": "mia", "role": "_all"},
        {"user": "mia", "roles": ["support"]},
        {"trajectory": "x"},
    ],
)
async def test_opting_out_of_no_one_is_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    async with alone(tmp_path) as here:
        with pytest.raises(BadRequest):
            await posted(here, "/v1/opt-outs", **body)
        assert await topics(here) == []


async def test_key_opts_out_in_its_own_role_alone(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        agent = Caller("key_1", "agent", frozenset({"feedback:support"}))
        taken = await posted(here, "/v1/opt-outs", agent, user="mia", role="support")
        assert taken["role"] == "support"
        assert "mia" not in str(taken)
        for role in ({"role": "planner"}, {}):
            with pytest.raises(Forbidden):
                await posted(here, "/v1/opt-outs", agent, user="mia", **role)


async def test_opting_in_answers_what_it_changes(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:

        async def answered(path: str, **body: str) -> tuple[bool, bool]:
            taken = await posted(here, path, **body)
            assert taken["ref"] == user_ref(USER_KEY, body["user"])
            return taken["was_opted_out"], taken["opted_out"]

        assert await answered("/v1/opt-ins", user="mia") == (False, False)
        assert await answered("/v1/opt-outs", user="mia") == (False, True)
        assert await answered("/v1/opt-ins", user="mia", role="support") == (True, True), "by that of every role"
        assert await answered("/v1/opt-ins", user="mia") == (True, False)
        assert await answered("/v1/opt-ins", user="mia") == (False, False)


async def test_who_opted_out_is_sent_as_a_keyed_hash(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        await posted(here, "/v1/opt-outs", user="mia@example.com")
        assert await topics(here) == ["opt_out.v1._all"]
        (record,) = here.broker.stored
        assert msgspec.json.decode(record.body)["ref"] == user_ref(USER_KEY, "mia@example.com")
        assert b"mia" not in record.body


async def test_who_opts_out_while_the_broker_is_away_is_heeded_and_sent_later(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        here.broker.go_away()
        await posted(here, "/v1/opt-outs", user="mia")
        await called(here, str(uuid.uuid4()), user="mia")
        here.broker.come_back()
        assert await topics(here) == ["opt_out.v1._all"]


async def test_opting_out_for_which_there_is_no_room_is_not_called_taken(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        full = replace(here.opt_outs, unrecorded=replace(here.opt_outs.unrecorded, publish=lambda _: False))
        with pytest.raises(Unavailable, match="no room"):
            await full.opt_out(Request("POST", "", {}, b'{"user": "mia"}', caller=ANYONE), None)
        assert not here.known.covers("support", [("user", user_ref(USER_KEY, "mia") or "")])


async def test_unrecorded_trajectory_begins_with_stable_and_has_no_start(tmp_path: Path) -> None:
    starts: list[Start] = []
    router = routed(routes_of(tmp_path), announce=starts.append)
    for unrecorded in (True, False):
        arm = Arm(str(uuid.uuid4()), ROLE, unrecorded=unrecorded)
        router.assign(arm, None, ROLE, subject_ref=lambda: None)
    assert [start.trajectory_id for start in starts] == [arm.trajectory_id]
