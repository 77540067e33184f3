"""Trained tokens per second and memory of a train step, beside TRL's: `make bench-train` (`ARGS=--help`).

The same model, rows and machine: a policy-gradient step against TRL's GRPO, supervised fine-tuning against TRL's SFT;
TRL in one padded batch, and in micro-batches of rows of like length. Rows have the lengths of real trajectories of an
airline agent (tau-bench), scaled; their beginning is either that of all (a system prompt, as logged) or each row's own.
Every way runs in a process of its own; times are of its processor, memory is what its peak adds to its start.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from ratchet.trainer_worker.training.algorithms.sft import Likelihood
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.losses import Objective, Tokens, policy_loss, row_weights
from ratchet.trainer_worker.training.learner.rows import Row
from tests.support.tiny_models import write_tokenizer
from tools.docs.training_speed import COMPARED, RATCHET, Compared, Report, Result, read_report, table, written_report

SYSTEM = 1565
"""Tokens of the system prompt and the first message."""
TRIES = (
    ((2702, 1266), (2549, 1170), (2404, 978), (4582, 2460)),
    ((529, 333), (1420, 426), (1067, 716), (569, 349)),
    ((2066, 643), (6676, 1530), (3368, 845), (3301, 917)),
    ((5231, 2112), (5304, 1744), (3991, 1184), (4023, 1455)),
    ((1802, 691), (469, 327), (4936, 1483), (2593, 753)),
    ((2024, 850), (2098, 787), (1237, 527), (537, 350)),
    ((3009, 681), (2998, 658), (2904, 598), (1943, 964)),
    ((4913, 1193), (736, 486), (3163, 839), (4719, 999)),
)
"""Four tries at each of eight tasks: tokens behind the first message, and those of them that the agent wrote."""
VOCABULARY, HIDDEN, LAYERS = 8192, 192, 4
TOOL_TOKENS = 24
"""Of an observation between two answers, before scaling by length."""
MICRO_BATCH = 4
"""Rows of like length that TRL takes at a time."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained on."""

    tasks: int
    scale: float
    """Of the real lengths."""
    shared: bool
    """All rows begin with the system prompt."""


