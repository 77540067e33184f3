"""Qwen3 and Llama 3 through the whole path, with random weights: each family's configuration, template and tool calls.

An agent with tools asks the gateway; the engine forces a call and reads it in the family's format; the turns become a
snapshot's rows; RLOO learns from them, on policy; the engine serves what it has learnt.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.core.chat_templates.template import ChatTemplate
from ratchet.core.contract.policy_manifest import ADAPTER, PolicyManifest
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.training import Hyperparameters, Lora
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import Policy, publish_policy, tokenizer_digest, upload_files
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.policy import load_policy, probe_policy, save_policy
from tests.support.engine_process import AT, running_engine
from tests.support.real_templates import real_tokenizer
from tests.support.served_scene import ServedScene, learning_row, served_scene
from tests.support.servers import Broker, RunningServer, s3_settings
from tests.support.tiny_models import publish_tiny_model, write_published
from tests.support.trainer_runs import RecordingRun, job_spec

pytestmark = pytest.mark.slow

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
NAMED = {"type": "function", "function": {"name": "look_up"}}
OPENING = [
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
    """How a call begins."""


FAMILIES = (
    Family("qwen3", "qwen3", "hermes", ("<|im_end|>", "</s>"), "<tool_call>"),
    Family("llama3", "llama3_1", "llama3_json", ("<|eot_id|>", "<|eom_id|>"), '{"name": "look_up", "parameters": '),
)


def write_family(directory: Path, family: Family) -> Any:
    """A model as its makers publish it, but tiny: weights, generation settings, and the tokenizer that is returned."""
    tokenizer = real_tokenizer(directory, family.template)
    tokenizer.add_tokens(list(family.ends), special_tokens=True)
    tokenizer.eos_token = tokenizer.pad_token = family.ends[0]
    tokenizer.save_pretrained(directory)
    ends = [tokenizer.convert_tokens_to_ids(end) for end in family.ends]
    write_published(directory, family.name, len(tokenizer), ends)
    assert ChatTemplate(tokenizer).tool_format == family.tool_format
    return tokenizer


async def play(here: ServedScene, seed: int) -> str:
    """One trajectory: a forced call, its result, and an answer in words; returns its id."""
    trajectory = str(uuid.uuid4())
    first = await here.ask(trajectory, OPENING, max_tokens=200, seed=seed, tools=[TOOL], tool_choice=NAMED)
    (call,) = first.choices[0].message.tool_calls
    assert call.function.name == "look_up"
    assert json.loads(call.function.arguments)["kind"] in ("order", "bill")
    reply = first.choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"sent": "monday"}'}
    await here.ask(trajectory, [*OPENING, reply, result], max_tokens=12, seed=seed, tools=[TOOL], tool_choice="none")
    return trajectory


def learn(
    objects: Objects, base: Path, model: Policy, rows: Sequence[TrajectoryRow], folder: Path
) -> tuple[Policy, float]:
    """The adapter that RLOO makes of the rows, stored; and the effective sample size at its start."""
    hyper = Hyperparameters(learning_rate=1e-2, batch_size=4, max_steps=2, warmup_steps=0, lora=Lora(r=4))
    spec = job_spec("rloo", base=str(base), hyper=hyper)
    torch.manual_seed(0)
    policy = load_policy(spec)
    outcome = load_train("rloo")(spec, policy, rows, RecordingRun(folder / "run", "rloo"))
    save_policy(policy, folder / "adapter", model.uri)
    manifest = PolicyManifest(
        kind=ADAPTER,
        base_model=model.uri,
        base_digest=model.digest,
        files=upload_files(objects, folder / "adapter"),
        role=ROLE,
        created_at=AT,
        tokenizer_digest=tokenizer_digest(base),
        dtype=policy.dtype,
        probe=probe_policy(policy, rows[0].token_ids[:40]),
    )
    return publish_policy(objects, manifest), outcome.metrics["start_ess"]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_a_family_is_served_with_tools_captured_trained_and_served_again(
    family: Family, nats: Broker, s3: RunningServer, tmp_path: Path
) -> None:
    store = s3_settings(s3, "model-families-test")
    objects = Objects(store)
    objects.ensure_bucket()
    tokenizer = write_family(tmp_path / "base", family)
    model = publish_tiny_model(objects, tmp_path / "base", ROLE, AT)
    with running_engine(store, tmp_path) as engine:
        async with served_scene(nats, tmp_path, engine.url) as here:
            await here.serve(1, model)
            ids = [await play(here, seed) for seed in range(4)]
            played = await here.turns(2 * len(ids))
            for trajectory in ids:
                first, second = played[trajectory]
                assert (first.trainable.reason, second.trainable.reason) == (None, None)
                assert second.parent_turn_id == first.turn_id
                assert family.call in tokenizer.decode(first.output_token_ids)
            rows = [learning_row(played[one], "task", float(number % 2)) for number, one in enumerate(ids)]
            adapter, start_ess = learn(objects, tmp_path / "base", model, rows, tmp_path)
            assert start_ess > 1 - ROUNDING  # the trainer computes what the engine has drawn from, masks included
            await here.serve(2, adapter)
            last = await play(here, seed=7)
            turns = (await here.turns(2 * len(ids) + 2))[last]
    assert {turn.policy.digest for turn in turns} == {adapter.digest}
