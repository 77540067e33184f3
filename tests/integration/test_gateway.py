"""The gateway with the public OpenAI client in front, a real broker behind, and an engine that speaks vLLM's API."""

from __future__ import annotations

import asyncio
import uuid
from itertools import count
from typing import Any

import msgspec
import openai
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Feedback, TrajectoryEnd, Turn
from ratchet.core.contract.state import Route
from tests.support.gateway_scene import ROLE, ask, canary_route, scene, version
from tests.support.running import http_client
from tests.support.servers import Broker, RunningServer

HUGE = b'{"model": "support", "messages": [{"role": "user", "content": "x"}], %s}'


async def test_a_conversation_becomes_turns_whose_deltas_give_back_every_prompt(nats: Broker, tmp_path: Any) -> None:
    trajectory = str(uuid.uuid4())
    async with scene(nats, tmp_path) as here:
        client = here.client(default_headers={"x-ratchet-trajectory": trajectory, "x-ratchet-session": "s-1"})
        messages: list[Any] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "where is it?"}]
        first = await ask(client, messages)
        assert first.headers["x-ratchet-trajectory"] == trajectory
        assert first.headers["x-ratchet-policy"] == version(1).name
        assert first.headers["x-ratchet-arm"] == "stable"
        answer = first.parse().choices[0].message
        assert answer.content == "It arrives today."
        assert first.parse().choices[0].logprobs is None
        messages += [answer.model_dump(), {"role": "user", "content": "thanks"}]
        await ask(client, messages)
        one, two = await here.published(Turn, 2)
        assert (one.index, two.index, two.parent_turn_id) == (0, 1, one.turn_id)
        assert two.messages == [{"role": "user", "content": "thanks"}]
        assert one.trainable.ok
        assert two.trainable.ok
        assert one.session_id == "s-1"
        whole = one.prompt_token_ids.suffix + one.output_token_ids
        rebuilt = whole[: two.prompt_token_ids.prefix_length] + two.prompt_token_ids.suffix
        assert rebuilt == list(msgspec.json.encode(here.engine.asked[1]["messages"]))


async def test_answer_of_a_moved_distribution_is_recorded_and_never_learned_from(nats: Broker, tmp_path: Any) -> None:
    async with scene(nats, tmp_path) as here:
        asked = [{"role": "user", "content": "hi"}]
        await ask(here.client(), asked, logit_bias={"5": 1})
        (turn,) = await here.published(Turn, 1)
        assert (turn.trainable.ok, turn.trainable.reason) == (False, "constrained")
        assert turn.output_token_ids
        assert turn.latency_ms is not None


async def test_the_end_follows_its_turns_and_counts_them(nats: Broker, tmp_path: Any) -> None:
    trajectory = str(uuid.uuid4())
    async with scene(nats, tmp_path) as here:
        client = here.client(base_url=f"{here.url}/t/{trajectory}/v1")
        await ask(client, [{"role": "user", "content": "hi"}])
        async with http_client() as http:
            answer = await http.post(
                f"{here.url}/v1/trajectories/{trajectory}/end",
                json={"outcome": {"status": "success"}, "task": {"task_id": "t", "instructions": ""}},
            )
            assert answer.status_code == 202
            wrong = await http.post(f"{here.url}/v1/trajectories/{trajectory}/end", json={"outcome": {"status": 7}})
            assert wrong.status_code == 400
            assert "/outcome/status" in wrong.json()["error"]["message"]
        (end,) = await here.published(TrajectoryEnd, 1)
        assert (end.trajectory_id, end.role, end.turns) == (trajectory, ROLE, 1)


async def test_pinned_version_is_looked_up_by_an_engine_that_lacks_it(nats: Broker, tmp_path: Any) -> None:
    async with scene(nats, tmp_path) as here:
        asked = [{"role": "user", "content": "hi"}]
        by_name = await ask(here.client(), asked, model=f"{ROLE}@2")
        by_body = await ask(here.client(), asked, extra_body={"adapter_id": f"{ROLE}@2"})
        assert here.engine.loads == [version(2).name]
        assert {by_name.headers["x-ratchet-arm"], by_body.headers["x-ratchet-arm"]} == {"pinned"}
        assert {by_name.headers["x-ratchet-policy"], by_body.headers["x-ratchet-policy"]} == {version(2).name}


async def test_a_model_answers_to_every_name_that_a_call_may_use(nats: Broker, tmp_path: Any) -> None:
    async with scene(nats, tmp_path) as here:
        client = here.client()
        for name in (ROLE, f"{ROLE}@1", f"{ROLE}@2", version(2).name):
            assert (await client.models.retrieve(name)).id == name
        for name in ("nobody", f"{ROLE}@9", f"{ROLE}@1-ffffffff", f"{ROLE}_dpo", "Not A Role"):
            with pytest.raises(openai.NotFoundError) as missing:
                await client.models.retrieve(name)
            assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        async with http_client(base_url=here.url) as http:
            assert (await http.post(f"/v1/models/{ROLE}")).status_code == 405


async def test_the_canary_gets_its_share_until_its_lease_lapses(nats: Broker, tmp_path: Any) -> None:
    asked = [{"role": "user", "content": "hi"}]
    async with scene(nats, tmp_path, lease_s=3.0) as here:
        here.engine.resident.add(version(2).name)
        bucket = Bucket(here.bus, "policies", Route)
        client, leases = here.client(), count(1)

        async def canaried() -> Any:
            canary = canary_route(weight=0.5, lease=next(leases))  # renewed until a trajectory draws it
            await bucket.change(ROLE, lambda route: msgspec.structs.replace(route or Route(role=ROLE), canary=canary))
            answer = await ask(client, asked)
            return answer if answer.headers["x-ratchet-arm"] == "canary" else None

        answer = await eventually(canaried)
        trajectory = {"x-ratchet-trajectory": answer.headers["x-ratchet-trajectory"]}

        async def lapsed() -> Any:
            again = await ask(client, asked, extra_headers=trajectory)
            return again if again.headers["x-ratchet-arm"] == "mixed" else None

        again = await eventually(lapsed)
        assert again.headers["x-ratchet-policy"] == version(1).name