def rows_of(case: Case) -> list[Row]:
    """Rows whose answers and observations take turns."""
    draw = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(2, VOCABULARY) for _ in range(count)]

    system = tokens(max(2, int(SYSTEM * case.scale)))
    rows: list[Row] = []
    for task, tries in enumerate(TRIES[: case.tasks]):
        for number, lengths in enumerate(tries):
            length, learning = (max(4 - 2 * place, int(one * case.scale)) for place, one in enumerate(lengths))
            beginning = system if case.shared else tokens(len(system))
            part = max(1, int(TOOL_TOKENS * learning / length))
            mask = np.zeros(length, dtype=bool)
            places = [place for place in range(1, length) if place // part % max(1, round(length / learning)) == 0]
            mask[places[:learning]] = True
            ids = [*beginning, *tokens(length)]
            rows.append(Row.of(f"{task}-{number}", ids, [*[False] * len(beginning), *mask.tolist()], -1.0))
    return rows


def new_model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=3 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=16384,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def ratchet_gradient(rows: Sequence[Row]) -> Callable[[], None]:
    """Forward and backward of a policy-gradient step, as `learner.update` makes them."""
    scorer = Scorer(new_model())
    weights = row_weights("trajectory", [row.trajectory_id for row in rows], [row.trained for row in rows], 1)

    def step() -> None:
        for part in scorer.passes([[row] for row in rows]):
            chosen = [rows[index] for index in part]
            scores = scorer.score(chosen)
            sizes = torch.tensor([row.trained for row in chosen])
            behavior = torch.tensor(np.concatenate([row.behavior_logprobs for row in chosen]))
            tokens = Tokens(
                logprobs_N=scores.logprobs_N,
                proximal_N=scores.logprobs_N.detach(),
                behavior_N=behavior,
                advantages_N=torch.ones_like(behavior),
                weights_N=torch.tensor([weights[index] for index in part]).repeat_interleave(sizes),
                row_N=torch.arange(len(chosen)).repeat_interleave(sizes),
                rows=len(chosen),
            )
            plain = Objective(importance_cap=None, rejection_window=None, kl_beta=0.0)
            policy_loss(tokens, plain).value.backward()

    return step


def ratchet_likelihood(rows: Sequence[Row]) -> Callable[[], None]:
    """Forward and backward of a step of `sft`."""
    objective = Likelihood(Scorer(new_model()), rows)
    items = sum(row.trained for row in rows)

    def step() -> None:
        for loss in objective.losses(range(len(rows))):
            (loss.total / items).backward()

    return step


def micro_batches(rows: Sequence[Row], size: int | None) -> list[list[Row]]:
    """One batch, or rows of like length in batches of `size`."""
    if size is None:
        return [list(rows)]
    order = sorted(rows, key=lambda row: row.length)
    return [order[begin : begin + size] for begin in range(0, len(order), size)]


def padded(columns: Sequence[np.ndarray], dtype: torch.dtype = torch.long) -> torch.Tensor:
    width = max(map(len, columns))
    table = torch.zeros((len(columns), width), dtype=dtype)
    for line, column in zip(table, columns, strict=True):
        line[: len(column)] = torch.tensor(column)
    return table


def trl_gradient(rows: Sequence[Row], folder: Path, size: int | None) -> Callable[[], None]:
    model = new_model()
    write_tokenizer(folder, ["a b c"], 300)
    trainer: Any = GRPOTrainer(
        model=model,
        reward_funcs=lambda **_: [0.0],
        args=GRPOConfig(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=4,
            num_generations=4,
            beta=0.0,
            report_to="none",
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 4}),
        processing_class=tokenizer_of(folder),
    )
    trainer.current_gradient_accumulation_steps = 1
    total = torch.tensor(sum(row.trained for row in rows))
    inputs: list[dict[str, torch.Tensor]] = []
    for batch in micro_batches(rows, size):
        start = min(int(row.trained_at[0]) for row in batch)
        completions = [row.token_ids[start:] for row in batch]
        inputs.append(
            {
                "prompt_ids": padded([row.token_ids[:start] for row in batch]),
                "prompt_mask": torch.ones(len(batch), start, dtype=torch.long),
                "completion_ids": padded(completions),
                "completion_mask": padded([np.ones(len(completion), dtype=int) for completion in completions]),
                "tool_mask": padded([row.loss_mask[start:].astype(int) for row in batch]),
                "advantages": torch.ones(len(batch)),
                "num_items_in_batch": total,
            }
        )

    def step() -> None:
        for batch in inputs:
            trainer._compute_loss(model, batch).backward()  # the path that its own train step takes

    return step


def trl_likelihood(rows: Sequence[Row], folder: Path, size: int | None) -> Callable[[], None]:
    model = new_model()
    write_tokenizer(folder, ["a b c"], 300)
    trainer: Any = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=str(folder / "out"),
            report_to="none",
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=Dataset.from_dict({"input_ids": [[1, 2]]}),
        processing_class=tokenizer_of(folder),
    )
    items = sum(row.trained for row in rows)
    inputs: list[dict[str, torch.Tensor]] = []
    for batch in micro_batches(rows, size):
        ids = padded([row.token_ids for row in batch])
        learns = padded([row.loss_mask.astype(int) for row in batch]).bool()
        inputs.append(
            {
                "input_ids": ids,
                "attention_mask": padded([np.ones(row.length, dtype=int) for row in batch]),
                "labels": ids.masked_fill(~learns, -100),
            }
        )

    def step() -> None:
        for batch in inputs:
            trainer.compute_loss(model, dict(batch), num_items_in_batch=torch.tensor(items)).backward()

    return step


def tokenizer_of(folder: Path) -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415 - for TRL alone

    return AutoTokenizer.from_pretrained(str(folder))


