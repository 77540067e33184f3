"""From dispatch to the first train step, in a fresh process and forked: `python -m tests.bench.bench_trainer_start`.

Jobs of the demo's model (0.7 M parameters) and tickets, one after the other: as the worker starts them, without broker
and object store, and then from their dispatch on, by a worker on real servers. Wall seconds; the first forked job waits
for the warm parent's imports.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from msgspec.structs import replace

from ratchet.contract import TrainingStatus
from ratchet.contract.training import Hyperparameters, Lora
from ratchet.trainer_worker.child_process import Child, WarmStart
from ratchet.trainer_worker.job import Failed, JobSpec, Progressed
from ratchet.trainer_worker.warm_link import WarmLink
from ratchet_helpdesk.base_model import Shape, write_base_model
from tests.bench.bench_learner import say, tickets
from tests.support.servers import running_nats, running_s3, s3_settings
from tests.support.trainer_runs import job_spec, write_snapshot
from tests.support.trainer_world import World, trainer_world, working

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


@dataclass
class Moments:
    """When things happened, in seconds since the dispatch."""

    running: float = 0.0
    """The first status came: the inputs are there, and the process has started."""
    stepped: float = 0.0
    """A status with the first train step came."""


async def dispatched(world: World, name: str, steps: int) -> Moments:
    """One job, from its dispatch on; a heartbeat of 20 ms adds that much at most."""
    config = world.config(max_steps=steps, learning_rate=1e-3, lora=Lora(r=8, alpha=16))
    began = time.monotonic()
    job = (await world.dispatch(name, config)).training_job_id
    moments = Moments()
    async for status in statuses(world, job):
        moments.running = moments.running or time.monotonic() - began
        if status.progress is not None and not moments.stepped:
            moments.stepped = time.monotonic() - began
        if status.status != "running":
            if status.error is not None:
                raise SystemExit(status.error.message)
            return moments
    raise AssertionError


async def statuses(world: World, job: str) -> AsyncIterator[TrainingStatus]:
    """Statuses of a job, as they come."""
    seen = 0
    while True:
        come = world.statuses_of(job)
        for status in come[seen:]:
            yield status
        seen = len(come)
        await asyncio.sleep(0.002)


async def from_dispatch(folder: Path, rounds: int) -> list[Moments]:
    """By a worker on a broker and an object store, after one job that warms it."""
    with running_nats(folder / "nats") as nats, running_s3(folder / "s3") as s3:
        shared = s3_settings(s3, "bench", nats_url=nats.url, data_dir=folder / "data", health_port=0)
        async with trainer_world(shared, folder) as world:
            world.settings = world.settings.model_copy(update={"heartbeat_s": 0.02, "warm_delay_s": 0.0})
            async with working(world):
                await dispatched(world, "warming", 2)
                return [await dispatched(world, f"job-{n}", 2) for n in range(rounds)]


def say_spread(what: str, seconds: Sequence[float]) -> None:
    """Median, least and most."""
    say(f"{what:38} median {statistics.median(seconds):.2f} s  (least {min(seconds):.2f}, most {max(seconds):.2f})")


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
        (folder / "worker").mkdir()
        moments = await from_dispatch(folder / "worker", rounds)
    say_spread("first step, fresh process", fresh)
    say_spread("first step, forked", forked)
    say_spread("dispatch to first status, forked", [one.running for one in moments])
    say_spread("dispatch to first step, forked", [one.stepped for one in moments])
    say(f"first job, which waits for the warm parent's imports: {cold:.2f} s")
    say(f"warm parent: {memory.rss / 1e6:.0f} MB resident, {memory.uss / 1e6:.0f} MB of its own")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rounds, arguments.threads))
