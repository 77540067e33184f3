"""How many trainings end with a policy, and how many deployments end rightly: `python -m tests.bench.simulate_cycles`.

A cycle is a job of the coordinator, attempts of a worker, and a rollout of the deployer: their own code, on a broker
and a clock in memory. The trainings are real (RLOO on the toy agent of the tests), and attempts break at random by a
seed: the worker vanishes, the process is killed, memory runs out, the loss diverges, the data cannot be read. In some
cycles the rewards are turned round, so that the candidate is worse. What a policy is truly worth is measured on tasks
of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import structlog
import torch
from msgspec.structs import replace

from ratchet.bus.kv import Bucket
from ratchet.bus.message import named_id
from ratchet.bus.received import Received
from ratchet.canary_deployer.domain.rules import Rules, Stage
from ratchet.core.contract import TrainingDispatch, TrainingStatus
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.state import ENDED, JOBS, Job, JobState
from ratchet.core.contract.training import Artifacts, Hyperparameters, SnapshotRef
from ratchet.rl_coordinator.jobs.dispatcher import Dispatcher
from ratchet.rl_coordinator.jobs.domain.jobs import Counted, Limits, accept
from ratchet.rl_coordinator.jobs.domain.retries import DEFAULT_RETRIES
from ratchet.rl_coordinator.jobs.domain.schedule import Schedule
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.jobs.reconciler import JobReconciler
from ratchet.trainer_worker.domain import Exit, Frame, Report, Worker, conclude
from ratchet.trainer_worker.errors import DataUnusable, Diverged, error_code, reason_of
from ratchet.trainer_worker.job import Failed, Finished
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.algorithms.base import TrainStep
from ratchet.trainer_worker.training.checkpoints import Checkpoint
from ratchet.trainer_worker.training.policy import TrainedPolicy
from tests.support.canary_simulation import exact_interval
from tests.support.canary_world import CanaryWorld
from tests.support.trainer_runs import RecordingRun, job_spec, mean_reward, play, toy_model
from tests.support.training import config, request

TRAINED, JUDGED = 0.9, 0.95
"""Goals: shares of trainings that end with a policy, and of rollouts that end rightly."""
CYCLES_OF_A_ROLE, TRAINED_BEFORE = 5, 2
"""Then another role begins, with a policy of so many trainings: one that knows nothing cannot get much worse."""
BREAKS = 0.4
"""Share of attempts that break."""
TURNED = 0.3
"""Share of cycles whose rewards are turned round."""
RULES = Rules(stages=(Stage(0.1, 600, 20), Stage(0.5, 600, 20)), soak_s=600.0, margin=0.1, horizon_s=300.0, lead_s=0.0)
ROUNDS, PER_ROUND, ROUND_S = 150, 40, 61.0
"""A rollout gets so many trajectories a minute, for so long; what is undecided then was not judged."""
HYPER = Hyperparameters(learning_rate=2e-3, batch_size=32, epochs=2, full_finetune=True, warmup_steps=1)
TASKS, TRIES, JUDGED_BY = 120, 8, 4000
SNAPSHOT = SnapshotRef(uri="s3://cycles/snapshots/rows.json", digest="d" * 64)
TICK_S = 5.0
"""Between two looks of the coordinator: it blames no worker for silence while it was away itself."""
LIMITS = Limits(lease_s=30.0, claim_s=60.0, max_attempts=5, retries=DEFAULT_RETRIES)


class Vanished(Exception):
    """The worker is gone, and with it whatever would have said so."""


class Killed(Exception):
    """The training process was ended by a signal."""


FAULTS: Sequence[Exception] = (
    Vanished(),
    Killed(),
    MemoryError("no room for the gradients"),
    Diverged("the loss is not a number"),
    DataUnusable("a row cannot be read"),
)


class FaultyRun(RecordingRun):
    """A training that breaks after some train step, if at all; it saves every tenth."""

    def __init__(self, root: Path, resume: Checkpoint | None, fault: Exception | None, at: float) -> None:
        super().__init__(root, "rloo", resume=resume, every=10)
        self._fault, self._at = fault, at

    def stepped(self, step: TrainStep) -> None:
        super().stepped(step)
        if self._fault is not None and step.number >= self._at * step.total:
            raise self._fault


@dataclass
class Tally:
    """What became of the cycles."""

    jobs: Counter[str] = field(default_factory=Counter[str])
    """By the state in which a job ended."""
    attempts: Counter[str] = field(default_factory=Counter[str])
    """By how an attempt ended."""
    rollouts: Counter[tuple[bool, str]] = field(default_factory=Counter[tuple[bool, str]])
    """By whether the candidate is worse by more than the margin, and the state in which its rollout ended."""

    @property
    def right(self) -> int:
        """Rollouts that ended as they should: what is worse went, and all else stayed."""
        return self.rollouts[True, "rolled_back"] + self.rollouts[False, "promoted"]

    @property
    def reaches_goals(self) -> bool:
        """Whether enough trainings ended with a policy, and enough rollouts rightly."""
        trained = self.jobs[JobState.COMPLETED] / self.jobs.total()
        return trained > TRAINED and self.right / self.rollouts.total() > JUDGED

    def lines(self) -> Iterator[str]:
        """The table of the report."""
        jobs, rollouts = self.jobs.total(), self.rollouts.total()
        yield "| | | of |"
        yield "|---|---|---|"
        yield f"| trainings with a policy | {_share(self.jobs[JobState.COMPLETED], jobs)} | {jobs} |"
        yield f"| attempts: {_listed(self.attempts)} | | {self.attempts.total()} |"
        yield f"| deployments judged rightly | {_share(self.right, rollouts)} | {rollouts} |"
        for is_worse, name in ((False, "no worse than the margin"), (True, "worse")):
            ends = Counter({state: number for (kind, state), number in self.rollouts.items() if kind is is_worse})
            yield f"| candidates that are {name}: {_listed(ends)} | | {ends.total()} |"


def _share(number: int, of: int) -> str:
    low, high = exact_interval(number, of)
    return f"{number / of:.0%} [{low:.0%}, {high:.0%}]"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in sorted(counts.items()))


def tries(model: Any, seed: int) -> list[TrajectoryRow]:
    """What a model does of some tasks, several times each."""
    return play(model, TASKS, TRIES, torch.Generator().manual_seed(seed))


def learn(parent: Any, rows: Sequence[TrajectoryRow], hyper: Hyperparameters, run: RecordingRun) -> tuple[Any, int]:
    """The model that a training makes of another one, and how many trajectories it learnt from."""
    model = toy_model(0)
    model.load_state_dict(parent.state_dict())
    policy = TrainedPolicy(model, cast("Any", None), "model", bf16=False, fresh=True)
    outcome = load_train("rloo")(job_spec("rloo", hyper=hyper), policy, rows, run)
    return model.eval(), outcome.samples


class Cycles:
    """The services of one role, in memory, and the model that serves it."""

    def __init__(self, seed: int, folder: Path, tally: Tally) -> None:
        self.random = random.Random(seed)
        self.folder, self.tally = folder, tally
        self.model = toy_model(seed)
        for number in range(TRAINED_BEFORE):
            rows = tries(self.model, -seed - number)
            self.model, _ = learn(self.model, rows, HYPER, RecordingRun(folder / f"{seed}-{number}", "rloo"))
        self.undecided = False
        """Whether its last rollout was."""
        self.world = CanaryWorld(RULES)
        bus = self.world.bus
        self.store = KvJobs(Bucket(bus, JOBS, Job), Bucket(bus, "coordinator", str))
        self.reconciler = JobReconciler(
            bus=bus, store=self.store, limits=LIMITS, tick_s=TICK_S, retention_s=1e9, pools=("default",)
        )
        self.dispatcher = Dispatcher(
            bus=bus, store=self.store, prepare=self._prepare, schedule=Schedule({"default": 1}, 3600.0), exports=1
        )

    async def _prepare(self, job: Job) -> None:
        await self.store.change_job(job.training_job_id, lambda current: replace(current, snapshot=SNAPSHOT))

    async def cycle(self, number: int) -> None:
        """One job, and where it ends with a policy one rollout."""
        rows = tries(self.model, number)
        if self.random.random() < TURNED:
            rows = [replace(row, reward=-row.reward) for row in rows]
        asked = request(f"cycle {number}", training_config=config(hyperparameters=HYPER))
        job, _ = await self.store.create_job(accept(asked, pool="default", counted=Counted(), now=self.world.clock()))
        candidate = await self._train(job.training_job_id, rows)
        self.tally.jobs[(await self.store.get_job(job.training_job_id)).state] += 1
        if candidate is not None:
            await self._deploy(candidate, number)

    async def _train(self, job_id: str, rows: Sequence[TrajectoryRow]) -> Any:
        """The model of a job; None where it fails for good."""
        checkpoint: Checkpoint | None = None
        while True:
            self.world.clock.advance(TICK_S)
            await self.reconciler.tick()
            await self.dispatcher.tick()
            await asyncio.sleep(0)  # what it prepares in a task of its own
            job = await self.store.get_job(job_id)
            if job.state in ENDED:
                return None
            if job.state != JobState.DISPATCHED:
                continue
            model, checkpoint = await self._attempt(job, rows, checkpoint)
            if model is not None:
                return model

    async def _attempt(
        self, job: Job, rows: Sequence[TrajectoryRow], checkpoint: Checkpoint | None
    ) -> tuple[Any, Checkpoint | None]:
        """The model, if the attempt ends with one, and the newest checkpoint of the job."""
        dispatch = self.world.bus.published(TrainingDispatch)[-1]
        assert (dispatch.training_job_id, dispatch.attempt) == (job.training_job_id, job.attempt)
        frame = Frame(dispatch, Worker("w", f"{job.attempt}"), self.world.clock(), "toy")
        report = Report(checkpoint=f"s3://cycles/{job.training_job_id}" if checkpoint else None)
        await self._say(frame.status(JobState.RUNNING, report, self.world.clock()))
        fault = self.random.choice(FAULTS) if self.random.random() < BREAKS else None
        resumes = checkpoint if job.artifacts is not None and job.artifacts.checkpoint else None
        run = FaultyRun(self.folder / f"{job.training_job_id}-{job.attempt}", resumes, fault, self.random.random())
        model, exited, vanished = None, Exit(code=0), False
        try:
            model, samples = learn(self.model, rows, dispatch.request.training_config.hyperparameters, run)
            report.fold(Finished(directory="", kind="model", samples=samples, metrics={}, peak_memory_gb=0.0))
        except Vanished:
            vanished = True
        except Killed:
            exited = Exit(code=-9)
        except Exception as error:  # noqa: BLE001 - as of the child process: whatever broke is its result
            report.fold(Failed(code=error_code(error), message=reason_of(error)))
        checkpoint = run.newest() if run.store.all() else checkpoint
        report.checkpoint = f"s3://cycles/{job.training_job_id}" if checkpoint else None
        if vanished:
            await self._say(frame.status(JobState.RUNNING, report, self.world.clock()))
            self.tally.attempts["worker vanished"] += 1
            return None, checkpoint
        ended = conclude(report.last, exited, None)
        assert ended is not None
        artifacts = Artifacts(checkpoint=report.checkpoint)
        await self._say(frame.status(ended.status, report, self.world.clock(), artifacts, error=ended.error))
        self.tally.attempts[ended.error.code if ended.error else "completed"] += 1
        return model, checkpoint

    async def _say(self, status: TrainingStatus) -> None:
        """A status reaches the coordinator."""
        self.world.bus.contracts.check_strict(status)
        await self.reconciler.on_status(
            Received(
                message=status,
                subject=status.subject,
                stream="RL_TRAINING",
                sequence=1,
                delivered=1,
                event_id=named_id(status.training_job_id, status.attempt, status.status),
                time=status.timestamp,
                correlation_id=status.training_job_id,
            )
        )

    async def _deploy(self, candidate: Any, number: int) -> None:
        """Roll out the candidate to traffic that it and stable answer as well as they truly do."""
        stable, canary = (
            mean_reward(play(model, JUDGED_BY, 1, torch.Generator().manual_seed(-number)))
            for model in (self.model, candidate)
        )
        policy, _ = await self.world.register_next()
        self.world.controller.wake()
        rollout = await self.world.until("running")
        for _ in range(ROUNDS):
            self.world.clock.advance(ROUND_S)
            await self.world.play(PER_ROUND, stable, canary)
            rollout = await self.world.rollout()
            if not rollout.active:
                break
        self.undecided = rollout.active
        self.tally.rollouts[canary < stable - RULES.margin, "undecided" if rollout.active else rollout.state] += 1
        if (await self.world.route()).stable.version == policy.version:
            self.model = candidate


async def simulate(cycles: int, seed: int, folder: Path) -> Tally:
    """Play so many cycles."""
    tally = Tally()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    role: Cycles | None = None
    for number in range(cycles):
        if role is None or number % CYCLES_OF_A_ROLE == 0 or role.undecided:
            role = Cycles(seed + number, folder, tally)
            await role.world.with_policies(1)
        await role.cycle(seed + number + 1)
    return tally


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tally = asyncio.run(simulate(given.cycles, given.seed, Path(folder)))
    print("\n".join(tally.lines()))  # noqa: T201
    sys.exit(not tally.reaches_goals)


if __name__ == "__main__":
    main()
