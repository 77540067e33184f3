"""Qwen3 and Llama 3 through the whole path, with random weights: each family's configuration, template and tool calls.

An agent with tools asks the gateway; the engine forces a call and reads it in the family's format; the turns become a
snapshot's rows; RLOO learns from them, on policy; the engine serves what it has learnt.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.chat_templates.template import ChatTemplate
from ratchet.contract import Turn
from ratchet.contract.policy_manifest import ADAPTER, PolicyManifest
from ratchet.contract.snapshot import TrajectoryRow
from ratchet.contract.state import PolicyStage, PolicyVersion, Route, ServedPolicy
from ratchet.contract.training import Hyperparameters, Lora
from ratchet.datasets.domain.rows import Scored, SnapshotRow, row_of
from ratchet.gateway.app import build
from ratchet.gateway.settings import Settings
from ratchet.rules.arms import policy_name
from ratchet.service.settings import SharedSettings
from ratchet.stores.objects import Objects
from ratchet.stores.policies import Policy, publish_policy, tokenizer_digest, upload_files
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.policy import load_policy, probe_policy, save_policy
from tests.support.consuming import messages_of
from tests.support.engine_process import AT, running_engine
from tests.support.real_templates import real_tokenizer
from tests.support.running import connected, running_app
from tests.support.servers import RunningServer, s3_settings
from tests.support.tiny_models import publish_tiny_model, write_published
from tests.support.trainer_runs import RecordingRun, job_spec
from tests.support.training import trajectory

ROLE = "support"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks an order up.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"kind": {"type": "string", "enum": ["order", "bill"]}},
            "required": ["kind"],
            "additionalProperties": False,
        },
    },
}
NAMED: Any = {"type": "function", "function": {"name": "look_up"}}
OPENING: list[Any] = [
    {"role": "system", "content": "You are a kind help desk clerk."},
    {"role": "user", "content": "Where is K47?"},
]
ROUNDING = 1e-3
"""Difference of effective sample sizes that float32 leaves."""


@dataclass(frozen=True)
class Family:
    """What is a family's own."""

    name: str
    template: str
    """Of `tests.support.real_templates`."""
    tool_format: str
    ends: tuple[str, ...]
    """Tokens that end an answer; the tokenizer names the first."""
    call: str
    """What a call looks like, up to its arguments."""


QWEN3 = Family("qwen3", "qwen3", "hermes", ("<|im_end|>", "</s>"), '<tool_call>\n{"name": "look_up", "arguments": ')
LLAMA3 = Family("llama3", "llama3_1", "llama3_json", ("<|eot_id|>", "<|eom_id|>"), '{"name": "look_up", "parameters": ')
FAMILIES = (QWEN3, LLAMA3)


def write_family(directory: Path, family: Family) -> Path:
    """A model as its makers publish it, but tiny: tokenizer with control tokens and template, weights, generation."""
    tokenizer = real_tokenizer(directory, family.template)
    tokenizer.add_tokens(list(family.ends), special_tokens=True)
    tokenizer.eos_token = tokenizer.pad_token = family.ends[0]
    tokenizer.save_pretrained(directory)
    ends = [tokenizer.convert_tokens_to_ids(end) for end in family.ends]
    write_published(directory, family.name, len(tokenizer), ends)
    assert ChatTemplate(tokenizer).tool_format == family.tool_format
    return directory


@dataclass
class Scene:
    """A gateway in this process, in front of an engine that serves one family."""

    family: Family
    base: Path
    model: Policy
    objects: Objects
    bus: Bus
    client: openai.AsyncOpenAI

    async def serve(self, number: int, policy: Policy) -> str:
        """Register a policy as stable; returns its name."""
        name = policy_name(ROLE, number, policy.digest)
        entry = PolicyVersion(
            role=ROLE,
            version=number,
            name=name,
            digest=policy.digest,
            uri=policy.uri,
            kind=policy.manifest.kind,
            base_model=policy.manifest.base_model,
            created_at=AT,
            stage=PolicyStage.STABLE,
        )
        await self.bus.bucket("policies", PolicyVersion).put(f"{ROLE}.{number}", entry)
        stable = ServedPolicy(version=number, name=name, digest=policy.digest)
        await self.bus.bucket("policies", Route).put(ROLE, Route(role=ROLE, stable=stable, next_version=number + 1))
        await eventually(lambda: self._is_served(name))
        return name

    async def play(self, seed: int) -> list[Turn]:
        """One trajectory: a forced call, its result, and an answer in words."""
        name = str(uuid.uuid4())
        headers = {"x-ratchet-trajectory": name}
        asked: dict[str, Any] = {"model": ROLE, "tools": [TOOL], "extra_headers": headers}
        first: Any = await self.client.chat.completions.create(
            messages=OPENING, max_tokens=200, seed=seed, tool_choice=NAMED, **asked
        )
        assert first.choices[0].message.tool_calls, first
        (call,) = first.choices[0].message.tool_calls
        assert call.function.name == "look_up"
        assert json.loads(call.function.arguments)["kind"] in ("order", "bill")
        reply = first.choices[0].message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": call.id, "content": '{"sent": "monday"}'}
        await self.client.chat.completions.create(
            messages=[*OPENING, reply, result], max_tokens=12, seed=seed, tool_choice="none", **asked
        )

        async def turns() -> list[Turn]:
            own = [turn for turn in await messages_of(self.bus, Turn) if turn.trajectory_id == name]
            return own if len(own) == 2 else []

        return await eventually(turns)

    async def _is_served(self, name: str) -> bool:
        if ROLE not in [model.id async for model in self.client.models.list()]:
            return False
        answer = await self.client.chat.completions.with_raw_response.create(model=ROLE, messages=OPENING, max_tokens=1)
        return answer.headers["x-ratchet-policy"] == name


