"""The end of a trajectory that is said more than once: the answer tells what becomes of it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import msgspec

from ratchet.service.asgi import Request, Response
from tests.support.gateway_alone import Alone, alone, chat


async def ended(here: Alone, trajectory: str, **said: Any) -> dict[str, Any]:
    body = msgspec.json.encode(said)
    answer = await here.gateway.end(Request("POST", f"/v1/trajectories/{trajectory}/end", {}, body), trajectory)
    assert answer.status == 202
    return msgspec.json.decode(answer.body)


async def called(here: Alone, *roles: str) -> str:
    """A trajectory with a call in each role."""
    trajectory = str(uuid.uuid4())
    here.server.may_answer.set()
    for role in roles:
        assert isinstance(await here.gateway.chat(chat(model=role), trajectory), Response)
    return trajectory


async def test_an_end_that_contradicts_an_outcome_is_said_to_change_nothing(tmp_path: Path):
    async with alone(tmp_path) as here:
        trajectory = await called(here, "support")
        first = await ended(here, trajectory, outcome={"status": "success"})
        assert (first["ended_before"], first["note"]) == ([], None)
        for status in ("failure", "success"):
            again = await ended(here, trajectory, outcome={"status": status})
            assert again["ended_before"] == ["support"]
            assert "the first outcome of a trajectory counts: this end changes nothing" in again["note"]
            assert "feedback" in again["note"]


async def test_an_outcome_after_an_end_without_one_is_said_to_count(tmp_path: Path):
    async with alone(tmp_path) as here:
        trajectory = await called(here, "support")
        await ended(here, trajectory)
        again = await ended(here, trajectory, outcome={"status": "failure"})
        assert again["ended_before"] == ["support"]
        assert again["note"].endswith("one in this end counts where none was said")
        assert "changes nothing" in (await ended(here, trajectory))["note"]


async def test_each_role_has_an_end_of_its_own(tmp_path: Path):
    async with alone(tmp_path) as here:
        trajectory = await called(here, "planner", "support")
        await ended(here, trajectory, role="planner", outcome={"status": "success"})
        both = await ended(here, trajectory, outcome={"status": "success"})
        assert (both["roles"], both["ended_before"]) == (["planner", "support"], ["planner"])
