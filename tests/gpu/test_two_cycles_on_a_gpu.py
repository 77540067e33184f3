"""Two cycles of every algorithm on a model of .6 billion random weights, in bf16: each starts where the last one ended.

`python -m pytest tests/gpu -s` on a machine with CUDA; skipped elsewhere. Prints tokens/s, model FLOPs utilisation and
peak memory, and adds them as a JSON line to `gpu.jsonl` in the present directory, or to the file in
`RATCHET_GPU_FIGURES`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.core.contract.training import Hyperparameters, Lora
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.algorithms.base import TrainStep
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.policy import TrainedPolicy, load_policy, probe_policy, save_policy
from tests.support.snapshot_rows import call, label_row, pair_row, trajectory_row
from tests.support.tiny_models import write_half_billion
from tests.support.trainer_runs import RecordingRun, job_spec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
"""Dense bf16, by a part of the device's name (the makers' data sheets)."""
VOCABULARY, PROMPT, ANSWER, TASKS, TRIES, BATCH = 32_000, 1536, 512, 4, 8, 16
POLICY_GRADIENTS = ("rloo", "grpo", "reinforce", "ppo")
ON_CHATS = ("sft", "dpo", "kto")


class TimedRun(RecordingRun):
    """Notes when each train step ended."""

    def __init__(self, root: Path, algorithm: str) -> None:
        super().__init__(root, algorithm)
        self.ends: list[float] = []

    def stepped(self, step: TrainStep) -> None:
        super().stepped(step)
        torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_half_billion(tmp_path_factory.mktemp("base"), ["a b c"], VOCABULARY)


@pytest.fixture(autouse=True)
def memory_of_its_own() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def tries_of(policy: TrainedPolicy, seed: int) -> list[Any]:
    """Tries at tasks with the policy's own log-probabilities; every other one wins."""
    draw = torch.Generator().manual_seed(seed)
    scorer = Scorer(policy.model, bf16=policy.bf16)
    made: list[Any] = []
    for number in range(TASKS * TRIES):
        if number % TRIES == 0:
            prompt = torch.randint(2, VOCABULARY, (PROMPT,), generator=draw).tolist()
        answer = torch.randint(2, VOCABULARY, (ANSWER,), generator=draw).tolist()
        row = Row.of("t", [*prompt, *answer], [False] * PROMPT + [True] * ANSWER)
        with torch.no_grad():
            logprobs = scorer.score([row]).logprobs_N.tolist()
        names = {"trajectory_id": f"t{number}", "task_key": f"k{number // TRIES}", "reward": float(number % 2)}
        made.append(trajectory_row(number, **names, calls=[call(prompt, answer, logprobs)]))
    return made


def chats_of(algorithm: str, seed: int) -> list[Any]:
    """What the algorithms that read text learn from."""
    texts = [f"{seed} {number} " * 60 for number in range(16)]
    asked = [[{"role": "user", "content": text}] for text in texts]
    answers = [[{"role": "assistant", "content": text[::-1]}] for text in texts]
    if algorithm == "dpo":
        other = [[{"role": "assistant", "content": "no " * 40}]] * len(texts)
        return [
            pair_row(n, prompt=asked[n], chosen=answers[n], rejected=other[n], group_key=str(n))
            for n in range(len(texts))
        ]
    if algorithm == "kto":
        return [label_row(n, prompt=asked[n], completion=answers[n], label=n % 2 == 0) for n in range(len(texts))]
    return [trajectory_row(n, messages=[*asked[n], *answers[n]]) for n in range(len(texts))]


@pytest.mark.parametrize("algorithm", [*POLICY_GRADIENTS, *ON_CHATS])
def test_an_adapter_is_trained_and_continued_in_bf16(algorithm: str, base: Path, tmp_path: Path) -> None:
    adapter: Path | None = None
    for cycle in range(2):
        hyper = Hyperparameters(learning_rate=1e-4, batch_size=BATCH, epochs=2, lora=None if adapter else Lora(r=16))
        spec = job_spec(algorithm, base=str(base), hyper=hyper, adapter=str(adapter) if adapter else None)
        torch.manual_seed(0)
        policy = load_policy(spec)
        assert policy.bf16
        data = tries_of(policy, cycle) if algorithm in POLICY_GRADIENTS else chats_of(algorithm, cycle)
        run = TimedRun(tmp_path / f"run{cycle}", algorithm)
        outcome = load_train(algorithm)(spec, policy, data, run)
        if algorithm in POLICY_GRADIENTS:
            assert outcome.metrics["start_ess"] > 0.95
            report(algorithm, cycle, policy, run)
        adapter = tmp_path / f"adapter{cycle}"
        save_policy(policy, adapter, str(base))
        # Loaded again it is the same policy.
        before = probe_policy(policy, list(range(2, 100)))
        again = load_policy(job_spec(algorithm, base=str(base), adapter=str(adapter)))
        assert probe_policy(again, list(range(2, 100))).logprobs == pytest.approx(before.logprobs, abs=0.05)


def test_a_row_longer_than_a_pass_fits_by_recomputing_layers(base: Path) -> None:
    policy = load_policy(job_spec("sft", base=str(base), hyper=Hyperparameters(lora=Lora(r=16))))
    row = Row.of("t", [2 + n % 1000 for n in range(8192)], [n > 8000 for n in range(8192)])
    peaks: list[int] = []
    for pass_tokens in (16_384, 1024):
        torch.cuda.reset_peak_memory_stats()
        Scorer(policy.model, bf16=True, pass_tokens=pass_tokens).score([row]).logprobs_N.sum().backward()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 0.6 * peaks[0]


def report(algorithm: str, cycle: int, policy: TrainedPolicy, run: TimedRun) -> None:
    """Speed without the first step, which warms up; 4 FLOPs for each weight and token, as the base is frozen.

    Tokens/s counts those of the rows. The utilisation counts what goes through the model at least: the prompt of a task
    once for all tries in a batch.
    """
    steps, seconds = len(run.ends) - 1, run.ends[-1] - run.ends[0]
    tokens, computed = steps * BATCH * (PROMPT + ANSWER), steps * (TASKS * PROMPT + BATCH * ANSWER)
    weights = sum(parameter.numel() for parameter in policy.model.parameters())
    name = torch.cuda.get_device_name()
    peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
    mfu = None if peak is None else 4 * weights * computed / seconds / peak
    used = "unknown" if mfu is None else f"{mfu:.2f}"
    memory = torch.cuda.max_memory_allocated() / 2**30
    sys.stdout.write(
        f"{name} {algorithm} cycle {cycle + 1}: {tokens / seconds:.0f} tokens/s, MFU {used}, {memory:.1f} GiB\n"
    )
    figures = {"device": name, "algorithm": algorithm, "cycle": cycle + 1, "tokens_per_second": tokens / seconds}
    with Path(os.environ.get("RATCHET_GPU_FIGURES", "gpu.jsonl")).open("a") as file:
        file.write(json.dumps(figures | {"mfu": mfu, "peak_memory_gib": memory}) + "\n")
