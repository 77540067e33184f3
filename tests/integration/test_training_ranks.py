"""A training of several processes computes what one alone does, and none of them is ever left behind or missed.

Real processes that exchange gradients by gloo on the CPU, forked from the real fork server.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from ratchet.core.contract.training import Checkpointing, Hyperparameters, Lora
from ratchet.trainer_worker.fork_server import supported
from ratchet.trainer_worker.job import CHECKPOINTS, LOG_FILE, METRICS_FILE, RESULT, Failed, Finished, JobSpec, Stopped
from ratchet.trainer_worker.training.checkpoints import CheckpointStore
from tests.support.forked_trainings import Forks, Training, forked_trainings
from tests.support.snapshot_rows import label_row, pair_row, trajectory_row, write_rows
from tests.support.tiny_models import write_tiny_model, write_tokenizer
from tests.support.trainer_runs import JOB_ID, job_spec, play, toy_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not supported(), reason="trainings are forked only where there are pidfds"),
    pytest.mark.timeout(300),
]
LORA = Lora(r=4, dropout=0.0)
TOLERANCE = 1e-4
"""Between one rank and two, in the loss of a train step and in a weight: they add the same numbers in another order.
About 10 times what was seen, 1e-5, for Adam divides a difference by a gradient that may be as small."""
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with forked_trainings() as forks:
        yield forks


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Base and snapshot by what an algorithm learns from."""
    root = tmp_path_factory.mktemp("inputs")
    texts = [f"{number} b c {number} " * (1 + number % 5) for number in range(16)]
    model = toy_model(0)
    model.save_pretrained(root / "toy")
    write_tokenizer(root / "toy", texts, 300)
    chat = str(write_tiny_model(root / "chat", texts))
    asked = [[{"role": "user", "content": text}] for text in texts]
    answers = [[{"role": "assistant", "content": text[::-1]}] for text in texts]
    worse = [[{"role": "assistant", "content": "no " * (1 + number % 3)}] for number in range(16)]
    pairs = [
        pair_row(n, prompt=asked[n], chosen=answers[n], rejected=worse[n], group_key=str(n)) for n in range(len(texts))
    ]
    labels = [label_row(n, prompt=asked[n], completion=answers[n], label=n % 2 == 0) for n in range(len(texts))]
    chats = [trajectory_row(n, messages=[*asked[n], *answers[n]]) for n in range(len(texts))]
    tries = play(model, 16, 4, torch.Generator().manual_seed(0))
    return {
        "tries": (str(root / "toy"), str(write_rows(root / "tries.parquet", tries))),
        "sft": (chat, str(write_rows(root / "sft.parquet", chats))),
        "dpo": (chat, str(write_rows(root / "dpo.parquet", pairs))),
        "reward_model": (chat, str(write_rows(root / "rewards.parquet", pairs))),
        "kto": (chat, str(write_rows(root / "kto.parquet", labels))),
    }


def spec_of(inputs: dict[str, tuple[str, str]], algorithm: str, ranks: int, **hyper: Any) -> JobSpec:
    base, dataset = inputs.get(algorithm, inputs["tries"])
    asked: dict[str, Any] = {"learning_rate": 1e-2, "batch_size": 8, "epochs": 1, "lora": LORA} | hyper
    return job_spec(algorithm, base=base, dataset=dataset, ranks=ranks, hyper=Hyperparameters(**asked))


def finished(training: Training) -> Finished:
    last = training.events()[-1]
    assert isinstance(last, Finished), (last, (training.directory / LOG_FILE).read_text())
    assert training.code() == 0
    return last


def losses(directory: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (directory / METRICS_FILE).read_text().splitlines()]


def adapter(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / RESULT / "adapter_model.safetensors")


def assert_same(one: Path, other: Path, since: int = 0) -> None:
    """The losses from train step `since` on, and the adapters, of two trainings."""
    assert losses(one)[since:] == pytest.approx(losses(other), abs=TOLERANCE)
    weights = adapter(other)
    for name, expected in adapter(one).items():
        torch.testing.assert_close(weights[name], expected, atol=TOLERANCE, rtol=0)


def all_end(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=DEADLINE_S)[1]


