"""Repeated ends of a trajectory: the answer tells the agent what becomes of each."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.core.errors import Forbidden, InvalidMessage
from ratchet.core.rules.access import ANYONE, Caller
from ratchet.core.service.asgi import RECORD_BYTES, Request, Response
from ratchet.core.service.problems import HttpError
from ratchet.dialects.api_dialect import CHAT
from ratchet.gateway.domain.routing import ENDERS, Arm
from tests.support.gateway_alone import Alone, alone, chat_request


def key(name: str, *scopes: str) -> Caller:
    return Caller(name, name, frozenset(scopes or ("infer:support", "feedback:support")))


async def ended(here: Alone, trajectory: str, caller: Caller = ANYONE, **members: Any) -> dict[str, Any]:
    body = msgspec.json.encode(members)
    request = Request("POST", f"/v1/trajectories/{trajectory}/end", {}, body, caller=caller)
    answer = await here.handlers.end(trajectory, request, None)
    assert answer.status == 202
    return msgspec.json.decode(answer.body)


async def called(here: Alone, *roles: str, callers: Sequence[Caller] = (ANYONE,)) -> str:
    """A trajectory with a call in each role of each caller."""
    trajectory = str(uuid.uuid4())
    here.server.may_answer.set()
    for role, caller in product(roles, callers):
        request = msgspec.structs.replace(chat_request(model=role), caller=caller)
        assert isinstance(await here.completions.complete(CHAT, request, trajectory), Response)
    return trajectory


async def test_an_end_after_an_outcome_changes_nothing_and_its_answer_tells_so(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        trajectory = await called(here, "support")
        first = await ended(here, trajectory, outcome={"status": "success"})
        assert (first["ended_before"], first["note"]) == ([], None)
        for status in ("failure", "success"):
            again = await ended(here, trajectory, outcome={"status": status})
            assert again["ended_before"] == ["support"]
            assert "the first outcome of a trajectory counts: this end changes nothing" in again["note"]
            assert "feedback" in again["note"]


async def test_outcome_after_an_end_without_one_counts_and_its_answer_tells_so(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        trajectory = await called(here, "support")
        await ended(here, trajectory)
        again = await ended(here, trajectory, outcome={"status": "failure"})
        assert again["ended_before"] == ["support"]
        assert again["note"].endswith("an outcome in this end counts where no earlier end gave one")
        assert "changes nothing" in (await ended(here, trajectory))["note"]


async def test_each_role_has_an_end_of_its_own(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        trajectory = await called(here, "planner", "support")
        await ended(here, trajectory, role="planner", outcome={"status": "success"})
        both = await ended(here, trajectory, outcome={"status": "success"})
        assert (both["roles"], both["ended_before"]) == (["planner", "support"], ["planner"])


async def test_end_or_feedback_by_the_name_of_a_thread_is_about_its_newest_run(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        here.server.may_answer.set()
        runs: list[str] = []
        for _ in range(2):
            request = chat_request(model="support", metadata={"thread_id": "thread 1"})
            answer = await here.completions.complete(CHAT, request, None)
            assert isinstance(answer, Response)
            runs.append(dict(answer.headers)[b"x-ratchet-trajectory"].decode())
            for _ in range(2):  # feedback and a repeated end still mean the run that has just ended
                assert (await ended(here, "thread 1"))["trajectory_id"] == runs[-1]
                body = msgspec.json.encode({"trajectory_id": "thread 1", "kind": "rating", "value": 5})
                rated = await here.handlers.feedback(Request("POST", "/v1/feedback", {}, body, caller=ANYONE), None)
                assert msgspec.json.decode(rated.body)["trajectory_id"] == runs[-1]
        assert runs[0] != runs[1]
        assert (await ended(here, runs[0]))["trajectory_id"] == runs[0]


async def test_end_with_a_bad_task_names_the_member_that_was_written(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        with pytest.raises(InvalidMessage, match=r"^/task: "):
            await ended(here, await called(here, "support"), task={"domain": "shop"})


async def test_end_of_another_key_than_the_callers_is_refused(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        trajectory = await called(here, "support", callers=[key("ours")])
        with pytest.raises(Forbidden, match="came with another key, which may end it"):
            await ended(here, trajectory, key("theirs"), outcome={"status": "failure"})
        ours = await ended(here, trajectory, key("ours"), outcome={"status": "success"})
        assert (ours["ended_before"], ours["note"]) == ([], None)


@pytest.mark.parametrize(
    ("callers", "ender"),
    [
        ([key("one"), key("two")], key("two")),
        ([key("ours")], key("person", "annotate")),
        ([key("agent", "infer:support")], key("grader", "feedback:support")),
        ([key(f"key{number}") for number in range(ENDERS)], key("another")),
        ([], key("any")),
    ],
    ids=["that called too", "of raters", "where callers may not end", "of many", "of unknown calls"],
)
async def test_end_may_come_with_another_key(tmp_path: Path, callers: list[Caller], ender: Caller) -> None:
    async with alone(tmp_path) as here:
        trajectory = await called(here, "support", callers=callers)
        assert (await ended(here, trajectory, ender, role="support"))["roles"] == ["support"]


def test_end_is_known_to_be_the_callers_in_every_gateway() -> None:
    here, there = Arm("t", "support"), Arm("t", "support")
    here.called_by("ours")
    there.learn("p", here.note())
    assert (there.may_be_ended_by("ours"), there.may_be_ended_by("theirs")) == (True, False)


async def test_end_is_no_conversation_and_has_a_bound(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        with pytest.raises(HttpError, match="larger than 262144 bytes"):
            await ended(here, await called(here, "support"), labels={"long": "x" * RECORD_BYTES})
