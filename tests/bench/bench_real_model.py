"""SmolLM2-135M in the local engine beside `transformers.generate` and vLLM, in bfloat16 and float32: tokens per second.

Run: `python -m tests.bench.bench_real_model [ROWS ...]` (rows computed together, 1 8 32 without any; about 2 minutes
without vLLM). Greedy answers of 24 tokens to prompts of 150, by one thread; each figure is the better of two runs.
Times are of the processor, which other load disturbs least. vLLM takes part where `make vllm` has installed it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ratchet.core.contract.policy_manifest import BFLOAT16, FLOAT32
from ratchet.local.engine_local.domain.requests import Sampling
from ratchet.local.engine_local.torch_batch import Batch, Job
from ratchet.local.engine_local.torch_llama import lean_network
from ratchet.local.engine_local.torch_policies import Weights, load_weights
from ratchet.local.engine_local.torch_slots import Network, Slots, TransformersNetwork
from ratchet.local.local_stack.vllm import installed_vllm
from ratchet.local.smollm2 import smollm2

PROMPT, ANSWER = 150, 24
RUNS = 2
VLLM_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its time is that of one process
    "VLLM_NO_USAGE_STATS": "1",
}


def spent_s(work: Callable[[], object]) -> float:
    """Processor time, the least of a few runs."""
    costs: list[float] = []
    for _ in range(RUNS):
        began = time.thread_time()
        work()
        costs.append(time.thread_time() - began)
    return min(costs)


def prompts(rows: int) -> list[list[int]]:
    return [[20 + (7 * place + row) % 40_000 for place in range(PROMPT)] for row in range(rows)]


@torch.inference_mode()
def answer(network: Network, ids: Sequence[Sequence[int]]) -> None:
    """As the engine answers: a batch of jobs."""
    batch = Batch(network, frozenset(), 0, seed=1)
    batch.join([Job(prompt, Sampling(temperature=0), ANSWER, lambda _: None) for prompt in ids])
    while len(batch):
        batch.step()


def generate(model: Any, ids: Sequence[Sequence[int]]) -> None:
    """As transformers answers."""
    table = torch.tensor(ids)
    model.generate(
        table,
        attention_mask=torch.ones_like(table),
        min_new_tokens=ANSWER,
        max_new_tokens=ANSWER,
        do_sample=False,
    )


def vllm_s(python: Path, model: Path, dtype: str, counts: Sequence[int]) -> Mapping[int, float]:
    """Of vLLM, by rows that are computed together."""
    script = Path(__file__).with_name("vllm_answers.py")
    sizes = map(str, (PROMPT, ANSWER, RUNS, *counts))
    ran = subprocess.run(
        [str(python), str(script), str(model), dtype, *sizes],
        env={**os.environ, **VLLM_ENVIRONMENT},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = [line.split() for line in ran.stdout.splitlines() if line.startswith("vllm ")]
    return {int(rows): float(seconds) for _, rows, seconds in lines}


@torch.inference_mode()
def step_ms(network: Network, rows: int) -> float:
    """One more token for so many rows, without the prompt and the drawing."""
    slots = Slots(network)
    for _ in range(rows):
        slots.open(None, 0)
    slots.forward(0, prompts(rows))
    return min(spent_s(lambda: slots.forward(0, [[9]] * rows)) for _ in range(3)) * 1000


def compare(weights: Weights, name: str, rows: int, vllm: float | None) -> None:
    network = lean_network(weights.model)
    own = spent_s(lambda: answer(network, prompts(rows)))
    theirs = spent_s(lambda: generate(weights.model, prompts(rows)))
    steps = [step_ms(one, rows) for one in (network, TransformersNetwork(weights.model))]
    _print(
        f"{name:<8} {rows:>2} rows: {rows * ANSWER / own:6.1f} tokens/s, {theirs / own:.2f} times transformers.generate"
        f"{f', {vllm / own:.2f} times vLLM' if vllm is not None else ''}"
        f"; a step {steps[0]:5.1f} ms, with transformers' own network {steps[1]:5.1f} ms"
    )


def main() -> None:
    torch.set_num_threads(1)
    counts = [int(text) for text in sys.argv[1:]] or [1, 8, 32]
    vllm = installed_vllm()
    for dtype in (BFLOAT16, FLOAT32):
        beside = vllm_s(vllm, smollm2(), dtype, counts) if vllm else {}
        weights = load_weights(smollm2(), dtype)
        for rows in counts:
            compare(weights, dtype, rows, beside.get(rows))


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
