"""What packing rows into one would save beside passes over rows of like length: `python -m tests.bench.bench_packing`.

First, counted: the padding of the passes that the learner plans, and what remains if there were none, in the planner's
own measure (tokens that are computed, and what every pass costs besides). Then, measured: forward and backward of the
same rows in those passes, and packed into rows no longer than the longest, whose masks keep their parts apart: what
torch's attention offers without kernels for rows of different lengths, which exist for GPUs only.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

from ratchet.trainer_worker.training.learner.logprobs import CPU_PASS_TOKENS, CUDA_PASS_TOKENS
from ratchet.trainer_worker.training.learner.passes import Item, computed, plan_passes
from tests.bench.bench_train import LAYERS, SYSTEM, TRIES, VOCABULARY, new_model

ROWS = 32
BUDGETS = (65_536, 16_384)
NOTHING = torch.zeros(0, dtype=torch.int32).numpy()


def spreads() -> dict[str, list[int]]:
    """Lengths of the rows of a train step, by where they come from."""
    draw = random.Random(0)
    real = [SYSTEM + length for tries in TRIES for length, _ in tries]
    return {
        "tau-bench": real,
        "tau-bench, 8 rows": real[::4],
        "log-normal, sigma .5": [int(1000 * draw.lognormvariate(0, 0.5)) for _ in range(ROWS)],
        "log-normal, sigma 1.2": [int(1000 * draw.lognormvariate(0, 1.2)) for _ in range(ROWS)],
        "uniform, 100 to 4,000": [draw.randint(100, 4000) for _ in range(ROWS)],
        "30 of 200, 2 of 8,000": [200] * (ROWS - 2) + [8000] * 2,
        "8 short ones, 60 to 400": [draw.randint(60, 400) for _ in range(8)],
    }


def planned(lengths: Sequence[int], budget: int, overhead: int) -> tuple[int, list[list[int]]]:
    """Tokens that the learner's passes compute, and the passes; no two rows begin alike."""
    items = [Item(NOTHING, length, 1) for length in lengths]
    passes = plan_passes(items, budget=budget, overhead=overhead, share=False)
    return sum(computed([items[index] for index in part], overhead, share=False) for part in passes), passes


def count() -> None:
    say("| lengths | device | budget | tokens | passes | padding | left to save by packing |")
    say("|---|---|---|---|---|---|---|")
    for name, lengths in spreads().items():
        for device, overhead in (("CPU", CPU_PASS_TOKENS), ("GPU", CUDA_PASS_TOKENS)):
            for budget in BUDGETS:
                tokens, passes = planned(lengths, budget, overhead)
                real = sum(lengths)
                packed = real + overhead * math.ceil(real / budget)
                saved = 1 - packed / (tokens + overhead * len(passes))
                padding = 1 - real / tokens
                say(
                    f"| {name} | {device} | {budget} | {real} | {len(passes)} | {padding:.1%} | {max(0.0, saved):.1%} |"
                )


def measure(rounds: int, scale: float) -> None:
    """Processor time of a forward and backward pass through the layers, in turns."""
    say(f"\nMeasured: {LAYERS} layers, one thread, lengths x {scale:g}, both ways in turns")
    say("| lengths | tokens | planned s | packed s | planned / packed (all rounds) |\n|---|---|---|---|---|")
    trunk = new_model().get_decoder()
    for name, whole in spreads().items():
        lengths = [max(4, int(length * scale)) for length in whole]
        _, passes = planned(lengths, BUDGETS[0], CPU_PASS_TOKENS)

        def in_passes(lengths: list[int] = lengths, passes: list[list[int]] = passes) -> None:
            for part in passes:
                width = max(lengths[index] for index in part)
                ids = torch.randint(VOCABULARY, (len(part), width))
                hidden = trunk(input_ids=ids, use_cache=False).last_hidden_state
                torch.cat([hidden[place, : lengths[index]] for place, index in enumerate(part)]).sum().backward()

        def packed(lengths: list[int] = lengths) -> None:
            for row in bins(lengths):
                ids = torch.randint(VOCABULARY, (1, sum(row)))
                positions = torch.cat([torch.arange(length) for length in row])[None]  # transformers masks by them
                trunk(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state.sum().backward()

        seconds = [(timed(in_passes), timed(packed)) for _ in range(rounds)]
        ratios = sorted(one / other for one, other in seconds)
        one, other = (statistics.median(column) for column in zip(*seconds, strict=True))
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        say(f"| {name} | {sum(lengths)} | {one:.2f} | {other:.2f} | {spread} |")


def bins(lengths: Sequence[int]) -> list[list[int]]:
    """Rows of at most the longest length, filled from the longest part down."""
    made: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        fits = next((row for row in made if sum(row) + length <= max(lengths)), None)
        if fits is None:
            made.append([length])
        else:
            fits.append(length)
    return made


def timed(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1 / 32, help="of the lengths that are measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    count()
    measure(options.rounds, options.scale)


if __name__ == "__main__":
    main()
