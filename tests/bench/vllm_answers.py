"""vLLM's part of `bench_real_model`, run by the Python of its own environment: MODEL DTYPE PROMPT ANSWER RUNS ROWS...

Prints the least processor time of some greedy answers, a line for each number of rows.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any


def main(model: str, dtype: str, prompt: int, answer: int, runs: int, counts: list[int]) -> None:
    vllm: Any = import_module("vllm")  # which that environment alone has
    engine = vllm.LLM(
        model=model,
        dtype=dtype,
        enforce_eager=True,  # as `ratchet up` starts it
        enable_prefix_caching=False,  # prompts are computed in every run, as by the others
        max_model_len=2 * prompt,
        max_num_seqs=max(counts),
    )
    greedy = vllm.SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
    for rows in counts:
        drawn = [[20 + (7 * place + row) % 40_000 for place in range(prompt)] for row in range(rows)]
        ids = [{"prompt_token_ids": each} for each in drawn]
        costs: list[float] = []
        for _ in range(runs):
            began = time.process_time()
            engine.generate(ids, greedy, use_tqdm=False)
            costs.append(time.process_time() - began)
        sys.stdout.write(f"vllm {rows} {min(costs)}\n")


if __name__ == "__main__":
    name, kind, *numbers = sys.argv[1:]
    length, tokens, times, *sizes = map(int, numbers)
    main(name, kind, length, tokens, times, sizes)
