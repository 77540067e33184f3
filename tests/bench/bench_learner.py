"""The cost of a train step, and of TRL, padding and LoRA: `python -m tests.bench.bench_learner [--threads 2]`.

The demo's model (0.7 M parameters) and tickets. CPU seconds of this process, so that other work on the machine changes
little; with more than one thread, wall seconds tell more. Ways are measured in turn, ratios round by round.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from ratchet.contract.snapshot import TrajectoryRow
from ratchet.contract.training import Hyperparameters, Lora
from ratchet.trainer_worker.training.algorithms.base import Step
from ratchet.trainer_worker.training.algorithms.sft import train as train_sft
from ratchet.trainer_worker.training.chats import ChatRows, Conversation
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.policy import load_policy
from ratchet_helpdesk.base_model import Shape, write_base_model
from ratchet_helpdesk.clerk import CARELESS, play
from ratchet_helpdesk.world import TRAIN, draw_tasks, tool_definitions
from tests.support.snapshot_rows import trajectory_row
from tests.support.trainer_runs import RecordingRun, job_spec

BATCH, STEPS = 32, 12


def tickets(count: int) -> list[TrajectoryRow]:
    draw = random.Random(0)
    played = [play(task, CARELESS, draw) for task in draw_tasks(TRAIN, count, 0)]
    tools = tool_definitions()
    return [trajectory_row(n, success=True, messages=list(one.messages), tools=tools) for n, one in enumerate(played)]


class TimedRun(RecordingRun):
    """Notes when each train step ended."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        super().__init__(folder, "sft")
        self._clock = clock
        self.ends: list[float] = []

    def stepped(self, step: Step) -> None:
        super().stepped(step)
        self.ends.append(self._clock())


def per_step(ends: Sequence[float]) -> float:
    """Without the first step, which warms up."""
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def bare_loop(base: Path, rows: Sequence[Row], clock: Callable[[], float], *, share_prefix: bool) -> float:
    """The least that training needs: score, backward, clip, AdamW."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    scorer = Scorer(model, share_prefix=share_prefix)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    ends: list[float] = []
    for step in range(STEPS):
        part = rows[step * BATCH : (step + 1) * BATCH]
        (-scorer.score(part).logprobs_N.mean()).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        ends.append(clock())
    return per_step(ends)


def through_trl(base: Path, logged: Sequence[TrajectoryRow], clock: Callable[[], float], lora: Lora | None) -> float:
    """The `sft` algorithm as a job runs it."""
    hyper = Hyperparameters(
        learning_rate=1e-4, batch_size=BATCH, max_steps=STEPS, full_finetune=lora is None, lora=lora
    )
    spec = job_spec("sft", base=str(base), hyper=hyper)
    with tempfile.TemporaryDirectory() as folder:
        run = TimedRun(Path(folder), clock)
        train_sft(spec, load_policy(spec), logged, run)
    return per_step(run.ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logged = tickets(BATCH * STEPS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = folder / "base"
        base.mkdir()
        write_base_model(base, 0, Shape())
        policy = load_policy(job_spec("sft", base=str(base), hyper=Hyperparameters(full_finetune=True)))
        began = time.process_time()
        rows = ChatRows(policy.tokenizer, 512).rows(
            [Conversation(o.trajectory_id, o.messages, o.tools) for o in logged]
        )
        say(f"rows from chats: {(time.process_time() - began) / len(logged) * 1e3:.2f} ms each")
        tokens = statistics.fmean(row.length for row in rows)
        learning = statistics.fmean(row.trained for row in rows)
        say(f"{BATCH} rows a step, {tokens:.0f} tokens each, {learning:.0f} of them learn; {STEPS} steps a round")
        clock = time.perf_counter if arguments.threads > 1 else time.process_time
        ways: dict[str, Callable[[], float]] = {
            "bare loop, shared prefix": lambda: bare_loop(base, rows, clock, share_prefix=True),
            "bare loop, no sharing": lambda: bare_loop(base, rows, clock, share_prefix=False),
            "sft job (TRL), full": lambda: through_trl(base, logged, clock, None),
            "sft job (TRL), LoRA r 32": lambda: through_trl(base, logged, clock, Lora(r=32, alpha=64)),
        }
        report(ways, arguments.rounds)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def report(ways: dict[str, Callable[[], float]], rounds: int) -> None:
    seconds_by_way: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            seconds_by_way[name].append(work())
    first = next(iter(seconds_by_way.values()))
    for name, seconds in seconds_by_way.items():
        ratios = [one / other for one, other in zip(seconds, first, strict=True)]
        spread = f"{min(seconds):.3f}-{max(seconds):.3f}"
        middle = statistics.median(seconds)
        say(f"{name:<26} {middle:.3f} s a step ({spread}), {statistics.median(ratios):.2f} x the first")


if __name__ == "__main__":
    main()
