"""From dispatch to the first train step, in a fresh process and forked: `python -m tests.bench.bench_trainer_start`.

Jobs of the demo's model (0.7 M parameters) and tickets, one after the other, as the worker starts them, without broker
and object store. Wall seconds; the first forked job waits for the warm parent's imports.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import psutil
from msgspec.structs import replace

from ratchet.contract.training import Hyperparameters, Lora
from ratchet.trainer_worker.child_process import Child, WarmStart
from ratchet.trainer_worker.job import Failed, JobSpec, Progressed
from ratchet.trainer_worker.warm_link import WarmLink
from ratchet_helpdesk.base_model import Shape, write_base_model
from tests.bench.bench_learner import say, tickets
from tests.support.trainer_runs import job_spec, write_snapshot

EXAMPLES = 64


def job(folder: Path, threads: int) -> JobSpec:
    base = folder / "base"
    base.mkdir()
    write_base_model(base, 0, Shape())
    rows = [{"messages": one.messages, "tools": one.tools, "reward": one.reward} for one in tickets(EXAMPLES)]
    dataset = write_snapshot(folder / "snapshot.parquet", rows)
    hyper = Hyperparameters(learning_rate=1e-3, batch_size=8, max_steps=2, lora=Lora(r=8, alpha=16))
    return replace(job_spec("sft", str(base), str(dataset), hyper=hyper), threads=threads)


async def first_step_s(spec: JobSpec, directory: Path, warm: WarmStart | None) -> float:
    """Wall seconds until the first train step is reported."""
    await asyncio.to_thread(directory.mkdir)
    began = time.monotonic()
    child = await Child.start(spec, directory, warm)
    took = 0.0
    async for event in child.events():
        if isinstance(event, Failed):
            raise SystemExit(event.message)
        if isinstance(event, Progressed) and not took:
            took = time.monotonic() - began
    await child.wait()
    return took


async def main(rounds: int, threads: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = job(folder, threads)
        link = WarmLink(folder, delay_s=0.0)
        running = asyncio.create_task(link.run())
        cold = await first_step_s(spec, folder / "cold", link)
        fresh = [await first_step_s(spec, folder / f"fresh-{n}", None) for n in range(rounds)]
        forked = [await first_step_s(spec, folder / f"forked-{n}", link) for n in range(rounds)]
        assert link.parent_pid is not None
        memory = psutil.Process(link.parent_pid).memory_full_info()
        await link.stop()
        await running
    for way, seconds in (("fresh", fresh), ("forked", forked)):
        say(f"{way:7} median {statistics.median(seconds):.2f} s  (least {min(seconds):.2f}, most {max(seconds):.2f})")
    say(f"first job, which waits for the warm parent's imports: {cold:.2f} s")
    say(f"warm parent: {memory.rss / 1e6:.0f} MB resident, {memory.uss / 1e6:.0f} MB of its own")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rounds, arguments.threads))