async def test_secrets_are_taken_out_and_their_tokens_are_not_published(nats: Broker, tmp_path: Any) -> None:
    trajectory = {"x-ratchet-trajectory": str(uuid.uuid4())}
    async with scene(nats, tmp_path) as here:
        messages: list[Any] = [{"role": "user", "content": "I am mia@example.com, where is it?"}]
        answer = (await ask(here.client(), messages, extra_headers=trajectory)).parse().choices[0].message
        messages += [answer.model_dump(), {"role": "user", "content": "hello?"}]
        await ask(here.client(), messages, extra_headers=trajectory)
        one, two = await here.published(Turn, 2)
        assert "mia@example.com" not in msgspec.json.encode([one, two]).decode()
        assert one.redactions == {"email": 1}
        assert {one.trainable.reason, two.trainable.reason} == {"redacted"}
        assert {one.prompt_token_ids, two.prompt_token_ids} == {None}


async def test_feedback_is_checked_at_the_edge(nats: Broker, tmp_path: Any) -> None:
    trajectory = str(uuid.uuid4())
    async with scene(nats, tmp_path) as here, http_client(base_url=here.url) as http:
        thumb = {"trajectory_id": trajectory, "kind": "thumbs", "value": True}
        assert (await http.post("/v1/feedback", json=thumb)).json()["error"]["param"] == "role"
        await ask(here.client(default_headers={"x-ratchet-trajectory": trajectory}), [{"role": "user", "content": "x"}])
        await http.post(f"/v1/trajectories/{trajectory}/end")
        good = await http.post("/v1/feedback", json=thumb)
        assert good.status_code == 202
        bad = await http.post("/v1/feedback", json={"trajectory_id": trajectory, "kind": "applause"})
        assert bad.status_code == 400
        (message,) = await here.published(Feedback, 1)
        assert message.role == ROLE
        assert message.feedback_id == good.json()["feedback_id"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", b'{"model": "support", "messages": []}', 400),
        ("/v1/chat/completions", b'{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}', 404),
        ("/v1/chat/completions", b'{"model": "support@9", "messages": [{"role": "user", "content": "x"}]}', 404),
        ("/v1/chat/completions", b" " * 3000, 413),
        ("/v1/nothing", b"{}", 404),
        ("/v1/chat/completions", HUGE % b'"temperature": %s' % (b"9" * 400), 400),
        ("/v1/chat/completions", HUGE % b'"seed": %s' % (b"9" * 400), 400),
        ("/v1/chat/completions", HUGE % b'"metadata": {"x": %s}' % (b"9" * 400), 400),
        (f"/v1/trajectories/{uuid.UUID(int=7)}/end", b'{"role": "support", "labels": {"x": %s}}' % (b"9" * 400), 400),
        (
            "/t/" + "x" * 201 + "/v1/chat/completions",
            b'{"model":"support","messages":[{"role":"user","content":"x"}]}',
            400,
        ),
    ],
)
async def test_bad_input_gets_a_clear_error_in_openais_shape(
    nats: Broker, tmp_path: Any, path: str, body: bytes, status: int
) -> None:
    async with scene(nats, tmp_path, body_limit=2000) as here, http_client(base_url=here.url) as http:
        answer = await http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_key_that_calls_too_often_gets_a_retry_after_and_others_are_served(nats: Broker, tmp_path: Any) -> None:
    asked = [{"role": "user", "content": "hi"}]
    async with scene(
        nats,
        tmp_path,
        api_keys=[f"{name}-0123456789" for name in ("waiting", "agent-busy", "agent-calm")],
        requests_per_minute=100,
    ) as here:
        async with http_client(headers={"authorization": "Bearer agent-busy-0123456789"}) as http:
            answers = await asyncio.gather(*(http.get(f"{here.url}/v1/models") for _ in range(200)))
        assert {answer.status_code for answer in answers} == {200, 429}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert refused.headers["retry-after"] == "1"
        await ask(here.client(api_key="agent-calm-0123456789"), asked)


async def test_an_engine_that_fails_is_recorded_as_the_policys_failure(nats: Broker, tmp_path: Any) -> None:
    async with scene(nats, tmp_path) as here:
        here.engine.broken = True
        with pytest.raises(openai.InternalServerError):
            await ask(here.client(), [{"role": "user", "content": "hi"}])
        (turn,) = await here.published(Turn, 1)
        assert (turn.error, turn.trainable.reason, turn.response) == ("out of memory", "error", None)


@pytest.mark.own_broker
async def test_answers_go_on_while_broker_is_dead_and_turns_arrive_afterwards(
    nats: RunningServer, tmp_path: Any
) -> None:
    async with scene(nats, tmp_path) as here:
        await ask(here.client(), [{"role": "user", "content": "before"}])
        await here.published(Turn, 1)
        await asyncio.to_thread(nats.kill)
        for number in range(5):
            await ask(here.client(), [{"role": "user", "content": f"during {number}"}])
        await asyncio.to_thread(nats.start)
        await ask(here.client(), [{"role": "user", "content": "after"}])
        turns = await here.published(Turn, 7)
        questions = [turn.messages[0]["content"] for turn in turns]
        assert questions == ["before", *(f"during {n}" for n in range(5)), "after"]
