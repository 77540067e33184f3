"""From dispatch to the first train step, in a fresh process and forked: `python -m tests.bench.bench_trainer_start`.

Jobs of the demo's model (0.7 M parameters) and tickets, in turn: in a fresh process, and forked from the fork server,
as the worker starts them, without broker and object store. Then from their dispatch on, by a worker on real servers.
Wall seconds, CPU seconds of the training process, which other work on the machine changes little, and the ratio to the
fresh process of the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from msgspec.structs import replace
from nats.js.api import ConsumerConfig, DeliverPolicy

from ratchet.bus.message import decode
from ratchet.core.contract import TrainingStatus
from ratchet.core.contract.training import Hyperparameters, Lora
from ratchet.trainer_worker.attempt import Timing
from ratchet.trainer_worker.child_process import Child, WarmStart
from ratchet.trainer_worker.fork_server import ForkServer
from ratchet.trainer_worker.job import Failed, JobSpec, Progressed
from ratchet_helpdesk.base_model import Shape, write_base_model
from ratchet_helpdesk.clerk import CARELESS, play
from ratchet_helpdesk.world import TRAIN, draw_tasks, tool_definitions
from tests.support.servers import running_nats, running_s3, s3_settings
from tests.support.trainer_runs import job_spec, write_snapshot
from tests.support.trainer_world import World, trainer_world, working

EXAMPLES = 64


def job(folder: Path, threads: int) -> JobSpec:
    base = folder / "base"
    base.mkdir()
    write_base_model(base, 0, Shape())
    draw, tools = random.Random(0), tool_definitions()
    played = [play(task, CARELESS, draw) for task in draw_tasks(TRAIN, EXAMPLES, 0)]
    rows = [{"messages": list(one.messages), "tools": tools, "reward": 1.0} for one in played]
    dataset = write_snapshot(folder / "snapshot.parquet", rows)
    hyper = Hyperparameters(learning_rate=1e-3, batch_size=8, max_steps=2, lora=Lora(r=8, alpha=16))
    return replace(job_spec("sft", str(base), str(dataset), hyper=hyper), threads=threads)


@dataclass(frozen=True)
class Start:
    """The first train step was reported after so many seconds; the process had used so many of a processor."""

    wall_s: float
    cpu_s: float


async def first_step(spec: JobSpec, directory: Path, warm: WarmStart | None) -> Start:
    """Run a job, and measure until its first train step is reported."""
    await asyncio.to_thread(directory.mkdir)
    began = time.monotonic()
    child = await Child.start(spec, directory, warm)
    start: Start | None = None
    async for event in child.events():
        if isinstance(event, Failed):
            raise SystemExit(event.message)
        if isinstance(event, Progressed) and start is None:
            used = psutil.Process(child.pid).cpu_times()
            start = Start(time.monotonic() - began, used.user + used.system)
    await child.wait()
    assert start is not None
    return start


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
    subscription = await world.bus.nc.jetstream().subscribe(
        TrainingStatus.TOPIC, ordered_consumer=True, config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
    )
    began = time.monotonic()
    job = (await world.dispatch(name, config)).training_job_id
    moments = Moments()
    async for message in subscription.messages:
        status = decode(message.data, TrainingStatus)
        if status.training_job_id != job:
            continue
        moments.running = moments.running or time.monotonic() - began
        if status.progress is not None and not moments.stepped:
            moments.stepped = time.monotonic() - began
        if status.status != "running":
            if status.error is not None:
                raise SystemExit(status.error.message)
            break
    await subscription.unsubscribe()
    return moments


async def from_dispatch(folder: Path, rounds: int) -> list[Moments]:
    """By a worker on a broker and an object store, after one job that warms it."""
    with running_nats(folder / "nats") as nats, running_s3(folder / "s3") as s3:
        shared = s3_settings(s3, "bench", nats_url=nats.url, data_dir=folder / "data", health_port=0)
        async with trainer_world(shared, folder) as world:
            world.timing = Timing(heartbeat_s=0.02)
            async with working(world):
                await dispatched(world, "warming", 2)
                return [await dispatched(world, f"job-{n}", 2) for n in range(rounds)]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def spread(seconds: Sequence[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


async def side_by_side(folder: Path, rounds: int, threads: int) -> None:
    """Each round has one job of every way."""
    spec = job(folder, threads)
    server = ForkServer()
    ways: dict[str, ForkServer | None] = {"fresh process": None, "forked": server}
    await first_step(spec, folder / "warming", server)
    starts: dict[str, list[Start]] = {way: [] for way in ways}
    for number in range(rounds):
        for place, (way, warm) in enumerate(ways.items()):
            starts[way].append(await first_step(spec, folder / f"{number}-{place}", warm))
    beside = {process.pid: process for process in psutil.Process().children()}.values()
    memory = max((process.memory_full_info() for process in beside), key=lambda one: one.rss)
    for way, made in starts.items():
        ratios = [one.wall_s / fresh.wall_s for one, fresh in zip(made, starts["fresh process"], strict=True)]
        wall, cpu = spread([one.wall_s for one in made]), spread([one.cpu_s for one in made])
        say(f"{way:22} first step after {wall}, CPU {cpu}, {statistics.median(ratios):.3f} x the fresh one")
    say(f"fork server: {memory.rss / 1e6:.0f} MB resident, {memory.uss / 1e6:.0f} MB of its own")


async def main(rounds: int, threads: int, *, dispatched_only: bool) -> None:
    say(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not dispatched_only:
            await side_by_side(folder, rounds, threads)
        (folder / "worker").mkdir()
        moments = await from_dispatch(folder / "worker", rounds)
    say(f"dispatch to the first status: {spread([one.running for one in moments])}")
    say(f"dispatch to the first step:   {spread([one.stepped for one in moments])}")
    say(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    # Forked processes import the main module of the one that asks for them, unless it is a package's, as the worker's.
    sys.modules["__main__"].__spec__ = None
    del sys.modules["__main__"].__file__
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dispatched-only", action="store_true", help="leave out the jobs without servers")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rounds, arguments.threads, dispatched_only=arguments.dispatched_only))
