"""What a rank keeps in memory while it trains, with and without shared layers: `python -m tests.bench.bench_shards`.

A job of two CPU processes (gloo) on a random Llama whose layers are nearly all of it. Memory of its own (USS) of each
process while it trains, and the wall seconds of a train step; a small base shows what is there without weights.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ratchet.core.contract.training import Hyperparameters, Lora
from ratchet.trainer_worker.job import METRICS_FILE, Progressed, decode_event
from tests.support.forked_trainings import Forks, forked_trainings
from tests.support.snapshot_rows import write_rows
from tests.support.tiny_models import write_tokenizer
from tests.support.trainer_runs import VOCABULARY, job_spec, play

TRIES = "tries.parquet"
STEPS = 6
"""Train steps until memory is read."""


def write_inputs(folder: Path, hidden: int, layers: int) -> int:
    """Save a random model and what it did; returns the bytes of its layers."""
    folder.mkdir()
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        pad_token_id=0,
        eos_token_id=0,
        bos_token_id=None,
    )
    model: Any = LlamaForCausalLM(config)
    weights = sum(one.numel() * one.element_size() for one in model.model.layers.parameters())
    model.bfloat16().save_pretrained(folder)  # computed in float32: what is loaded is not the file itself, mapped
    write_tokenizer(folder, ["a b c"], 300)
    write_rows(folder / TRIES, play(model.float(), 16, 4, torch.Generator().manual_seed(0)))
    return weights


def measured(forks: Forks, directory: Path, base: Path, *, sharded: bool) -> tuple[list[int], float]:
    """Bytes of each rank, and the median seconds of a train step."""
    hyper = Hyperparameters(learning_rate=1e-6, batch_size=8, epochs=10**6, lora=Lora(r=4, dropout=0.0))
    spec = job_spec("rloo", str(base), str(base / TRIES), ranks=2, sharded=sharded, hyper=hyper)
    training = forks.start(directory, spec)
    for line in training.lines:
        event = decode_event(line)
        if not isinstance(event, Progressed) and type(event).__name__ == "Failed":
            raise SystemExit(str(event))
        if isinstance(event, Progressed) and event.step >= STEPS:
            break
    processes = [psutil.Process(training.pid), *training.ranks()]
    own = [one.memory_full_info().uss for one in processes]
    lines = (directory / METRICS_FILE).read_text().splitlines()
    seconds = statistics.median(json.loads(line)["seconds"] for line in lines if line.endswith("}"))
    processes[0].kill()
    psutil.wait_procs(processes[1:], timeout=60)
    return own, seconds


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def megabytes(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size / 1e6:.0f} MB" for size in sizes)


def main(hidden: int, layers: int) -> None:
    say(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with forked_trainings(folder / "parent.log") as forks:
            for base, wide in (("small", 32), ("large", hidden)):
                weights = write_inputs(folder / base, wide, layers)
                say(f"layers of {megabytes([weights])}")
                for sharded in (False, True):
                    own, seconds = measured(forks, folder / f"{base}-{sharded}", folder / base, sharded=sharded)
                    how = "shared" if sharded else "whole "
                    say(f"  {how} the ranks have {megabytes(own)}; a train step takes {seconds:.3f} s")
    say(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=24)
    arguments = parser.parse_args()
    main(arguments.hidden, arguments.layers)
