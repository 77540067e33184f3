"""Gateway and local engine together: what agents get, what learners read, and what happens when the engine dies."""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import build as build_deployer
from ratchet.canary_deployer.settings import Settings as DeployerSettings
from ratchet.core.contract import Turn
from ratchet.core.contract.state import PolicyVersion, Route, ServedPolicy
from ratchet.core.rules.arms import policy_name
from ratchet.core.rules.recorded import ids_digest
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import Policy
from ratchet.gateway.app import build
from ratchet.gateway.settings import Settings
from ratchet.local.local_stack.ports import free_ports
from tests.support.command_lines import ratchet
from tests.support.consuming import messages_of
from tests.support.engine_process import (
    AT,
    Published,
    logprobs_by_transformers,
    publish,
    publish_for_role,
    running_engine,
)
from tests.support.fake_engine import TOOLS
from tests.support.gateway_alone import InThisProcess
from tests.support.reward_models import publish_reward_model, reward_of
from tests.support.running import connected, http_client, running_app
from tests.support.servers import Broker, RunningServer, s3_settings

pytestmark = pytest.mark.slow

ROLE = "helpdesk"
OPENING: list[Any] = [
    {"role": "system", "content": "You are a kind help desk clerk."},
    {"role": "user", "content": "where is my order K47"},
]


@dataclass
class Scene:
    """A gateway in this process, in front of an engine in another one."""

    client: openai.AsyncOpenAI
    bus: Bus

    async def ask(self, messages: Sequence[Any], trajectory: str, **options: Any) -> Any:
        options = {"model": ROLE, "max_tokens": 8, "tools": TOOLS, **options}
        headers = {"x-ratchet-trajectory": trajectory}
        return await self.client.chat.completions.with_raw_response.create(
            messages=list(messages), extra_headers=headers, **options
        )

    async def play(self, calls: int, seed: int, **options: Any) -> str:
        """One trajectory of `calls` calls, each continuing the one before; returns its id."""
        trajectory, messages = str(uuid.uuid4()), list(OPENING)
        for number in range(calls):
            answer = (await self.ask(messages, trajectory, seed=seed + number, **options)).parse()
            message = answer.choices[0].message.model_dump(exclude_none=True)
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": "sent on monday"}
                for call in message.get("tool_calls", [])
            ]
            messages += [message, *(results or [{"role": "user", "content": f"and now, {number}"}])]
        return trajectory

    async def turns(self, trajectory: str, number: int) -> list[Turn]:
        """The trajectory's turns, once there are `number` of them."""

        async def probe() -> list[Turn]:
            turns = [turn for turn in await messages_of(self.bus, Turn) if turn.trajectory_id == trajectory]
            return turns if len(turns) >= number else []

        return await eventually(probe)


@pytest.fixture(scope="module")
def store(s3: RunningServer) -> SharedSettings:
    return s3_settings(s3, "gateway-engine-test")


