"""Policies that are bundles: what engines get, what turns record, and who answers where a bundle cannot."""

from __future__ import annotations

import threading
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from ratchet.bus.kv import Bucket
from ratchet.client import AsyncClient, ClientSettings
from ratchet.core.contract import Start, Turn
from ratchet.core.contract.bundle import NO_BUNDLE, Bundle, BundleModel, Example, Instructions, SamplingValues
from ratchet.core.contract.state import BUNDLES, PolicyVersion, ServedPolicy
from ratchet.core.contract.workflows import PlannerRef
from ratchet.core.rules.recorded import applied_to
from ratchet.dialects.bundles import Applier
from ratchet.dialects.requests import CallRequest
from ratchet.gateway.calls import LARGE
from tests.integration.test_gateway_fallback import HI, KEY_VARIABLE, routed, upstream
from tests.support.fake_engine import FakeProvider, providing
from tests.support.gateway_scene import ROLE, Scene, ask, canary_route, scene, served, version
from tests.support.running import http_client
from tests.support.servers import Broker

OURS, SENT = "You are ours.", "You are the agent's own."
ASKED: list[Any] = [{"role": "system", "content": SENT}, *HI]
AS_SENT = served(0)
MODELS = {ROLE: "big-model"}
BY_UPSTREAM = BundleModel(upstream="provider", name="big-model")


def instructions(text: str, *variables: str, model: BundleModel | None = BY_UPSTREAM) -> Bundle:
    return Bundle(instructions=Instructions(text=text, variables=variables), model=model)


@dataclass
class World:
    here: Scene
    provider: FakeProvider

    async def register(self, number: int, bundle: Bundle) -> ServedPolicy:
        policy = msgspec.structs.replace(version(number), kind="bundle", stage="canary")
        if bundle != NO_BUNDLE:
            await Bucket(self.here.bus, BUNDLES, Bundle).put(policy.digest, bundle)
        await Bucket(self.here.bus, "policies", PolicyVersion).put(f"{ROLE}.{number}", policy)
        return msgspec.structs.replace(served(number), bundle=bundle != NO_BUNDLE)

    async def route(self, stable: ServedPolicy, canary: ServedPolicy | None = None) -> None:
        under_test = canary and msgspec.structs.replace(canary_route(), policy=canary)
        await routed(self.here, stable=stable, canary=under_test)


@asynccontextmanager
async def world(
    nats: Broker,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    models: Mapping[str, str] = MODELS,
    **options: Any,
) -> AsyncIterator[World]:
    monkeypatch.setenv(KEY_VARIABLE, "provider-key")
    provider = FakeProvider("provider-key")
    async with providing(provider) as url:
        upstreams = [upstream(url, **models)]
        async with scene(nats, folder, upstreams=upstreams, **options) as here:
            yield World(here, provider)


