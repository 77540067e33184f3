"""Which number format this processor multiplies in fastest, by a short measurement: `python -m` prints its name.

Without instructions for it bfloat16 is computed by way of float32, three to six times as slowly.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from ratchet.core.contract.policy_manifest import BFLOAT16, FLOAT32

ROWS, WIDTH, ROUNDS = 64, 1024, 7
"""Of the product that is timed: what a layer of a small model computes for a batch of answers."""
WORTH = 1.25
"""bfloat16 has to be so many times as fast: float32 is more exact."""


def fastest_format() -> str:
    """`bfloat16` where this processor multiplies in it clearly faster, else `float32`; takes about 0.1 s."""
    return chosen(_product(torch.bfloat16), _product(torch.float32), time.thread_time)


def chosen(rough: Callable[[], object], exact: Callable[[], object], clock: Callable[[], float]) -> str:
    """The format of the faster of two products, by the shortest of several times taken in turns: what else the
    machine computes meanwhile lengthens some of them.

    By one thread: several wait for each other, for as long as other programs keep a core from one.
    """
    threads, times = torch.get_num_threads(), list[tuple[float, float]]()
    torch.set_num_threads(1)
    for _ in range(ROUNDS):
        began = clock()
        rough()
        between = clock()
        exact()
        times.append((between - began, clock() - between))
    torch.set_num_threads(threads)
    rough_s, exact_s = map(min, zip(*times[1:], strict=True))  # the first one prepares kernels
    return BFLOAT16 if rough_s * WORTH <= exact_s else FLOAT32


def _product(dtype: torch.dtype) -> Callable[[], object]:
    states, weights = torch.ones(ROWS, WIDTH, dtype=dtype), torch.ones(WIDTH, WIDTH, dtype=dtype)
    return lambda: torch.nn.functional.linear(states, weights)


if __name__ == "__main__":
    sys.stdout.write(fastest_format() + "\n")