@pytest.fixture(scope="module")
def published(store: SharedSettings, tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish(store, tmp_path_factory.mktemp("published"), ROLE)


@pytest.fixture(scope="module")
def engine(store: SharedSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    scratch = tmp_path_factory.mktemp("engine")
    with running_engine(store, scratch, RATCHET_ENGINE_RESIDENT_POLICIES="12") as server:
        yield server


@asynccontextmanager
async def scene(nats: Broker, engine: RunningServer, published: Published, folder: Path) -> AsyncIterator[Scene]:
    shared = SharedSettings(nats_url=nats.url, data_dir=folder)
    async with connected(shared) as bus:
        versions = [_version(1, published.model), _version(2, published.adapter)]
        for version in versions:
            await Bucket(bus, "policies", PolicyVersion).put(f"{ROLE}.{version.version}", version)
        stable = ServedPolicy(version=2, name=versions[1].name, digest=versions[1].digest)
        await Bucket(bus, "policies", Route).put(ROLE, Route(role=ROLE, stable=stable, next_version=3))
        settings = Settings(shared=shared, port=0, grace_s=0.0, engine_url=engine.url)
        async with running_app(build(settings, recorders=InThisProcess())) as app:
            port: int = app.components[-1].port  # type: ignore[attr-defined]
            async with openai.AsyncOpenAI(
                base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60
            ) as client:
                await eventually(lambda: _listed(client))
                yield Scene(client, bus)


async def test_learner_gets_back_exactly_the_tokens_that_the_policy_saw_and_drew(
    nats: Broker, engine: RunningServer, published: Published, tmp_path: Path
) -> None:
    async with scene(nats, engine, published, tmp_path) as here:
        trajectory = await here.play(3, seed=11, temperature=0.8)
        turns = await here.turns(trajectory, 3)
    assert [turn.index for turn in turns] == [0, 1, 2]
    assert [turn.parent_turn_id for turn in turns] == [None, turns[0].turn_id, turns[1].turn_id]
    assert {turn.policy.version for turn in turns} == {2}
    whole: list[int] = []
    for turn in turns:
        prompt = _prompt(turn, whole)
        output = turn.output_token_ids or []
        assert turn.trainable.ok, turn.trainable.reason
        assert turn.usage is not None
        assert (turn.usage.prompt, turn.usage.completion) == (len(prompt), len(output))
        cooled = logprobs_by_transformers(published, prompt, output, adapted=True, temperature=0.8)
        assert max(abs(a - b) for a, b in zip(turn.behavior_logprobs or [], cooled, strict=True)) < 1e-3
        whole = prompt + output


async def test_agents_that_call_at_the_same_time_are_kept_apart(
    nats: Broker, engine: RunningServer, published: Published, tmp_path: Path
) -> None:
    async with scene(nats, engine, published, tmp_path) as here:
        trajectories = await asyncio.gather(*(here.play(2, seed=100 * n) for n in range(8)))
        for trajectory in trajectories:
            turns = await here.turns(trajectory, 2)
            assert [turn.parent_turn_id for turn in turns] == [None, turns[0].turn_id]
            whole = _prompt(turns[0], []) + (turns[0].output_token_ids or [])
            assert _prompt(turns[1], whole)
            assert {turn.trainable.ok for turn in turns} == {True}


async def test_pinned_version_answers_with_the_members_that_the_agent_asked_for(
    nats: Broker, engine: RunningServer, published: Published, tmp_path: Path
) -> None:
    async with scene(nats, engine, published, tmp_path) as here:
        plain = await here.ask(OPENING, str(uuid.uuid4()), model=f"{ROLE}@1")
        assert plain.headers["x-ratchet-policy"] == policy_name(ROLE, 1, published.model.digest)
        assert plain.headers["x-ratchet-arm"] == "pinned"
        assert "prompt_token_ids" not in plain.parse().model_dump()
        asked = await here.ask(OPENING, str(uuid.uuid4()), logprobs=True, extra_body={"return_token_ids": True})
        choice = asked.parse().choices[0]
        assert len(choice.logprobs.content) == len(choice.model_dump()["token_ids"])


@pytest.mark.timeout(300)
async def test_best_of_n_is_the_sample_that_the_reward_model_likes_best(
    nats: Broker, engine: RunningServer, published: Published, store: SharedSettings, tmp_path: Path
) -> None:
    base = published.directory
    judge, model = publish_reward_model(Objects(store), base, tmp_path / "reward", adapter=True)
    tasks, output = tmp_path / "tasks.jsonl", tmp_path / "tries.jsonl"
    asked = {f"t{number}": [{"role": "user", "content": f"where is my order K{number}"}] for number in range(3)}
    expect = {"text": {"any_of": ["it was sent on monday"]}}
    lines = [json.dumps({"id": name, "messages": chat, "expect": expect}) for name, chat in asked.items()]
    tasks.write_text("\n".join(lines))
    (port,) = free_ports(1)
    shared = store.model_copy(update={"nats_url": nats.url, "data_dir": tmp_path / "deployer"})
    deployer = DeployerSettings(shared=shared, port=port, engine_url=engine.url)
    async with scene(nats, engine, published, tmp_path) as here, running_app(build_deployer(deployer)):
        done = await asyncio.to_thread(
            ratchet,
            *("eval", ROLE, "--tasks", str(tasks), "--samples", "4", "--reward-model", judge.uri),
            *("-o", str(output), "--json"),
            RATCHET_GATEWAY_URL=str(here.client.base_url).removesuffix("/v1/"),
            RATCHET_DEPLOYER_URL=f"http://127.0.0.1:{port}",
            RATCHET_ENGINE_URL=engine.url,
        )
    assert done.returncode == 0, done.stderr
    assert [one["mode"] for one in json.loads(done.stdout)["summaries"]] == ["greedy", "sampled", "best"]
    tries = [json.loads(line) for line in output.read_text().splitlines()]
    for name, chat in asked.items():
        sampled = [one for one in tries if (one["task"], one["mode"]) == (name, "sampled")]
        answers = [one["message"]["content"] for one in sampled]
        rewards = [reward_of(model, base, [*chat, {"role": "assistant", "content": text}]) for text in answers]
        likes = [1 / (1 + math.exp(-reward)) for reward in rewards]
        assert [one["reward"] for one in sampled] == pytest.approx(likes, abs=1e-4)
        (best,) = (one for one in tries if (one["task"], one["mode"]) == (name, "best"))
        assert best["message"]["content"] == answers[likes.index(max(likes))]


async def test_dead_engine_is_clear_error_and_restarted_one_gets_its_policy_back(
    nats: Broker, engine: RunningServer, published: Published, tmp_path: Path
) -> None:
    async with scene(nats, engine, published, tmp_path) as here:
        trajectory = str(uuid.uuid4())
        await here.ask(OPENING, trajectory)
        await asyncio.to_thread(engine.kill)
        with pytest.raises(openai.InternalServerError) as dead:
            await here.ask(OPENING, trajectory)
        assert dead.value.status_code == 502
        assert dead.value.code == "engine_unavailable"
        await asyncio.to_thread(engine.start)
        failed = 1

        async def answered() -> Any:
            nonlocal failed
            try:
                return await here.ask(OPENING, trajectory)
            except openai.InternalServerError:  # the gateway has not seen yet that it is back
                failed += 1
                return None

        answer = await eventually(answered)
        assert answer.headers["x-ratchet-policy"] == policy_name(ROLE, 2, published.adapter.digest)
        turns = await here.turns(trajectory, failed + 2)
        assert [turn.trainable.reason for turn in turns] == [None, *["error"] * failed, None]


async def test_ten_roles_are_served_at_once_by_policies_on_one_base(
    nats: Broker, engine: RunningServer, published: Published, store: SharedSettings, tmp_path: Path
) -> None:
    roles = [f"role_{number}" for number in range(10)]
    async with scene(nats, engine, published, tmp_path) as here:
        names: dict[str, str] = {}
        for role in roles:
            version = _version(1, publish_for_role(store, published, role), role)
            names[role] = version.name
            await Bucket(here.bus, "policies", PolicyVersion).put(f"{role}.1", version)
            stable = ServedPolicy(version=1, name=version.name, digest=version.digest)
            await Bucket(here.bus, "policies", Route).put(role, Route(role=role, stable=stable, next_version=2))
        await eventually(lambda: _listed(here.client, roles[-1]))
        assert len(set(names.values())) == 10
        for _ in range(2):
            answers = await asyncio.gather(*(here.ask(OPENING, str(uuid.uuid4()), model=role) for role in roles))
            assert [answer.headers["x-ratchet-policy"] for answer in answers] == list(names.values())
            assert {answer.headers["x-ratchet-arm"] for answer in answers} == {"stable"}
        with pytest.raises(
            openai.NotFoundError, match="the model 'role_10', which stands for the role 'default'"
        ) as missing:
            await here.ask(OPENING, str(uuid.uuid4()), model="role_10")
        assert missing.value.code == "model_not_found"
    async with http_client() as http:
        counted = (await http.get(f"http://127.0.0.1:{engine.program.health_port}/metrics")).text
    assert "ratchet_engine_bases 1.0" in counted
    assert "ratchet_engine_base_loads_total 1.0" in counted


async def test_a_real_engine_streams_and_completes_texts_and_token_ids(
    nats: Broker, engine: RunningServer, published: Published, tmp_path: Path
) -> None:
    async with scene(nats, engine, published, tmp_path) as here:
        plain = (await here.ask(OPENING, str(uuid.uuid4()), seed=3)).parse()
        trajectory = str(uuid.uuid4())
        raw = await here.ask(OPENING, trajectory, seed=3, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in raw.parse()]
        streamed_text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert streamed_text == (plain.choices[0].message.content or "")
        assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
        (streamed,) = await here.turns(trajectory, 1)
        assert streamed.trainable.ok, streamed.trainable.reason
        client = here.client.with_options(default_headers={"x-ratchet-trajectory": (texts := str(uuid.uuid4()))})
        for prompt in ("where is my order", [20, 21, 22]):
            answer = await client.completions.create(model=ROLE, prompt=prompt, max_tokens=4, seed=3)
            assert answer.usage is not None
            assert answer.usage.completion_tokens <= 4
        text, ids = await here.turns(texts, 2)
        assert (text.trainable.ok, ids.trainable.reason) == (True, "unsearchable_prompt")
        assert len(text.output_token_ids or []) == len(text.behavior_logprobs or [0])


async def _listed(client: openai.AsyncOpenAI, role: str = ROLE) -> bool:
    return role in [model.id async for model in client.models.list()]


def _version(number: int, policy: Policy, role: str = ROLE) -> PolicyVersion:
    return PolicyVersion(
        role=role,
        version=number,
        name=policy_name(role, number, policy.digest),
        digest=policy.digest,
        uri=policy.uri,
        kind=policy.manifest.kind,
        base_model=policy.manifest.base_model,
        created_at=AT,
        stage="stable",
    )


def _prompt(turn: Turn, parent_ids: Sequence[int]) -> list[int]:
    """The whole prompt of a call whose parent's prompt and output are `parent_ids`."""
    delta = turn.prompt_token_ids
    assert delta is not None
    prefix = list(parent_ids[: delta.prefix_length])
    assert len(prefix) == delta.prefix_length
    assert delta.prefix_digest == (ids_digest(prefix) if prefix else None)
    return prefix + delta.suffix
