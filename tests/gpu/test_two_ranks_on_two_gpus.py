"""Two processes on a GPU each train as one does: their gradients are summed by NCCL. It has never run: no machine with
two GPUs was at hand.

`python -m pytest tests/gpu -s` on a machine with two GPUs; skipped elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from ratchet.core.contract.training import Compute, Hyperparameters, Lora
from ratchet.trainer_worker.job import LOG_FILE, METRICS_FILE, Finished, JobSpec
from tests.support.forked_trainings import forked_trainings
from tests.support.snapshot_rows import write_rows
from tests.support.tiny_models import write_tokenizer
from tests.support.trainer_runs import job_spec, play, toy_model

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices here")


@pytest.mark.timeout(300)
def test_two_gpus_have_the_losses_of_one(tmp_path: Path) -> None:
    model = toy_model(0)
    model.save_pretrained(tmp_path / "base")
    write_tokenizer(tmp_path / "base", ["a b c"], 300)
    dataset = write_rows(tmp_path / "tries.parquet", play(model, 16, 4, torch.Generator().manual_seed(0)))
    hyper = Hyperparameters(learning_rate=1e-2, batch_size=8, epochs=1, lora=Lora(r=4, dropout=0.0))
    losses: list[list[float]] = []
    with forked_trainings() as forks:
        for ranks in (1, 2):
            directory = tmp_path / str(ranks)
            spec = in_fp32(job_spec("rloo", str(tmp_path / "base"), str(dataset), hyper=hyper, ranks=ranks))
            last = forks.start(directory, spec).events()[-1]
            assert isinstance(last, Finished), (last, (directory / LOG_FILE).read_text())
            lines = (directory / METRICS_FILE).read_text().splitlines()
            losses.append([json.loads(line)["loss"] for line in lines])
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


def in_fp32(spec: JobSpec) -> JobSpec:
    config = replace(spec.config, compute=Compute(mixed_precision="fp32"))
    return replace(spec, config=config)