@pytest.fixture(scope="module")
def store(s3: RunningServer) -> SharedSettings:
    return s3_settings(s3, "model-families-test")


@asynccontextmanager
async def scene(family: Family, nats: RunningServer, store: SharedSettings, folder: Path) -> AsyncIterator[Scene]:
    objects = Objects(store)
    objects.ensure_bucket()
    base = write_family(folder / "base", family)
    model = publish_tiny_model(objects, base, ROLE, AT)
    shared = SharedSettings(nats_url=nats.url, data_dir=folder)
    with running_engine(store, folder) as engine:
        async with connected(shared) as bus:
            first = ServedPolicy(version=1, name=policy_name(ROLE, 1, model.digest), digest=model.digest)
            await bus.bucket("policies", Route).put(ROLE, Route(role=ROLE, stable=first, next_version=2))
            settings = Settings(shared=shared, port=0, grace_s=0.0, engine_url=engine.url)
            async with running_app(build(settings)) as app:
                port: int = app.components[-1].port  # type: ignore[attr-defined]
                address = f"http://127.0.0.1:{port}/v1"
                async with openai.AsyncOpenAI(base_url=address, api_key="none", timeout=60) as client:
                    yield Scene(family, base, model, objects, bus, client)


def rows_of(played: Sequence[Sequence[Turn]]) -> list[TrajectoryRow]:
    """A snapshot's rows of tries at one task; every other one wins."""
    rows: list[TrajectoryRow] = []
    for number, turns in enumerate(played):
        reward = float(number % 2)
        known = trajectory(turns[0].trajectory_id, turns=turns, success=bool(reward))
        made = row_of(known, turns, Scored("task", reward, reward, None), needs_calls=True)
        assert isinstance(made, SnapshotRow), made
        assert isinstance(made.row, TrajectoryRow)
        rows.append(made.row)
    return rows


def learnt(here: Scene, rows: Sequence[TrajectoryRow], folder: Path) -> tuple[Policy, float]:
    """The adapter that RLOO makes of the rows, stored; and the effective sample size at its start."""
    hyper = Hyperparameters(learning_rate=1e-2, batch_size=4, max_steps=2, warmup_steps=0, lora=Lora(r=4))
    spec = job_spec("rloo", base=str(here.base), hyper=hyper)
    torch.manual_seed(0)
    policy = load_policy(spec)
    outcome = load_train("rloo")(spec, policy, rows, RecordingRun(folder / "run", "rloo"))
    save_policy(policy, folder / "adapter", here.model.uri)
    manifest = PolicyManifest(
        kind=ADAPTER,
        base_model=here.model.uri,
        base_digest=here.model.digest,
        files=upload_files(here.objects, folder / "adapter"),
        role=ROLE,
        created_at=AT,
        tokenizer_digest=tokenizer_digest(here.base),
        dtype=policy.dtype,
        probe=probe_policy(policy, rows[0].token_ids[:40]),
    )
    return publish_policy(here.objects, manifest), outcome.metrics["start_ess"]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_a_family_is_served_with_tools_captured_trained_and_served_again(
    family: Family, nats: RunningServer, store: SharedSettings, tmp_path: Path
) -> None:
    async with scene(family, nats, store, tmp_path) as here:
        await here.serve(1, here.model)
        played = [await here.play(seed) for seed in range(4)]
        for turns in played:
            assert [turn.trainable.reason for turn in turns] == [None, None]
            assert turns[1].parent_turn_id == turns[0].turn_id
        tokenizer = real_tokenizer(tmp_path / "tokens", family.template)
        rows = rows_of(played)
        text = tokenizer.decode(played[0][0].output_token_ids or [])
        assert family.call in text
        adapter, start_ess = learnt(here, rows, tmp_path)
        assert start_ess > 1 - ROUNDING  # the log-probabilities are those that the trainer computes, masks included
        name = await here.serve(2, adapter)
        turns = await here.play(seed=7)
        assert {turn.policy.digest for turn in turns} == {adapter.digest}
        assert name == policy_name(ROLE, 2, adapter.digest)
