"""Who answers when an engine fails, the turns that are recorded, and answers that need no engine."""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from prometheus_client import REGISTRY

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Turn
from ratchet.core.contract.state import PolicyVersion, Route
from ratchet.core.service.problems import HttpError
from ratchet.gateway.settings import UpstreamSettings
from ratchet.local.local_stack.ports import free_ports
from tests.support.fake_engine import FakeProvider, providing
from tests.support.gateway_scene import ROLE, Scene, ask, canary_route, scene, served, version
from tests.support.running import http_client
from tests.support.servers import Broker

HI: list[Any] = [{"role": "user", "content": "where is it?"}]
KEY_VARIABLE = "RATCHET_TEST_PROVIDER_KEY"
CANARY = canary_route()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(KEY_VARIABLE, "provider-key")
    return "provider-key"


def upstream(url: str, **models: str) -> UpstreamSettings:
    return UpstreamSettings(name="provider", base_url=url, api_key_env=KEY_VARIABLE, models=models)


async def routed(here: Scene, **members: Any) -> None:
    """Change the role's route, and wait until the gateway has seen it."""
    bucket = Bucket(here.bus, "policies", Route)
    changed = await bucket.change(ROLE, lambda old: msgspec.structs.replace(old or Route(role=ROLE), **members))
    versions = {
        policy.version for policy in (changed.stable, changed.canary.policy if changed.canary else None) if policy
    }

    async def seen() -> bool:
        names = [model.id async for model in here.client().models.list()]
        return versions <= {int(name.partition("@")[2]) for name in names if "@" in name}

    await eventually(seen)


