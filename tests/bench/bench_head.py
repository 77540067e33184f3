"""What the head of a policy takes, plain and fused with its gradient: `python -m tests.bench.bench_head`.

Forward and backward from hidden states to a loss, with a head that does not learn. Plain: as under a head that learns,
where logits of several chunks are computed again in the backward pass. Both ways take turns, each in a process of its
own; times are of its processor, memory is what its peak adds to its start.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ratchet.trainer_worker.training.learner.head import CHUNK_ELEMENTS, Head
from ratchet.trainer_worker.training.learner.targets import Targets

VOCABULARIES, WIDTHS = (8_192, 50_000, 150_000), (256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Case:
    """What is scored."""

    vocabulary: int
    hidden: int
    tokens: int
    learns: bool
    bf16: bool
    chunk_elements: int


Way = Callable[..., tuple[Tensor, Tensor]]
PLAIN, FUSED = Head.plain_scores, Head.scores


def scoring(way: Way, case: Case) -> Callable[[], None]:
    torch.manual_seed(0)
    module = nn.Linear(case.hidden, case.vocabulary, bias=False).requires_grad_(case.learns)
    if case.bf16 and not case.learns:  # as a policy has them
        module.to(torch.bfloat16)
    config: Any = SimpleNamespace(get_text_config=SimpleNamespace)
    base = SimpleNamespace(get_output_embeddings=lambda: module, config=config)
    head = Head(base, bf16=case.bf16, chunk_elements=case.chunk_elements)
    hidden = torch.randn(case.tokens, case.hidden, dtype=module.weight.dtype, requires_grad=True)
    targets = Targets(torch.randint(case.vocabulary, (case.tokens,)), torch.ones(case.tokens))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=case.bf16):
            logprobs = way(head, hidden, targets)[0]
        logprobs.sum().backward()  # pyright: ignore[reportUnknownMemberType] - torch leaves it untyped
        hidden.grad = module.weight.grad = None

    return step


def measure(way: Way, case: Case) -> tuple[float, int]:
    """Seconds of the processor for a step, and bytes above what the process had before its first one."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_measure, args=(way, case, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def _measure(way: Way, case: Case, answer: Connection) -> None:
    step = scoring(way, case)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    began = time.process_time()
    step()
    answer.send((time.process_time() - began, max(0, peak - before)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=0, help="default: one chunk and a quarter")
    parser.add_argument("--learns", action="store_true", help="the head learns too")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--chunk-elements", type=int, default=CHUNK_ELEMENTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    say("| vocabulary | hidden | tokens | plain s | fused s | ratio (all rounds) | plain MiB | fused MiB |")
    say("|---|---|---|---|---|---|---|---|")
    for vocabulary, hidden in itertools.product(VOCABULARIES, WIDTHS):
        tokens = options.tokens or options.chunk_elements * 5 // 4 // vocabulary
        case = Case(vocabulary, hidden, tokens, options.learns, options.bf16, options.chunk_elements)
        rounds = [(measure(PLAIN, case), measure(FUSED, case)) for _ in range(options.rounds)]
        plain, fused = (statistics.median(one[way][0] for one in rounds) for way in (0, 1))
        ratios = sorted(one[0][0] / one[1][0] for one in rounds)
        memory = [statistics.median(one[way][1] for one in rounds) / 2**20 for way in (0, 1)]
        say(
            f"| {vocabulary} | {hidden} | {tokens} | {plain:.2f} | {fused:.2f} | {statistics.median(ratios):.2f}"
            f" ({ratios[0]:.2f}-{ratios[-1]:.2f}) | {memory[0]:.0f} | {memory[1]:.0f} |"
        )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
