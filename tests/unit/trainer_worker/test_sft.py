"""Supervised fine-tuning through TRL: the loss falls, a stop resumes bit for bit, adapters leave the base alone."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from ratchet.core.chat_templates.encoder import BLOCK
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.training import Hyperparameters, Lora
from ratchet.trainer_worker.errors import StopRequested
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.checkpoints import open_checkpoint
from ratchet.trainer_worker.training.policy import TrainedPolicy, load_policy, probe_policy, save_policy
from tests.support.snapshot_rows import trajectory_row
from tests.support.tiny_models import chat_texts, write_tiny_model
from tests.support.trainer_runs import JOB_ID, RecordingRun, job_spec

COLOURS = ["red", "green", "blue", "amber"]


def chat(number: int) -> list[dict[str, Any]]:
    colour = COLOURS[number % len(COLOURS)]
    return [
        {"role": "system", "content": "You are a parrot. Repeat the colour that you hear, and nothing else."},
        {"role": "user", "content": f"Say {colour}."},
        {"role": "assistant", "content": f"{colour}!"},
        {"role": "user", "content": "Again."},
        {"role": "assistant", "content": f"{colour} {colour}!"},
    ]


CHATS = [chat(number) for number in range(24)]
LOGGED = [trajectory_row(n, success=True, messages=messages) for n, messages in enumerate(CHATS)]
HYPER = Hyperparameters(learning_rate=5e-3, batch_size=8, max_steps=10, full_finetune=True, seed=3)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("base"), chat_texts(CHATS), vocabulary=320))


def trained(run: RecordingRun, base: str, hyper: Hyperparameters) -> TrainedPolicy:
    spec = job_spec("sft", base=base, hyper=hyper)
    torch.manual_seed(hyper.seed or 0)
    policy = load_policy(spec)
    load_train("sft")(spec, policy, LOGGED, run)
    return policy


def test_the_loss_falls_and_every_step_is_reported(base: str, tmp_path: Path) -> None:
    run = RecordingRun(tmp_path, "sft")
    trained(run, base, HYPER)
    assert run.samples == 24
    assert [step.number for step in run.steps] == list(range(1, 11))
    assert run.total == 10
    assert run.losses[-1] < 0.75 * run.losses[0]


class ReadMessages(list[dict[str, Any]]):
    """The messages of a trajectory, which can be watched."""


class WatchedSnapshot(Sequence[TrajectoryRow]):
    """Trajectories that are made when they are read; `most` counts those that were in memory at one time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._alive: list[weakref.ref[ReadMessages]] = []
        self.most = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("a snapshot is read in order")

    def __iter__(self) -> Iterator[TrajectoryRow]:
        for number in range(self._count):
            messages = ReadMessages(chat(number))
            self._alive = [one for one in self._alive if one() is not None] + [weakref.ref(messages)]
            self.most = max(self.most, len(self._alive))
            yield trajectory_row(number, messages=messages)


def test_what_is_lost_of_the_chats_is_known_before_the_first_train_step(base: str, tmp_path: Path) -> None:
    run = RecordingRun(tmp_path, "sft", stop_after=0)
    with pytest.raises(StopRequested):
        trained(run, base, msgspec.structs.replace(HYPER, max_length=32))
    first = "24 rows are longer than 32 tokens, and lose their end: the longest has 46, the first are of t0, t1, t2."
    assert run.findings[0] == first
    whole = RecordingRun(tmp_path, "sft", stop_after=0)
    with pytest.raises(StopRequested):
        trained(whole, base, HYPER)
    assert whole.findings == []


def test_of_a_long_snapshot_a_few_chats_are_in_memory_at_a_time(base: str, tmp_path: Path) -> None:
    spec = job_spec("sft", base=base, hyper=Hyperparameters(learning_rate=5e-3, max_steps=1, full_finetune=True))
    snapshot = WatchedSnapshot(4 * BLOCK)
    load_train("sft")(spec, load_policy(spec), snapshot, RecordingRun(tmp_path, "sft"))
    assert 0 < snapshot.most <= 2 * BLOCK


def test_stopped_and_resumed_training_ends_bit_for_bit_like_unbroken_one(base: str, tmp_path: Path) -> None:
    unbroken = RecordingRun(tmp_path / "whole", "sft")
    whole = trained(unbroken, base, HYPER)
    broken = RecordingRun(tmp_path / "half", "sft", stop_after=5)
    with pytest.raises(StopRequested):
        trained(broken, base, HYPER)
    checkpoint = open_checkpoint(broken.newest().directory, JOB_ID, "sft")
    assert checkpoint.manifest.step == 5
    rest = RecordingRun(tmp_path / "rest", "sft", resume=checkpoint)
    resumed = trained(rest, base, HYPER)
    assert [step.number for step in rest.steps] == [6, 7, 8, 9, 10]
    assert unbroken.losses == broken.losses + rest.losses
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_adapter_can_be_trained_saved_and_continued(base: str, tmp_path: Path) -> None:
    hyper = Hyperparameters(learning_rate=1e-2, batch_size=8, max_steps=4, lora=Lora(r=4, alpha=8))
    policy = trained(RecordingRun(tmp_path / "one", "sft"), base, hyper)
    saved = tmp_path / "adapter"
    save_policy(policy, saved, "s3://bucket/policies/base.json")
    assert {path.name for path in saved.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert str(tmp_path) not in (saved / "adapter_config.json").read_text()
    spec = job_spec("sft", base=base, adapter=str(saved), hyper=Hyperparameters(batch_size=8, max_steps=1))
    again = load_policy(spec)
    prompt = [3, 4, 5, 6]
    assert probe_policy(again, prompt) == probe_policy(policy, prompt)
    load_train("sft")(spec, again, LOGGED, RecordingRun(tmp_path / "two", "sft"))
    assert probe_policy(again, prompt) != probe_policy(policy, prompt)


def test_checkpoints_are_written_on_the_way(base: str, tmp_path: Path) -> None:
    run = RecordingRun(tmp_path, "sft", every=4)
    trained(run, base, HYPER)
    assert run.newest().manifest.step == 8


def test_gradient_accumulation_keeps_the_optimisers_batch(base: str, tmp_path: Path) -> None:
    """Losses are per token of the whole batch, so four small passes equal one big one."""
    whole, split = RecordingRun(tmp_path / "a", "sft"), RecordingRun(tmp_path / "b", "sft")
    trained(whole, base, Hyperparameters(learning_rate=1e-3, batch_size=24, max_steps=2, full_finetune=True))
    small = Hyperparameters(learning_rate=1e-3, batch_size=6, gradient_accumulation=4, max_steps=2, full_finetune=True)
    trained(split, base, small)
    assert split.losses == pytest.approx(whole.losses, abs=1e-3)