@pytest.mark.parametrize("algorithm", ["rloo", "grpo", "ppo", "sft", "dpo", "kto", "reward_model"])
def test_two_ranks_have_the_losses_and_the_adapter_of_one(
    algorithm: str, forks: Forks, inputs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    done: list[Finished] = []
    for ranks in (1, 2):
        spec = spec_of(inputs, algorithm, ranks, gradient_accumulation=2 if algorithm == "sft" else None)
        done.append(finished(forks.start(tmp_path / str(ranks), spec)))
        assert done[-1].samples > 0
    assert_same(tmp_path / "1", tmp_path / "2")
    own, theirs = done
    assert own.kind == theirs.kind
    if own.probe is not None:
        assert theirs.probe is not None
        assert theirs.probe.output_token_ids == own.probe.output_token_ids
        assert theirs.probe.logprobs == pytest.approx(own.probe.logprobs, abs=TOLERANCE)


def test_a_checkpoint_is_resumed_by_another_number_of_ranks(
    forks: Forks, inputs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    checkpoints: dict[int, str] = {}
    saving = Checkpointing(save_interval=2, max_checkpoints=2)

    def train(name: str, ranks: int, resume: str | None = None) -> Path:
        spec = spec_of(inputs, "rloo", ranks, max_steps=4, batch_size=4)
        spec = replace(spec, resume=resume, config=replace(spec.config, checkpointing=saving))
        finished(forks.start(tmp_path / name, spec))
        return tmp_path / name

    for ranks in (1, 2):
        made = train(str(ranks), ranks)
        kept = CheckpointStore(made / CHECKPOINTS, JOB_ID, 1, "rloo").all()
        checkpoints[ranks] = str(next(checkpoint.directory for checkpoint in kept if checkpoint.manifest.step == 2))
    for ranks, other in ((1, 2), (2, 1)):
        assert_same(tmp_path / "1", train(f"from {ranks}", other, checkpoints[ranks]), since=2)


def endless(forks: Forks, inputs: dict[str, tuple[str, str]], directory: Path) -> Training:
    training = forks.start(directory, spec_of(inputs, "rloo", 2, epochs=1_000_000, learning_rate=1e-6))
    training.until_progress()
    return training


def test_a_rank_that_is_killed_ends_them_all_and_is_the_reason(
    forks: Forks, inputs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    training = endless(forks, inputs, tmp_path / "job")
    (rank,) = training.ranks()
    rank.kill()
    last = training.events()[-1]
    assert isinstance(last, Failed)
    assert (last.code, last.message) == ("INFRA", "process 2 of the training was ended by SIGKILL")
    assert training.code() == 1


def test_no_rank_outlives_the_first(forks: Forks, inputs: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    training = endless(forks, inputs, tmp_path / "job")
    ranks = training.ranks()
    os.kill(training.pid, signal.SIGKILL)
    assert training.code() == -signal.SIGKILL
    assert all_end(ranks)


def test_ranks_stop_with_one_checkpoint_whichever_is_asked(
    forks: Forks, inputs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    training = endless(forks, inputs, tmp_path / "job")
    ranks = training.ranks()
    ranks[0].terminate()
    last = training.events()[-1]
    assert isinstance(last, Stopped), last
    assert training.code() == 0
    assert all_end(ranks)
    (checkpoint,) = CheckpointStore(tmp_path / "job" / CHECKPOINTS, JOB_ID, 1, "rloo").all()
    assert checkpoint.manifest.step == last.step

    spec = spec_of(inputs, "rloo", 2, max_steps=last.step + 2, epochs=1_000_000, learning_rate=1e-6)
    resumed = forks.start(tmp_path / "again", replace(spec, resume=str(checkpoint.directory)))
    finished(resumed)
    assert len(losses(tmp_path / "again")) == 2


def test_a_job_that_no_rank_can_run_has_its_own_error(
    forks: Forks, inputs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    training = forks.start(tmp_path / "job", replace(spec_of(inputs, "rloo", 2), base=str(tmp_path / "nowhere")))
    last = training.events()[-1]
    assert isinstance(last, Failed)
    assert last.code == "DATA"
    assert training.code() == 1
