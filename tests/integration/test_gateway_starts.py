"""The events behind the canary's statistics: starts before answers, one arm for each role, no hidden failure."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import uuid_utils

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Start, TrajectoryEnd, Turn
from ratchet.core.contract.state import Route
from ratchet.core.rules.arms import draw
from tests.support.gateway_scene import ROLE, Scene, ask, canary_route, put_routes, scene, served, version
from tests.support.planted import Echo, answers_to
from tests.support.running import http_client
from tests.support.servers import Broker

HI: list[Any] = [{"role": "user", "content": "hi"}]


async def offered(here: Scene, weight: float) -> None:
    """Offer a canary with centres, and wait until the gateway has seen it."""
    canary = msgspec.structs.replace(canary_route(weight=weight), centres={"failure": 0.25}, latency_scale_ms=800.0)
    here.engine.resident.add(version(2).name)
    bucket = Bucket(here.bus, "policies", Route)
    await bucket.change(ROLE, lambda old: msgspec.structs.replace(old or Route(role=ROLE), canary=canary))

    async def seen() -> bool:
        return f"{ROLE}@2" in [model.id async for model in here.client().models.list()]

    await eventually(seen)


async def test_every_broken_answer_of_an_engine_gets_a_clean_status_and_a_turn(nats: Broker, tmp_path: Path) -> None:
    calls = len(answers_to(""))
    async with Echo().running() as echo, scene(nats, tmp_path, engine_url=echo) as here:
        async with http_client(base_url=here.url) as http:
            answers = [
                await http.post("/v1/chat/completions", json={"model": ROLE, "messages": HI}) for _ in range(calls)
            ]
        turns = await here.published(Turn, calls)
    assert {answer.status_code for answer in answers} <= {200, 400, 405, 408, 413, 422, 424, 429, 502}
    assert {turn.turn_id for turn in turns} == {answer.headers["x-ratchet-turn"] for answer in answers}
    assert [turn.error is None for turn in turns].count(True) == [answer.status_code for answer in answers].count(200)


async def test_the_start_is_stored_while_the_engine_has_not_answered(nats: Broker, tmp_path: Path) -> None:
    trajectory = str(uuid.uuid4())
    async with scene(nats, tmp_path) as here:
        await offered(here, 1.0)
        here.engine.at_work.clear()
        asking = asyncio.create_task(ask(here.client(), HI, extra_headers={"x-ratchet-trajectory": trajectory}))
        (start,) = await here.published(Start, 1)
        assert not asking.done()
        assert (start.trajectory_id, start.role, start.policy.arm, start.policy.version) == (
            trajectory,
            ROLE,
            "canary",
            2,
        )
        assert (start.rollout_id, start.policy.weight) == (canary_route().rollout_id, 1.0)
        assert (start.centres, start.latency_scale_ms) == ({"failure": 0.25}, 800.0)
        here.engine.at_work.set()
        await asking
        await ask(here.client(), HI, extra_headers={"x-ratchet-trajectory": trajectory})
        await here.published(Turn, 2)
        assert len(await here.published(Start, 1)) == 1


async def test_without_a_canary_a_start_names_stable_and_pinned_calls_nothing(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        await ask(here.client(), HI, model=f"{ROLE}@1")
        await ask(here.client(), HI)
        await here.published(Turn, 2)
        (start,) = await here.published(Start, 1)
        assert (start.policy.arm, start.policy.weight, start.rollout_id, start.centres) == ("stable", 0.0, None, None)


async def test_starts_of_one_user_or_session_share_a_subject(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path, api_keys=["key-one-0123456789", "key-two-0123456789"]) as here:
        one, two = [here.client(api_key=f"key-{name}-0123456789") for name in ("one", "two")]
        session = {"x-ratchet-session": "ticket 7"}
        calls = [
            (one, {"user": "alice"}),
            (one, {"user": "alice", "extra_headers": session}),
            (two, {"user": "alice"}),
            (one, {"extra_headers": session}),
            (one, {"extra_headers": session}),
            (one, {}),
        ]
        trajectories = [(await ask(client, HI, **named)).headers["x-ratchet-trajectory"] for client, named in calls]
        subjects = {start.trajectory_id: start.subject_ref for start in await here.published(Start, len(calls))}
    first, again, of_another_key, in_session, later, nobody = [subjects[trajectory] for trajectory in trajectories]
    assert (first, in_session) == (again, later)
    assert nobody is None
    assert len({first, of_another_key, in_session, nobody}) == 4


async def test_each_role_of_a_trajectory_has_its_own_arm_start_and_end(nats: Broker, tmp_path: Path) -> None:
    trajectory = str(uuid.uuid4())
    async with scene(nats, tmp_path) as here:
        await put_routes(here.bus, planner=1)
        client = here.client(base_url=f"{here.url}/t/{trajectory}/v1")

        async def listed() -> bool:
            return "planner" in [model.id async for model in client.models.list()]

        await eventually(listed)
        here.engine.resident.add(version(1, "planner").name)
        for model in ("planner", ROLE, "planner"):
            answer = await ask(client, HI, model=model)
            assert answer.headers["x-ratchet-arm"] == "stable"
        async with http_client(base_url=here.url) as http:
            thumb = {"trajectory_id": trajectory, "kind": "thumbs", "value": True}
            unclear = await http.post("/v1/feedback", json=thumb)
            assert unclear.status_code == 400
            assert "planner" in unclear.json()["error"]["message"]
            ended = await http.post(f"/v1/trajectories/{trajectory}/end", json={})
            assert ended.json()["roles"] == ["planner", ROLE]
        starts = await here.published(Start, 2)
        assert {(start.role, start.policy.arm) for start in starts} == {("planner", "stable"), (ROLE, "stable")}
        ends = await here.published(TrajectoryEnd, 2)
        assert {(end.role, end.turns) for end in ends} == {("planner", 2), (ROLE, 1)}


async def test_a_call_that_its_agent_gives_up_records_how_long_it_waited(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        here.engine.at_work.clear()
        with pytest.raises(openai.APITimeoutError):
            await ask(here.client(timeout=0.5), HI)
        (turn,) = await here.published(Turn, 1)
        assert (turn.finish_reason, turn.error, turn.index, turn.messages) == ("cancelled", None, 0, [])
        assert turn.latency_ms >= 100
        here.engine.at_work.set()


@pytest.mark.parametrize(("status", "code"), [(400, "context_length_exceeded"), (422, "template_error")])
async def test_a_refusal_of_the_policys_engine_counts_as_a_failure_of_the_policy(
    nats: Broker, tmp_path: Path, status: int, code: str
) -> None:
    async with scene(nats, tmp_path) as here:
        await offered(here, 1.0)
        here.engine.refusing = {version(2).name: (status, code)}
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(here.client(), HI)
        assert (refused.value.status_code, refused.value.code) == (status, code)
        (turn,) = await here.published(Turn, 1)
        assert (turn.policy.arm, turn.error, turn.trainable.reason) == ("canary", code, "error")


async def test_a_policys_engine_that_is_busy_falls_back_to_stable(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        await offered(here, 1.0)
        here.engine.refusing = {version(2).name: (429, "slow_down")}
        answer = await ask(here.client(), HI)
        assert answer.headers["x-ratchet-policy"] == served(1).name
        failed, answered = await here.published(Turn, 2)
        assert (failed.policy.arm, failed.error, answered.policy.arm) == ("canary", "slow_down", "mixed")


async def test_id_without_a_time_keeps_its_arm_on_a_gateway_at_a_later_stage(nats: Broker, tmp_path: Path) -> None:
    trajectories = [str(uuid.UUID(int=n * 7919, version=4)) for n in range(12)]

    async def arms(here: Scene) -> list[str]:
        answers = [
            await ask(here.client(), HI, extra_headers={"x-ratchet-trajectory": trajectory})
            for trajectory in trajectories
        ]
        return [answer.headers["x-ratchet-arm"] for answer in answers]

    async with scene(nats, tmp_path / "one", lease_s=300) as first:
        await offered(first, 0.5)
        before = await arms(first)
        assert set(before) == {"stable", "canary"}
        async with scene(nats, tmp_path / "two", lease_s=300) as second:
            await offered(second, 0.5)
            steps = canary_route(weight=0.5).schedule
            later = [*steps, msgspec.structs.replace(steps[0], at=steps[0].at + timedelta(hours=1), weight=0.95)]
            bucket = Bucket(second.bus, "policies", Route)

            def staged(old: Route | None) -> Route:
                assert old is not None
                assert old.canary is not None
                canary = msgspec.structs.replace(old.canary, schedule=later, lease=old.canary.lease + 1)
                return msgspec.structs.replace(old, canary=canary)

            await bucket.change(ROLE, staged)

            async def advanced() -> bool:
                fresh = str(uuid_utils.uuid7())
                answer = await ask(second.client(), HI, extra_headers={"x-ratchet-trajectory": fresh})
                return answer.headers["x-ratchet-arm"] == "canary" and draw(canary_route().salt, fresh) >= 0.5

            await eventually(advanced)
            assert await arms(second) == before
