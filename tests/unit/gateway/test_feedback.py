"""Feedback says of itself only what its caller's key may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.core.errors import BadRequest, Forbidden
from ratchet.core.rules.access import ANYONE, Caller
from ratchet.core.service.asgi import Request
from tests.support.gateway_alone import Alone, alone

TRAJECTORY = "0199f3a1-7c42-7d10-9b1e-2f6a4c8d0e11"
THUMB = {"trajectory_id": TRAJECTORY, "role": "support", "kind": "thumbs", "value": True}
CLAIMS = {"rater": "alice", "source": "annotation_console"}


def with_key(scope: str) -> Caller:
    return Caller("key_4f7k2m9q0z", "someone", frozenset({scope}))


async def given(here: Alone, caller: Caller, **members: Any) -> dict[str, Any]:
    """The event of one piece of feedback that was taken."""
    request = Request("POST", "/v1/feedback", {}, msgspec.json.encode({**THUMB, **members}), caller=caller)
    assert (await here.handlers.feedback(request, None)).status == 202
    return (await here.published())[-1]


@pytest.mark.parametrize("claim", [{name: value} for name, value in CLAIMS.items()])
async def test_a_key_for_feedback_cannot_say_who_gave_it_or_where(tmp_path: Path, claim: dict[str, str]) -> None:
    async with alone(tmp_path) as here:
        with pytest.raises(Forbidden, match="annotate"):
            await given(here, with_key("feedback:support"), **claim)


async def test_the_key_is_recorded_with_the_feedback(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        own = await given(here, with_key("feedback:support"))
    assert (own["source"], own.get("rater"), own["key_id"]) == ("gateway", None, "key_4f7k2m9q0z")
    async with alone(tmp_path) as here:
        claimed = await given(here, with_key("annotate"), **CLAIMS)
    assert claimed.items() >= {**CLAIMS, "key_id": "key_4f7k2m9q0z"}.items()


async def test_answer_to_feedback_on_unknown_trajectory_names_what_it_waits_for(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        request = Request("POST", "/v1/feedback", {}, msgspec.json.encode(THUMB), caller=ANYONE)
        unknown = msgspec.json.decode((await here.handlers.feedback(request, None)).body)
        here.handlers.arms.open(TRAJECTORY, "support")
        known = msgspec.json.decode((await here.handlers.feedback(request, None)).body)
    assert "counts as soon as a trajectory with this id" in unknown["note"]
    assert known.get("note") is None


async def test_feedback_on_a_run_of_another_role_is_refused(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        here.handlers.arms.open(TRAJECTORY, "clerk")
        with pytest.raises(BadRequest, match="no call in the role 'support'") as refused:
            await given(here, with_key("feedback:*"))
        assert refused.value.param == "role"
        here.handlers.arms.open(TRAJECTORY, "support")
        assert (await given(here, with_key("feedback:*")))["role"] == "support"


@pytest.mark.parametrize("path", ["/v1/feedback", f"/v1/trajectories/{TRAJECTORY}/end"])
async def test_run_of_a_role_that_is_not_the_keys_is_none(path: str, tmp_path: Path) -> None:
    answers = list[tuple[int, bytes]]()
    for opened in ((), ("clerk",)):
        async with alone(tmp_path) as here:
            for role in opened:
                here.handlers.arms.open(TRAJECTORY, role)
            body = msgspec.json.encode(
                {"feedback_id": TRAJECTORY, **THUMB} if path.endswith("k") else {"role": "support"}
            )
            request = Request("POST", path, {}, body, caller=with_key("feedback:support"))
            if path.endswith("k"):
                answer = await here.handlers.feedback(request, None)
            else:
                answer = await here.handlers.end(TRAJECTORY, request, None)
            answers.append((answer.status, answer.body))
    assert answers[0] == answers[1]


async def test_feedback_without_a_trajectory_names_the_missing_member(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        for wrong, message in (({}, "is missing"), ({"trajectory_id": "a\nb"}, "printable")):
            request = Request(
                "POST", "/v1/feedback", {}, msgspec.json.encode({"kind": "thumbs", **wrong}), caller=ANYONE
            )
            with pytest.raises(BadRequest, match=message) as refused:
                await here.handlers.feedback(request, None)
            assert refused.value.param == "trajectory_id"


async def test_feedback_with_a_role_that_is_no_text_is_refused_in_words(tmp_path: Path) -> None:
    body = msgspec.json.encode({**THUMB, "rater": "ann", "trajectory_id": TRAJECTORY, "role": {"a": 1}})
    async with alone(tmp_path) as here:
        with pytest.raises(BadRequest, match="`role` is no text"):
            await here.handlers.feedback(Request("POST", "/v1/feedback", {}, body, caller=ANYONE), None)


async def test_where_no_key_is_asked_for_feedback_names_anybody(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        event = await given(here, ANYONE, **CLAIMS)
    assert event.items() >= CLAIMS.items()
    assert "key_id" not in event


@pytest.mark.parametrize("wrong", [{"kind": "update"}, {"key_id": "key_0000000000"}])
async def test_what_only_ratchet_states_is_refused_from_everybody(tmp_path: Path, wrong: dict[str, str]) -> None:
    async with alone(tmp_path) as here:
        for caller in (ANYONE, with_key("annotate"), with_key("admin")):
            with pytest.raises(BadRequest) as refused:
                await given(here, caller, **wrong)
            assert refused.value.param == next(iter(wrong))