async def test_engine_is_shown_the_arm_of_the_policy_that_it_is_asked_for(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        await routed(here, canary=CANARY)
        await ask(here.client(), HI)
        here.engine.failing.add(CANARY.policy.name)
        await ask(here.client(), HI)
        assert here.engine.arms == ["canary", "canary", "stable"]


async def test_failing_canary_is_replaced_by_stable_and_both_calls_are_recorded(nats: Broker, tmp_path: Path) -> None:
    trajectory = {"x-ratchet-trajectory": str(uuid.uuid4())}
    async with scene(nats, tmp_path) as here:
        await routed(here, canary=CANARY)
        here.engine.resident.add(version(2).name)
        here.engine.failing = {version(2).name}
        answer = await ask(here.client(), HI, extra_headers=trajectory)
        assert answer.headers["x-ratchet-policy"] == version(1).name
        assert answer.headers["x-ratchet-arm"] == "mixed"
        here.engine.failing = set()
        again = await ask(here.client(), HI, extra_headers=trajectory)
        assert again.headers["x-ratchet-policy"] == version(1).name
        failed, answered, later = await here.published(Turn, 3)
        assert (failed.policy.version, failed.policy.arm, failed.error) == (2, "canary", "out of memory")
        assert (answered.policy.version, answered.policy.arm, answered.error) == (1, "mixed", None)
        assert answered.turn_id == answer.headers["x-ratchet-turn"] != failed.turn_id
        assert (failed.attempt, answered.attempt) == (1, 2)
        assert (later.policy.version, later.policy.arm) == (1, "mixed")


async def test_turns_name_what_the_engine_did_wrong_and_no_refused_call(nats: Broker, tmp_path: Path) -> None:
    statuses = {500: "broke", 502: "broke", 408: "broke", 503: "unserved", 429: "unserved", 424: "unserved"}
    statuses |= {404: "unserved", 401: "unserved"}
    async with scene(nats, tmp_path) as here:
        await routed(here, canary=CANARY)
        for status in [*statuses, 400]:
            here.engine.refusing[version(2).name] = (status, "reason")
            with suppress(openai.BadRequestError):
                await ask(here.client(), HI, extra_headers={"x-ratchet-trajectory": str(uuid.uuid4())})
        turns = await here.published(Turn, 2 * len(statuses) + 1)
    failed = [turn for turn in turns if turn.error is not None]
    assert [turn.engine.fault for turn in failed] == [*statuses.values(), None]
    assert [turn.header_summary.fault for turn in failed] == [*statuses.values(), None]
    assert {turn.engine.fault for turn in turns if turn.error is None} == {None}


async def test_another_server_answers_when_stable_fails_too_and_leaves_training(
    nats: Broker, tmp_path: Path, key: str
) -> None:
    provider = FakeProvider(key)
    async with (
        providing(provider) as url,
        scene(nats, tmp_path, upstreams=[upstream(url, support="big-model")]) as here,
    ):
        await routed(here, canary=CANARY)
        here.engine.broken = True
        answer = await ask(here.client(), HI)
        assert answer.parse().choices[0].message.content == provider.answer
        assert answer.headers["x-ratchet-policy"] == "provider:big-model"
        first, second, third = await here.published(Turn, 3)
        assert [turn.policy.arm for turn in (first, second, third)] == ["canary", "mixed", "mixed"]
        assert [turn.policy.version for turn in (first, second, third)] == [2, 1, 0]
        assert [turn.attempt for turn in (first, second, third)] == [1, 2, 3]
        assert (third.engine.name, third.policy.digest, third.trainable.reason) == ("provider", "", "no_token_ids")
        assert provider.asked == [{"model": "big-model", "messages": HI}]


async def test_an_engine_that_is_not_there_is_not_asked_for_stable_as_well(
    nats: Broker, tmp_path: Path, key: str
) -> None:
    (unused_port,) = free_ports(1)
    provider = FakeProvider(key)
    async with providing(provider) as url:
        upstreams = [upstream(url, **{"*": "big-model"})]
        async with scene(nats, tmp_path, upstreams=upstreams, engine_url=f"http://127.0.0.1:{unused_port}") as here:
            await routed(here, canary=CANARY)
            await ask(here.client(), HI)
            unreachable, answered = await here.published(Turn, 2)
            error = "the engine is not reachable: 3 connections failed"
            assert (unreachable.policy.arm, (unreachable.error or "").startswith(error)) == ("canary", True)
            assert unreachable.engine.fault == "unserved"
            assert answered.engine.name == "provider"


async def test_a_version_asked_for_by_name_is_never_replaced(nats: Broker, tmp_path: Path, key: str) -> None:
    provider = FakeProvider(key)
    async with (
        providing(provider) as url,
        scene(nats, tmp_path, upstreams=[upstream(url, support="big-model")]) as here,
    ):
        here.engine.broken = True
        with pytest.raises(openai.InternalServerError) as failed:
            await ask(here.client(), HI, model=f"{ROLE}@2")
        assert failed.value.status_code == 502
        assert provider.asked == []


async def test_a_role_without_a_policy_is_served_by_another_server(nats: Broker, tmp_path: Path, key: str) -> None:
    async with (
        providing(FakeProvider(key)) as url,
        scene(nats, tmp_path, upstreams=[upstream(url, newcomer="big-model")]) as here,
    ):
        assert "newcomer" in [model.id async for model in here.client().models.list()]
        client = here.client()
        stream = await client.chat.completions.create(model="newcomer", messages=HI, stream=True)
        assert [chunk async for chunk in stream]
        (turn,) = await here.published(Turn, 1)
        assert (turn.role, turn.policy.version, turn.policy.arm) == ("newcomer", 0, "stable")
        with pytest.raises(openai.NotFoundError) as missing:
            await ask(client, HI, model="nobody")
        assert missing.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (HttpError(400, "too long", code="context_length_exceeded"), 400, "context_length_exceeded"),
        (HttpError(429, "slow down", code="rate_limited"), 429, "rate_limited"),
        (HttpError(401, "who are you", code="invalid_api_key"), 424, "engine_refused"),
        (HttpError(503, "busy", code="overloaded"), 503, "overloaded"),
    ],
)
async def test_refusal_of_another_server_is_reported_as_agents_fault_or_as_ours(
    nats: Broker, tmp_path: Path, key: str, refusal: HttpError, status: int, code: str
) -> None:
    provider = FakeProvider(key, refusing=refusal)
    async with (
        providing(provider) as url,
        scene(nats, tmp_path, upstreams=[upstream(url, newcomer="big-model")]) as here,
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(here.client(), HI, model="newcomer")
        assert (refused.value.status_code, refused.value.code) == (status, code)


@pytest.mark.parametrize("status", [408, 429])
async def test_a_server_that_is_busy_hands_the_call_on(nats: Broker, tmp_path: Path, key: str, status: int) -> None:
    busy, free = FakeProvider(key, refusing=HttpError(status, "slow down")), FakeProvider(key)
    async with providing(busy) as first, providing(free) as second:
        upstreams = [upstream(url, newcomer="big-model") for url in (first, second)]
        async with scene(nats, tmp_path, upstreams=upstreams) as here:
            answer = await ask(here.client(), HI, model="newcomer")
            assert answer.parse().choices[0].message.content == free.answer
            failed, answered = await here.published(Turn, 2)
    assert (failed.error, answered.error) == ("provider: slow down", None)


@pytest.mark.parametrize("status", [401, 403])
async def test_another_servers_message_reaches_agent_and_turn_without_our_key(
    nats: Broker, tmp_path: Path, key: str, status: int
) -> None:
    message = "Incorrect API key provided: sk-a1b2c3d4e5f6a7b8c9d0."
    provider = FakeProvider(key, refusing=HttpError(status, message))
    async with (
        providing(provider) as url,
        scene(nats, tmp_path, upstreams=[upstream(url, newcomer="big-model")]) as here,
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(here.client(), HI, model="newcomer")
        assert refused.value.response.headers["x-should-retry"] == "false"
        (turn,) = await here.published(Turn, 1)
        for text in (str(refused.value), turn.error or ""):
            assert f"provider refuses the gateway ({status}, Incorrect API key provided: [REDACTED:" in text
            assert "sk-a1b2" not in text
        assert turn.engine.fault == "unserved"


async def test_engine_may_ask_for_a_key_and_a_wrong_one_is_not_the_agents_fault(nats: Broker, tmp_path: Path) -> None:
    async with providing(FakeProvider("engine-key", model=version(1).name)) as url:
        engine_url = url.removesuffix("/v1")
        async with scene(nats, tmp_path / "with", engine_url=engine_url, engine_api_key="engine-key") as here:
            assert (await ask(here.client(), HI)).parse().choices[0].message.content == "The provider says so."
        async with scene(nats, tmp_path / "without", engine_url=engine_url) as here:
            with pytest.raises(openai.APIStatusError, match="the engine refuses the gateway") as refused:
                await ask(here.client(), HI)
            assert refused.value.code == "engine_refused"


async def test_stable_takes_over_a_canarys_stream_as_long_as_it_has_no_content(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path, keep_alive_s=60) as here:
        await routed(here, canary=CANARY)
        here.engine.resident.add(version(2).name)

        async def dies(number: int) -> None:
            if number == 1 and here.engine.asked[-1]["model"] == version(2).name:
                raise HttpError(500, "out of memory")

        here.engine.before_event = dies
        stream = await here.client().chat.completions.create(model=ROLE, messages=HI, stream=True)
        text = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        assert "".join(text) == here.engine.answer
        failed, answered = await here.published(Turn, 2)
        assert (failed.error, failed.policy.version, failed.response) == ("out of memory", 2, None)
        assert (answered.error, answered.policy.version, answered.policy.arm) == (None, 1, "mixed")


async def test_canary_that_breaks_off_its_answer_is_charged_and_not_replaced(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path, keep_alive_s=60) as here:
        await routed(here, canary=CANARY)
        here.engine.resident.add(version(2).name)

        async def dies(number: int) -> None:
            if number == 3:
                raise HttpError(500, "out of memory")

        here.engine.before_event = dies
        stream = await here.client().chat.completions.create(model=ROLE, messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="out of memory"):
            assert [chunk async for chunk in stream]
        (turn,) = await here.published(Turn, 1)
        assert (turn.error, turn.policy.version, turn.policy.arm) == ("out of memory", 2, "canary")
        assert turn.engine.fault == "broke"
        assert turn.response["content"] == here.engine.answer[:8]
        assert [asked["model"] for asked in here.engine.asked] == [version(2).name]


async def test_an_engine_that_takes_too_long_is_a_time_out(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path, engine_timeout_s=0.2) as here:
        here.engine.at_work.clear()
        with pytest.raises(openai.APIStatusError) as late:
            await ask(here.client(), HI)
        assert (late.value.status_code, late.value.code) == (504, "engine_timeout")
        (turn,) = await here.published(Turn, 1)
        assert turn.error == "the engine took too long: no answer within 0.2 s; ask for fewer tokens"
        assert turn.engine.fault == "broke"
        here.engine.at_work.set()


async def test_kept_answer_needs_no_engine_and_does_not_outlive_its_policy(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path, cache_bytes=1 << 20) as here:
        client = here.client()
        await ask(client, HI, temperature=0)
        kept = await ask(client, HI, temperature=0)
        assert kept.headers["x-ratchet-cache"] == "hit"
        assert kept.parse().choices[0].message.content == here.engine.answer
        stream = await client.chat.completions.create(model=ROLE, messages=HI, temperature=0, stream=True)
        assert [chunk async for chunk in stream]
        await ask(client, HI)
        await ask(client, HI)
        first, second, streamed, *drawn = await here.published(Turn, 5)
        assert (first.trainable.reason, first.engine.name) == ("greedy", "engine_local")
        assert (second.trainable.reason, second.engine.name, second.latency_ms) == ("cached", "cache", None)
        assert streamed.engine.name == "cache"
        assert [turn.engine.name for turn in drawn] == ["engine_local", "engine_local"]
        asked = len(here.engine.asked)
        here.engine.resident.add(version(2).name)
        await routed(here, stable=served(2), previous=served(1))
        promoted = await ask(client, HI, temperature=0)
        assert "x-ratchet-cache" not in promoted.headers
        assert len(here.engine.asked) == asked + 1


async def test_the_newest_policy_of_an_algorithm_answers_to_its_variant(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        versions = Bucket(here.bus, "policies", PolicyVersion)
        for number, stage, algorithm in ((3, "archived", "dpo"), (4, "refused", "dpo"), (5, "archived", "grpo")):
            made = msgspec.structs.replace(version(number), stage=stage, algorithm=algorithm)
            await versions.put(f"{ROLE}.{number}", made)
        await eventually(lambda: _is_model(here, f"{ROLE}_dpo"))
        answer = await ask(here.client(), HI, model=f"{ROLE}_dpo")
        assert answer.headers["x-ratchet-policy"] == version(3).name
        assert answer.headers["x-ratchet-arm"] == "pinned"
        (turn,) = await here.published(Turn, 1)
        assert (turn.role, turn.policy.version, turn.policy.arm) == (ROLE, 3, "pinned")


async def _is_model(here: Scene, name: str) -> bool:
    async with http_client(base_url=here.url) as http:
        return (await http.get(f"/v1/models/{name}")).status_code == 200


async def test_a_variant_without_a_policy_is_not_found(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        with pytest.raises(openai.NotFoundError, match="no usable version that dpo trained") as missing:
            await ask(here.client(), HI, model=f"{ROLE}_dpo")
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")


async def test_keys_of_the_setting_guard_every_route(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path, api_keys=["first-0123456789ab", "second-0123456789ab"]) as here:
        for good in ("first-0123456789ab", "second-0123456789ab"):
            await ask(here.client(api_key=good), HI)
        async with http_client(base_url=here.url, headers={"authorization": "Bearer wrong"}) as http:
            for path in ("/v1/chat/completions", "/v1/completions", "/v1/feedback", "/v1/jobs", "/v1/nothing"):
                answer = await http.post(path, json={})
                assert answer.status_code == 401
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_much_too_large_body_is_refused_with_a_clear_error(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path, body_limit=500_000) as here:
        huge = [{"role": "user", "content": "x" * 3_000_000}]
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(here.client(), huge)
        assert (refused.value.status_code, refused.value.code) == (413, "body_too_large")


async def test_unknown_model_names_cost_no_conversation_and_no_label(nats: Broker, tmp_path: Path, key: str) -> None:
    trajectory = {"x-ratchet-trajectory": str(uuid.uuid4())}
    async with scene(nats, tmp_path, conversation_bytes=1) as here:
        client = here.client()
        answer = (await ask(client, HI, extra_headers=trajectory)).parse().choices[0].message
        for name in ("nobody", "nobody_dpo", "nobody@3"):
            with pytest.raises(openai.NotFoundError):
                await ask(client, HI, model=name)
        await ask(client, [*HI, answer.model_dump(), *HI], extra_headers=trajectory)
        first, second = await here.published(Turn, 2)
        assert second.parent_turn_id == first.turn_id
    assert not _roles_in_metrics() & {"nobody", "nobody_dpo", "nobody@0"}


async def test_every_other_name_of_a_model_stands_for_one_role(nats: Broker, tmp_path: Path, key: str) -> None:
    provider = FakeProvider(key)
    names = ["gpt-4.1-mini", "openai/gpt-4o", "Qwen/Qwen2.5-7B-Instruct", "ft:gpt-4o:org::abc", "claude@20240229"]
    async with (
        providing(provider) as url,
        scene(nats, tmp_path, upstreams=[upstream(url, **{"*": "big-model"})], roles=["new"]) as here,
    ):
        for name in [*names, "made-up", "new"]:
            await ask(here.client(), HI, model=name)
        turns = await here.published(Turn, len(names) + 2)
        assert [turn.role for turn in turns] == ["default"] * (len(names) + 1) + ["new"]
        for name in (f"{ROLE}@x", f"{ROLE}@99"):  # no name of a provider, but a version that the role does not have
            with pytest.raises(openai.NotFoundError):
                await ask(here.client(), HI, model=name)
    assert not _roles_in_metrics() & {"made-up", "made-up@0"}


async def test_an_alias_stands_for_a_role_and_is_listed(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path, aliases={"gpt-4.1-mini": ROLE, "pinned": f"{ROLE}@1"}) as here:
        await ask(here.client(), HI, model="gpt-4.1-mini")
        await ask(here.client(), HI, model="pinned")
        first, second = await here.published(Turn, 2)
        assert [turn.policy.arm for turn in (first, second)] == ["stable", "pinned"]
        assert {"gpt-4.1-mini", "pinned"} <= {model.id async for model in here.client().models.list()}
        with pytest.raises(openai.NotFoundError):
            await ask(here.client(), HI, model="gpt-4o")


async def test_a_provider_may_get_the_name_that_the_agent_used(nats: Broker, tmp_path: Path, key: str) -> None:
    provider = FakeProvider(key, model="gpt-4.1-mini")
    async with providing(provider) as url, scene(nats, tmp_path, upstreams=[upstream(url, **{"*": "*"})]) as here:
        await ask(here.client(), HI, model="gpt-4.1-mini")
        (turn,) = await here.published(Turn, 1)
        assert (turn.role, provider.asked[0]["model"]) == ("default", "gpt-4.1-mini")


def _roles_in_metrics() -> set[str]:
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    return {
        sample.labels.get("role") or sample.labels.get("policy", "")
        for sample in samples
        if sample.name.startswith("ratchet_gateway_")
    }