Way = Callable[[Sequence[Row], Path], Callable[[], None]]
WAYS: dict[str, dict[str, Way]] = {
    "policy gradient": {
        RATCHET: lambda rows, _: ratchet_gradient(rows),
        "trl grpo, padded": lambda rows, folder: trl_gradient(rows, folder, None),
        "trl grpo, by length": lambda rows, folder: trl_gradient(rows, folder, MICRO_BATCH),
    },
    "sft": {
        RATCHET: lambda rows, _: ratchet_likelihood(rows),
        "trl sft, padded": lambda rows, folder: trl_likelihood(rows, folder, None),
        "trl sft, by length": lambda rows, folder: trl_likelihood(rows, folder, MICRO_BATCH),
    },
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one way in one round."""

    seconds: float
    """Of the processor, for a step."""
    peak_bytes: int
    """Above what the process had before its first step."""


def measure(way: Way, rows: Sequence[Row], steps: int) -> Measured:
    """Runs in a process of its own; the first step warms up."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_measure, args=(way, rows, steps, theirs))
    process.start()
    theirs.close()
    try:
        measured: Measured = ours.recv()
    finally:
        process.join()
    return measured


def _measure(way: Way, rows: Sequence[Row], steps: int, answer: Connection) -> None:
    with tempfile.TemporaryDirectory() as folder:
        step = way(rows, Path(folder))
        before = resident_bytes()
        step()
        began = time.process_time()
        for _ in range(steps):
            step()
        seconds = (time.process_time() - began) / steps
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answer.send(Measured(seconds, max(0, peak - before)))


def resident_bytes() -> int:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, Case, int]]:
    """The comparison, and how it grows with trajectories and with context: kind, case and rounds."""
    for shared in (True, False):
        yield COMPARED, Case(arguments.tasks, arguments.scale, shared), arguments.rounds
    if arguments.growth:
        for tasks in (1, 2, 4, 8):
            yield "trajectories", Case(tasks, arguments.scale / 2, shared=True), 1
        for scale in (1 / 32, 1 / 16, 1 / 8, 1 / 4):
            yield "context", Case(1, scale, shared=True), 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison; growth has one")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=4, choices=range(1, len(TRIES) + 1))
    parser.add_argument("--scale", type=float, default=1 / 8, help="of the real lengths")
    parser.add_argument("--growth", action="store_true", help="also with more trajectories and longer contexts")
    parser.add_argument("--json", type=Path, help="add to this file what it does not have yet")
    parser.add_argument("--floors", action="store_true", help="exit with 1 when a floor of the comparison is missed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report = known_report(arguments.json)
    say(f"{report.model}, one thread")
    known = {result.key for result in report.results}
    for kind, case, rounds in cases(arguments):
        if (kind, case.tasks, case.scale, case.shared) in known:
            continue
        result = result_of(kind, case, rounds, arguments.steps)
        say(f"\n{kind}: " + "\n".join(table(result)))
        report.results.append(result)
        if arguments.json:
            arguments.json.write_bytes(written_report(report))
    for missed in report.missed():
        say(f"missed: {missed}")
    return 1 if arguments.floors and report.missed() else 0


def known_report(path: Path | None) -> Report:
    """What was measured before, or an empty report."""
    if path is not None and path.is_file():
        return read_report(path)
    model = f"Llama, {LAYERS} layers of {HIDDEN}, vocabulary {VOCABULARY}, full fine-tune in float32"
    return Report(model, {name: version(name) for name in ("torch", "transformers", "trl")}, [])


def result_of(kind: str, case: Case, rounds: int, steps: int) -> Result:
    """The ways take turns."""
    rows = rows_of(case)
    measured = [
        {(name, way): measure(work, rows, steps) for name, ways in WAYS.items() for way, work in ways.items()}
        for _ in range(rounds)
    ]
    return Result(
        kind=kind,
        tasks=case.tasks,
        scale=case.scale,
        shared=case.shared,
        rows=len(rows),
        shortest=min(row.length for row in rows),
        longest=max(row.length for row in rows),
        tokens=sum(row.length for row in rows),
        trained=sum(row.trained for row in rows),
        ways=[
            Compared(
                name,
                way,
                [round(one[name, way].seconds, 3) for one in measured],
                [round(one[name, way].peak_bytes / 2**20, 1) for one in measured],
            )
            for name, ways in WAYS.items()
            for way in ways
        ],
    )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