async def test_a_prompt_under_test_is_applied_and_the_other_arm_is_as_sent(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(nats, tmp_path, monkeypatch) as there:
        await there.register(0, NO_BUNDLE)
        canary = await there.register(2, instructions(OURS, model=None))
        await there.route(AS_SENT)
        before = await ask(there.here.client(), ASKED)
        assert (before.headers["x-ratchet-policy"], before.headers["x-ratchet-arm"]) == (AS_SENT.name, "stable")
        await there.route(AS_SENT, canary)
        under = await ask(there.here.client(), ASKED)
        assert (under.headers["x-ratchet-policy"], under.headers["x-ratchet-arm"]) == (canary.name, "canary")
        assert [asked["messages"][0]["content"] for asked in there.provider.asked] == [SENT, OURS]
        starts = await there.here.published(Start, 2)
        assert [start.policy.version for start in starts] == [0, 2]
        plain, changed = await there.here.published(Turn, 2)
        assert plain.applied is None
        assert [message["content"] for message in changed.messages] == [SENT, HI[0]["content"]]
        assert (changed.applied.replaced, changed.applied.head) == (1, [{"role": "system", "content": OURS}])


async def test_a_conversation_keeps_its_bundle_and_records_it_once(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(nats, tmp_path, monkeypatch) as there:
        await there.route(await there.register(2, instructions(OURS)))
        first = (await ask(there.here.client(), ASKED)).parse()
        answered = {"role": "assistant", "content": first.choices[0].message.content}
        again = await ask(there.here.client(), [*ASKED, answered, {"role": "user", "content": "and now?"}])
        assert again.headers["x-ratchet-trajectory-by"] == "prefix"
        turns = await there.here.published(Turn, 2)
        assert turns[1].parent_turn_id == turns[0].turn_id
        assert (turns[1].applied.digest, turns[1].applied.head) == (turns[0].applied.digest, None)
        assert applied_to(turns, turns[1].turn_id) == turns[0].applied


async def test_a_bundle_over_an_adapter_asks_the_engine_for_the_adapter(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = version(1)
    bundle = instructions(OURS, model=BundleModel(name=adapter.name, digest=adapter.digest))
    async with world(nats, tmp_path, monkeypatch) as there:
        await there.route(await there.register(2, bundle))
        answer = await ask(there.here.client(), ASKED)
        assert answer.headers["x-ratchet-policy"] == version(2).name
        (asked,) = there.here.engine.asked
        assert (asked["model"], asked["messages"][0]["content"]) == (adapter.name, OURS)
        (turn,) = await there.here.published(Turn, 1)
        assert (turn.policy.version, turn.trainable.ok) == (2, True)


async def test_a_pinned_bundle_answers_as_it_would_under_test(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = (Example(role="user", content="one"), Example(role="assistant", content="two"))
    bundle = Bundle(model=BY_UPSTREAM, examples=examples, overrides=SamplingValues(temperature=0.25))
    async with world(nats, tmp_path, monkeypatch) as there:
        await there.register(3, bundle)
        answer = await ask(there.here.client(), HI, model=f"{ROLE}@3")
        assert answer.headers["x-ratchet-arm"] == "pinned"
        (asked,) = there.provider.asked
        assert ([message["content"] for message in asked["messages"]], asked["temperature"]) == (
            ["one", "two", HI[0]["content"]],
            0.25,
        )


@pytest.mark.parametrize(
    ("unfit", "fault"),
    [
        (instructions("{{variables.shop}}", "shop"), None),
        (instructions(OURS, model=BundleModel(upstream="elsewhere", name="big-model")), None),
        (instructions(OURS, model=BundleModel(upstream="provider", name="retired-model")), "no_model"),
    ],
    ids=["a variable is missing", "unknown upstream", "retired model"],
)
async def test_stable_answers_where_a_bundle_under_test_cannot(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unfit: Bundle, fault: str | None
) -> None:
    async with world(nats, tmp_path, monkeypatch) as there:
        await there.register(0, NO_BUNDLE)
        await there.route(AS_SENT, await there.register(2, unfit))
        answer = await ask(there.here.client(), ASKED, extra_headers={"x-ratchet-trajectory": str(uuid.uuid4())})
        assert (answer.headers["x-ratchet-policy"], answer.headers["x-ratchet-arm"]) == (AS_SENT.name, "mixed")
        failed, answered = await there.here.published(Turn, 2)
        assert (failed.policy.version, failed.policy.arm, bool(failed.error)) == (2, "canary", True)
        assert failed.engine.fault == fault
        assert (answered.policy.version, answered.error) == (0, None)


async def test_a_call_without_a_variable_that_stable_needs_is_refused_in_words(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(nats, tmp_path, monkeypatch) as there:
        await there.route(await there.register(2, instructions("{{variables.shop}}", "shop")))
        with pytest.raises(openai.BadRequestError, match="nor `metadata` has shop") as caught:
            await ask(there.here.client(), ASKED)
        assert caught.value.code == "policy_unfit"
        fine = await ask(there.here.client(), ASKED, extra_body={"metadata": {"shop": "Acme"}})
        assert fine.headers["x-ratchet-arm"] == "stable"
        assert there.provider.asked[-1]["messages"][0]["content"] == "Acme"


async def test_a_bundle_that_is_not_stored_is_no_failure_of_the_policy(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(nats, tmp_path, monkeypatch) as there:
        await there.register(0, NO_BUNDLE)
        lost = msgspec.structs.replace(served(2), bundle=True)
        await there.route(AS_SENT, lost)
        await ask(there.here.client(), ASKED)
        failed, _ = await there.here.published(Turn, 2)
        assert (failed.policy.version, failed.engine.fault) == (2, "unserved")


async def test_an_agent_that_asks_for_its_bundle_composes_its_prompt_itself(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(nats, tmp_path, monkeypatch) as there:
        await there.register(0, NO_BUNDLE)
        await there.route(
            AS_SENT, await there.register(2, instructions("{{variables.shop}}: {{instructions}}", "shop"))
        )
        settings = ClientSettings(gateway_url=there.here.url)
        async with AsyncClient("agent", role=ROLE, settings=settings) as client:
            got = await client.bundle(user="user-17")
        assert (got.policy, got.arm) == (version(2).name, "canary")
        system = got.instructions(SENT, {"shop": "Acme"})
        assert system == f"Acme: {SENT}"
        composed = [{"role": "system", "content": system}, *HI]
        for headers in (got.headers, {"x-ratchet-trajectory": got.trajectory_id}):
            answer = await ask(there.here.client(), composed, extra_headers=headers)
            assert answer.headers["x-ratchet-policy"] == got.policy
        assert [asked["messages"] for asked in there.provider.asked] == [composed, composed]
        turns = await there.here.published(Turn, 2)
        assert sorted(turn.applied_by for turn in turns) == ["agent", "none"]
        assert sorted(turn.header_summary.unapplied for turn in turns) == [False, True]
        (start,) = await there.here.published(Start, 1)
        assert (start.trajectory_id, start.subject_ref is not None) == (got.trajectory_id, True)


async def test_a_bundle_that_was_not_read_is_not_given_as_an_empty_one(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(nats, tmp_path, monkeypatch) as there, http_client() as http:
        await there.register(2, NO_BUNDLE)
        await there.route(msgspec.structs.replace(served(2), bundle=True))
        answer = await http.get(f"{there.here.url}/v1/bundle", params={"role": ROLE, "trajectory": "run 7"})
        assert (answer.status_code, "has not read the bundle" in answer.text) == (503, True)


async def test_a_role_whose_policy_is_no_bundle_has_an_empty_one(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(nats, tmp_path, monkeypatch) as there, http_client() as http:
        await there.route(served(1))
        answer = (await http.get(f"{there.here.url}/v1/bundle", params={"role": ROLE, "trajectory": "run 7"})).json()
        assert (answer["policy"], answer["bundle"]) == (version(1).name, {})
        unknown = await http.get(f"{there.here.url}/v1/bundle", params={"role": "unknown"})
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "role")


async def test_a_pinned_bundle_asks_for_the_model_that_agents_ask_for(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(nats, tmp_path, monkeypatch, models={"*": "*"}, other_role=ROLE) as there:
        await there.register(3, instructions(OURS, model=None))
        with pytest.raises(openai.APIStatusError, match="which model answers for support is not known") as caught:
            await ask(there.here.client(), HI, model=f"{ROLE}@3")
        assert (caught.value.status_code, there.provider.asked) == (503, [])
        beside = await ask(there.here.client(), HI, model="big-model", extra_body={"adapter_id": f"{ROLE}@3"})
        await there.route(AS_SENT)
        await ask(there.here.client(), HI, model="big-model")
        pinned = await ask(there.here.client(), HI, model=f"{ROLE}@3")
        assert [answer.headers["x-ratchet-policy"] for answer in (beside, pinned)] == [version(3).name] * 2
        assert {asked["model"] for asked in there.provider.asked} == {"big-model"}


async def test_a_large_call_is_changed_beside_the_event_loop(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    apply = Applier.apply

    def seen(*given: Any, **named: Any) -> CallRequest:
        threads.append(threading.current_thread())
        return apply(*given, **named)

    monkeypatch.setattr(Applier, "apply", seen)
    async with world(nats, tmp_path, monkeypatch) as there:
        await there.route(await there.register(2, instructions(OURS)))
        await ask(there.here.client(), [{"role": "user", "content": "x" * LARGE}])
    (thread,) = threads
    assert thread is not threading.main_thread()


async def test_a_history_that_is_not_kept_is_not_found(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = version(1)
    async with world(nats, tmp_path, monkeypatch) as there:
        model = BundleModel(name=adapter.name, digest=adapter.digest)
        await there.route(await there.register(2, instructions(OURS, model=model)))
        client = there.here.client()
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model=ROLE, input="?", previous_response_id="resp_unknown")
        first = await client.responses.create(model=ROLE, input="hi", instructions=SENT)
        second = await client.responses.create(model=ROLE, input="?", previous_response_id=first.id)
    assert (first.instructions, second.previous_response_id) == (SENT, first.id)
    texts = [[message["content"] for message in asked["messages"]] for asked in there.here.engine.asked]
    assert texts == [[OURS, "hi"], [OURS, "hi", first.output_text, "?"]]


async def test_planner_is_given_to_who_fetches_it_and_answers_no_call(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = Bundle(planner=PlannerRef(uri=f"s3://ratchet/blobs/{'a' * 64}", sha256="a" * 64))
    async with world(nats, tmp_path, monkeypatch) as there, http_client() as http:
        await there.route(await there.register(2, plans))
        with pytest.raises(openai.BadRequestError, match="plans workflows and answers no calls") as caught:
            await ask(there.here.client(), ASKED)
        assert (caught.value.code, there.provider.asked) == ("policy_unfit", [])
        answer = (await http.get(f"{there.here.url}/v1/bundle", params={"role": ROLE, "trajectory": "run 7"})).json()
        assert (answer["version"], answer["arm"]) == (2, "stable")
        assert answer["bundle"] == msgspec.to_builtins(plans)
        starts = await there.here.published(Start, 2)
        assert answer["trajectory_id"] in {start.trajectory_id for start in starts}
