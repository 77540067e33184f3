"""A training's surroundings for tests: a run that records, job specifications, snapshots, and a toy agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.training import Checkpointing, Dataset, Hyperparameters, TrainingConfig
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.algorithms.base import Outcome, TrainStep
from ratchet.trainer_worker.training.checkpoints import Checkpoint, CheckpointStore
from ratchet.trainer_worker.training.policy import TrainedPolicy, load_policy
from tests.support.snapshot_rows import call, label_row, pair_row, trajectory_row, write_rows

JOB_ID = "6a3f0c1e-0000-4000-8000-000000000001"


class RecordingRun:
    """`algorithms.base.Run` that records its calls, and asks to stop after the train step `stop_after`."""

    def __init__(
        self,
        root: Path,
        algorithm: str,
        *,
        resume: Checkpoint | None = None,
        stop_after: int | None = None,
        every: int = 0,
        asks: int | None = None,
    ) -> None:
        """`asks`: how often it may be asked whether to stop before it says so."""
        self.algorithm = algorithm
        self.resume = resume
        self.steps: list[TrainStep] = []
        self.samples = 0
        self.findings: list[str] = []
        self.total = 0
        self._every = every
        self._stop_after = stop_after
        self.asks = asks
        self.store = CheckpointStore(root, JOB_ID, 1, algorithm)

    def explained(self, findings: Sequence[str]) -> None:
        self.findings = [*findings]

    def started(self, samples: int, total_steps: int) -> None:
        self.samples, self.total = samples, total_steps

    def stepped(self, step: TrainStep) -> None:
        self.steps.append(step)

    def stop_requested(self) -> bool:
        if self.asks is not None:
            self.asks -= 1
            return self.asks < 0
        return self._stop_after is not None and len(self.steps) >= self._stop_after

    def checkpoint_due(self, step: int) -> bool:
        return bool(self._every) and step % self._every == 0

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        self.store.save(step, 0.0, write)

    @property
    def losses(self) -> list[float]:
        return [step.metrics["loss"] for step in self.steps]

    def newest(self) -> Checkpoint:
        return self.store.all()[-1]


def trained(
    run: RecordingRun, base: str, rows: Sequence[Any], hyper: Hyperparameters, **job: Any
) -> tuple[TrainedPolicy, Outcome]:
    """What the algorithm of `run` makes of a base and rows."""
    spec = job_spec(run.algorithm, base=base, hyper=hyper, **job)
    torch.manual_seed(hyper.seed or 0)
    policy = load_policy(spec)
    return policy, load_train(run.algorithm)(spec, policy, rows, run)


def job_spec(algorithm: str, base: str = "", dataset: str = "", **changes: Any) -> JobSpec:
    """A job of one CPU thread; `hyper` and `checkpointing` are members of the training configuration."""
    config = TrainingConfig(
        algorithm=algorithm,
        base_model=base or "test",
        dataset=Dataset(source="s3", sample_size=1000),
        hyperparameters=changes.pop("hyper", Hyperparameters()),
        checkpointing=changes.pop("checkpointing", Checkpointing()),
    )
    values = {"training_job_id": JOB_ID, "attempt": 1, "role": "support", "base_name": "s3://test/base.json"}
    return JobSpec(config=config, dataset=dataset, base=base, threads=1, **{**values, **changes})


def write_snapshot(path: Path, trajectories: Sequence[dict[str, Any]]) -> Path:
    """A snapshot's Parquet file; absent columns get plain values."""
    return write_rows(path, [trajectory_row(number, **one) for number, one in enumerate(trajectories)])


def write_pairs(path: Path, pairs: Sequence[dict[str, Any]]) -> Path:
    """A snapshot of preference pairs; absent columns get plain values."""
    return write_rows(path, [pair_row(number, **one) for number, one in enumerate(pairs)])


def write_labels(path: Path, labels: Sequence[dict[str, Any]]) -> Path:
    """A snapshot of answers with thumbs; absent columns get plain values."""
    return write_rows(path, [label_row(number, **one) for number, one in enumerate(labels)])


# ------------------------------------------------------------------------------------------------------ a toy agent
VOCABULARY, ASK, SEE = 12, 1, 2
"""Token 1 opens the task, 2 an observation; 3 to 11 are symbols."""


def toy_model(seed: int) -> Any:
    """A random Llama of a few thousand parameters."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
        initializer_range=0.1,
        pad_token_id=0,
        eos_token_id=0,
        bos_token_id=None,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def play(model: Any, tasks: int, tries: int, generator: torch.Generator) -> list[TrajectoryRow]:
    """Two calls each: repeat the asked symbol, then repeat the observed one. Half the reward for each."""
    symbols = torch.randint(3, VOCABULARY, (tasks, 2), generator=generator).repeat_interleave(tries, 0)
    opened = torch.stack([torch.full((len(symbols),), ASK), symbols[:, 0]], 1)
    first, first_logprobs = _answer(model, opened, generator)
    seen = torch.cat([opened, first[:, None], torch.full((len(symbols), 1), SEE), symbols[:, 1:]], 1)
    second, second_logprobs = _answer(model, seen, generator)
    return [
        trajectory_row(
            trajectory_id=f"t{n:05d}",
            task_key=f"k{n // tries}",
            reward=0.5 * float(first[n] == symbols[n, 0]) + 0.5 * float(second[n] == symbols[n, 1]),
            calls=[
                call(opened[n].tolist(), [int(first[n])], [float(first_logprobs[n])]),
                call(seen[n].tolist(), [int(second[n])], [float(second_logprobs[n])]),
            ],
        )
        for n in range(len(symbols))
    ]


def _answer(model: Any, prompts: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs = torch.log_softmax(model(input_ids=prompts).logits[:, -1].float(), -1)
    chosen = torch.multinomial(logprobs.exp(), 1, generator=generator)
    return chosen[:, 0], logprobs.gather(-1, chosen)[:, 0]


def mean_reward(trajectories: Sequence[TrajectoryRow]) -> float:
    return sum(trajectory.reward for trajectory in trajectories) / len(trajectories)
