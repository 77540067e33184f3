"""A small loop on any engine: SFT from logs, served, played, RLOO from its turns, served again.

The parrot is asked for two colours, one after the other, and is right where it repeats both. It learns on a base of
random weights; the engine's own log-probabilities are what RLOO corrects by.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from ratchet.core.contract.policy_manifest import ADAPTER, PolicyManifest
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.training import Compute, Hyperparameters, Lora
from ratchet.core.stores.policies import BlobStore, Policy, publish_policy, tokenizer_digest, upload_files
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.policy import load_policy, probe_policy, save_policy
from tests.support.messages import AT
from tests.support.served_scene import ServedScene, learning_row
from tests.support.snapshot_rows import trajectory_row
from tests.support.toy_preferences import parrot_chats
from tests.support.trainer_runs import RecordingRun, job_spec

RANK = 16
SFT = Hyperparameters(learning_rate=5e-3, batch_size=16, max_steps=120, epochs=100, warmup_steps=5, lora=Lora(r=RANK))
RLOO = Hyperparameters(learning_rate=5e-4, batch_size=64, epochs=1, warmup_steps=0)
TASKS, TRIES = 16, 8


def lessons() -> list[list[dict[str, Any]]]:
    """48 conversations of two asks with the right answers."""
    chats = parrot_chats()
    return [[*chat, *chats[(7 * number + 5) % len(chats)][2:]] for number, chat in enumerate(chats)]


def lesson_rows() -> list[TrajectoryRow]:
    """The same as logs from which `sft` learns."""
    return [trajectory_row(number, messages=chat) for number, chat in enumerate(lessons())]


@dataclass(frozen=True)
class School:
    """Trains adapters of one base and stores them."""

    objects: BlobStore
    base: Path
    model: Policy
    folder: Path
    role: str = "support"
    precision: str = "fp32"

    def train(
        self, algorithm: str, rows: Sequence[TrajectoryRow], hyper: Hyperparameters, before: Path | None = None
    ) -> tuple[Policy, Path, dict[str, float]]:
        """The stored policy, the directory of its adapter, and the job's figures. `before`: the adapter to continue."""
        spec = job_spec(algorithm, base=str(self.base), hyper=hyper, adapter=str(before) if before else None)
        spec = replace(spec, config=replace(spec.config, compute=Compute(mixed_precision=self.precision)))
        torch.manual_seed(0)
        policy = load_policy(spec)
        outcome = load_train(algorithm)(spec, policy, rows, RecordingRun(self.folder / algorithm / "run", algorithm))
        directory = self.folder / algorithm / "adapter"
        save_policy(policy, directory, self.model.uri)
        prompt = policy.tokenizer.apply_chat_template(lessons()[0][:3], add_generation_prompt=True)["input_ids"]
        manifest = PolicyManifest(
            kind=ADAPTER,
            base_model=self.model.uri,
            base_digest=self.model.digest,
            files=upload_files(self.objects, directory),
            role=self.role,
            created_at=AT,
            algorithm=algorithm,
            tokenizer_digest=tokenizer_digest(self.base),
            dtype=policy.dtype,
            probe=probe_policy(policy, prompt),
        )
        return publish_policy(self.objects, manifest), directory, dict(outcome.metrics)


@dataclass(frozen=True)
class Played:
    """Tries at the tasks."""

    rows: list[TrajectoryRow]
    right: float
    """Share of the tries that repeated both colours."""
    fork_rate: float
    """Share of second calls whose prompt does not continue the first call's tokens: the same text was encoded in
    another way than the policy wrote it."""


async def play(here: ServedScene, *, played_before: int = 0) -> Played:
    """`TRIES` at each of `TASKS`, all at the same time. `played_before`: turns that are stored already."""
    tasks = lessons()[:TASKS]
    tries = [(task, task_number) for task_number, task in enumerate(tasks) for _ in range(TRIES)]
    games = [_play_one(here, task) for task, _ in tries]
    ended = await asyncio.gather(*games)
    turns = await here.turns(played_before + 2 * len(games))
    rows = [
        learning_row(turns[name], f"task-{task}", float(right))
        for (_, task), (name, right) in zip(tries, ended, strict=True)
    ]
    forked = sum(len({span.sequence for span in row.spans}) > 1 for row in rows)
    return Played(rows, sum(right for _, right in ended) / len(ended), forked / len(rows))


async def _play_one(here: ServedScene, task: Sequence[dict[str, Any]]) -> tuple[str, bool]:
    """One try; returns its trajectory's id and whether both answers were right. Without a seed: those of several calls
    in one batch end a vLLM that was built for CPUs."""
    name, messages, right = str(uuid.uuid4()), list(task[:3]), True
    for expected, next_ask in ((task[3], task[4:5]), (task[5], ())):
        answer = await here.ask(name, messages, max_tokens=16)
        text = answer.choices[0].message.content or ""
        right = right and text.strip() == expected["content"]
        messages += [{"role": "assistant", "content": text}, *next_ask]
    return name, right
