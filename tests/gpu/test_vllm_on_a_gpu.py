"""A policy of .5 billion weights is trained, served by vLLM on a GPU, trained on its own answers, and taken back.

vLLM for CUDA has an environment of its own: `RATCHET_VLLM` is the path of its command, or `vllm` is on the path.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from ratchet.core.stores.objects import Objects
from tests.support.messages import AT
from tests.support.parrot_loop import RLOO, SFT, TASKS, TRIES, School, lesson_rows, lessons, play
from tests.support.served_scene import served_scene
from tests.support.servers import RunningServer, s3_settings
from tests.support.tiny_models import chat_texts, publish_tiny_model, write_half_billion
from tests.support.vllm_process import PROCESSED, running_on_a_gpu

VLLM = os.environ.get("RATCHET_VLLM") or shutil.which("vllm")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
    pytest.mark.skipif(VLLM is None, reason="there is no vLLM for CUDA here: RATCHET_VLLM names its command"),
    pytest.mark.timeout(1800),
]
LEAST_ESS = 0.95
"""Of an engine and a trainer that both compute in bf16."""


async def test_a_policy_is_trained_served_by_vllm_trained_again_and_taken_back(
    nats: RunningServer, s3: RunningServer, tmp_path: Path
) -> None:
    assert VLLM is not None
    store = s3_settings(s3, "vllm-on-a-gpu")
    objects = Objects(store)
    objects.ensure_bucket()
    base = tmp_path / "base"
    base.mkdir()
    write_half_billion(base, chat_texts(lessons()))
    school = School(objects, base, publish_tiny_model(objects, base, "support", AT), tmp_path, precision="bf16")
    first, adapter, _ = school.train("sft", lesson_rows(), SFT)
    with running_on_a_gpu(VLLM, base, tmp_path, store) as vllm:
        async with served_scene(nats, tmp_path, vllm.url, engine_logprobs_mode=PROCESSED) as here:
            await here.serve(1, first)
            before = await play(here)
            second, _, figures = school.train("rloo", before.rows, RLOO, adapter)
            await here.serve(2, second)
            after = await play(here, played_before=2 * TASKS * TRIES)
            await here.serve(1, first)
            back = await play(here, played_before=4 * TASKS * TRIES)
    sys.stdout.write(
        f"{torch.cuda.get_device_name()}: right {before.right:.2f} after SFT, {after.right:.2f} after RLOO,"
        f" {back.right:.2f} taken back; ESS at the start {figures['start_ess']:.4f}; fork rate {before.fork_rate:.2f}\n"
    )
    assert figures["start_ess"] > LEAST_ESS
    assert [{row.policy_version for row in played.rows} for played in (before, after, back)] == [{1}, {2}, {1}]
