"""A small loop closes on vLLM: SFT from logs, served, played through the gateway, RLOO on what was played, served."""

from __future__ import annotations

import sys
from pathlib import Path

from ratchet.core.stores.objects import Objects
from tests.support.parrot_loop import RLOO, SFT, TASKS, TRIES, School, lesson_rows, play
from tests.support.served_scene import served_scene
from tests.support.servers import RunningServer
from tests.support.vllm_process import PROCESSED, RunningVllm

ROUNDING = 1e-3
"""Difference of effective sample sizes that float32 leaves."""


async def test_policy_is_trained_served_and_trained_again_on_its_own_logprobs(
    replicas: list[RunningVllm], nats: RunningServer, tmp_path: Path
) -> None:
    vllm = next(one for one in replicas if one.logprobs_mode == PROCESSED)
    published = vllm.published
    school = School(Objects(vllm.shared), published.directory, published.model, tmp_path)
    async with served_scene(nats, tmp_path, vllm.url, engine_logprobs_mode=PROCESSED) as here:
        first, adapter, _ = school.train("sft", lesson_rows(), SFT)
        name = await here.serve(1, first)
        before = await play(here)
        assert name in vllm.listed()  # resolved by its name: nothing has loaded it
        second, _, figures = school.train("rloo", before.rows, RLOO, adapter)
        name = await here.serve(2, second)
        after = await play(here, played_before=2 * TASKS * TRIES)
        assert name in vllm.listed()
    sys.stdout.write(
        f"vLLM, {TASKS} tasks x {TRIES} tries: right {before.right:.2f} after SFT, {after.right:.2f} after RLOO; ESS at"
        f" the start {figures['start_ess']:.4f}; fork rate {before.fork_rate:.2f}, {after.fork_rate:.2f}\n"
    )
    assert figures["start_ess"] > 1 - ROUNDING
    assert figures["rejected_mass"] == 0
    assert {row.policy_version for row in before.rows} == {1}
    assert {row.policy_version for row in after.rows} == {2}
    assert 0 < before.right < 1  # tries differ, so there is something to learn from
    assert figures["zero_variance_groups"] < TASKS
