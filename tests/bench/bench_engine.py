"""The cost of a call in the local engine, and the gain of merged adapters and of the fused forward pass.

Run: `python -m tests.bench.bench_engine [SECONDS]` (about 40 s). A Llama of 0.8 million parameters; conversations of 4
calls with prompts of 150 to 250 tokens and answers of 10 tokens. Other load disturbs processor time least.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import torch
import uvloop
from peft import LoraConfig, get_peft_model

from ratchet.core.rules.arms import policy_name
from ratchet.core.stores.objects import Objects
from ratchet.local.engine_local.torch_llama import beside_weights
from ratchet.local.engine_local.torch_policies import Weights, load_weights, with_adapter
from ratchet.local.engine_local.torch_slots import Network, Slots, TransformersNetwork
from tests.support.engine_process import TEXTS, running_engine
from tests.support.servers import RunningServer, running_s3, s3_settings
from tests.support.tiny_models import publish_tiny_model, write_tiny_model

CALLS, ANSWER_TOKENS = 4, 10
SYSTEM = "You are a kind help desk clerk. Orders have a status, a day and an amount; refunds need a fraud check. " * 2


async def converse(session: aiohttp.ClientSession, url: str, model: str, until: float, agent: int) -> list[float]:
    """One agent until the time is over; returns the seconds of each call."""
    spent: list[float] = []
    while time.perf_counter() < until:
        messages: list[Any] = [{"role": "system", "content": SYSTEM}]
        for number in range(CALLS):
            messages.append({"role": "user", "content": f"where is my order K{agent}{len(spent)}, question {number}"})
            body = {"model": model, "messages": messages, "max_tokens": ANSWER_TOKENS, "return_token_ids": True}
            asked = time.perf_counter()
            async with session.post(f"{url}/v1/chat/completions", json={**body, "logprobs": True}) as answer:
                reply = await answer.json()
                answer.raise_for_status()
            spent.append(time.perf_counter() - asked)
            messages.append(reply["choices"][0]["message"])
    return spent


async def serve(engine: RunningServer, model: str, agents: int, seconds: float) -> None:
    """Let some agents talk for a while, and print the cost."""
    process = psutil.Process(engine.pid)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        before, started = process.cpu_times(), time.perf_counter()
        talks = (converse(session, engine.url, model, started + seconds, n) for n in range(agents))
        spent = sorted(one * 1000 for talk in await asyncio.gather(*talks) for one in talk)
        took, after = time.perf_counter() - started, process.cpu_times()
    used_ms = (after.user + after.system - before.user - before.system) * 1000
    _print(
        f"{agents:>2} agents: {len(spent) / took:6.1f} calls/s, p50 {spent[len(spent) // 2]:6.1f} ms, "
        f"{used_ms / len(spent):5.2f} ms of processor time per call"
    )


@torch.inference_mode()
def step_ms(network: Network, rows: int) -> float:
    """Processor time of one decoding step of `rows` sequences of 200 tokens."""
    slots = Slots(network)
    for _ in range(rows):
        slots.open(None, 0)
    slots.forward(0, [[7] * 200] * rows)
    costs: list[float] = []
    for _ in range(30):
        began = time.thread_time()
        slots.forward(0, [[9]] * rows)
        costs.append((time.thread_time() - began) * 1000)
    return statistics.median(costs)


def variants(weights: Weights, scratch: Path) -> dict[str, Network]:
    """The same adapter merged and not, and both forward passes."""
    config = LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM")
    unmerged: Any = get_peft_model(load_weights(scratch / "tiny").model, config)
    unmerged.save_pretrained(str(scratch / "adapter"))
    merged = with_adapter(weights, scratch / "adapter", None)
    beside = beside_weights(weights.network, unmerged.get_base_model())
    assert beside is not None
    return {
        "unmerged, transformers": TransformersNetwork(unmerged.eval()),
        "merged, transformers": TransformersNetwork(merged.model),
        "unmerged, fused": beside,
        "merged, fused": merged.network,
    }


async def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, running_s3(Path(folder)) as s3:
        scratch = Path(folder)
        directory = write_tiny_model(scratch / "tiny", TEXTS, hidden=128, layers=4, vocabulary=600)
        for name, network in variants(load_weights(directory), scratch).items():
            figures = ", ".join(f"{rows} rows {step_ms(network, rows):.2f} ms" for rows in (1, 8, 16, 32))
            _print(f"{name:<24} one step: {figures}")
        shared = s3_settings(s3, "bench")
        objects = Objects(shared)
        objects.ensure_bucket()
        policy = publish_tiny_model(objects, directory, "helpdesk", datetime.now(UTC))
        model = policy_name("helpdesk", 1, policy.digest)
        with running_engine(shared, scratch) as engine:
            async with aiohttp.ClientSession() as session:
                once = {"model": model, "prompt": [5], "max_tokens": 1}  # loads it, outside of what is measured
                async with session.post(f"{engine.url}/v1/completions", json=once) as answer:
                    answer.raise_for_status()
            for agents in (1, 8, 16, 32):
                await serve(engine, model, agents, seconds)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
