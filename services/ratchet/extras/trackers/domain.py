"""What the tracker shall hold of a job, a policy and a role. Pure: state in, runs, metrics and aliases out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.state import ENDED, Job, JobState, PolicyStage, PolicyVersion, Route
from ratchet.core.rules.figures import SECONDS, train_steps

STAGING, PRODUCTION = "staging", "production"
"""Aliases of a registered model: the policy under examination, and the one that serves."""
JOB, POLICY, STATE, CURVES = "ratchet.training_job_id", "ratchet.policy", "ratchet.state", "ratchet.curves"
"""Tags by which a run or a version is found again, and that say what of it is copied already."""
STATUS = {
    JobState.DISPATCHED: "SCHEDULED",
    JobState.RUNNING: "RUNNING",
    JobState.COMPLETED: "FINISHED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "KILLED",
}
"""MLflow's words for the states of a job. A queued one has no run yet, unless it was tried before."""
METRICS = {"loss": "train_loss", "rewards_chosen": "implicit_reward"}
"""Metrics that go by another name there: the policy's own reward of the preferred answers is the implicit one."""
LIVE = "live/"
"""In front of what a heartbeat said; the whole curve, with its own times, follows when the attempt ends."""
TEXT = 5000
"""Most characters of a parameter or tag: MLflow takes 6,000 and 8,000."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure at one train step. `at_ms` is the Unix time in milliseconds."""

    key: str
    value: float
    at_ms: int
    step: int


@dataclass(frozen=True, slots=True)
class Run:
    """What is known of a job."""

    experiment: str
    name: str
    status: str
    started_ms: int
    ended_ms: int | None
    tags: Mapping[str, str]
    params: Mapping[str, str]
    live: list[Metric] = field(default_factory=list[Metric])


class Step(msgspec.Struct, frozen=True):
    """One train step of a run."""

    number: int
    figures: Mapping[str, float]


class RunDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, for a tracker that takes runs that have ended."""

    project: str
    id: str
    name: str
    status: str
    config: Mapping[str, str]
    """What was asked for, and where it came from."""
    steps: Sequence[Step]


def name_of(prefix: str, role: str) -> str:
    """The name of a role's experiment, and of its registered model."""
    return f"{prefix}_{role}"


def run_of(job: Job, prefix: str) -> Run | None:
    """The run of a job; None while no worker ever had it."""
    status = STATUS.get(job.state, "SCHEDULED" if job.attempt > 1 else None)
    if status is None:
        return None
    config = job.request.training_config
    tags = {
        JOB: job.training_job_id,
        "agent_role": job.role,
        "training_type": job.algorithm,
        "ratchet.attempt": str(job.attempt),
        "ratchet.trigger": job.request.trigger_reason,
        "ratchet.worker": job.worker,
        "ratchet.parent": job.parent,
        "ratchet.dataset_digest": job.snapshot.digest if job.snapshot else None,
        "ratchet.policy_uri": job.artifacts.final_checkpoint if job.artifacts else None,
        "ratchet.error": f"{job.error.code}: {job.error.message}" if job.error else None,
    }
    hyper: JsonObject = msgspec.to_builtins(config.hyperparameters)
    params = {"algorithm": job.algorithm, "base_model": config.base_model, **dict(_flat(hyper))}
    live: list[Metric] = []
    if job.metrics and job.progress and job.heartbeat_at and job.state == JobState.RUNNING:
        at_ms, step = _ms(job.heartbeat_at), job.progress.current_step or 0
        figures: JsonObject = msgspec.to_builtins(job.metrics)
        live = [
            Metric(LIVE + METRICS.get(name, name), float(value), at_ms, step)
            for name, value in figures.items()
            if isinstance(value, int | float)
        ]
    return Run(
        experiment=name_of(prefix, job.role),
        name=f"{job.algorithm}-{job.training_job_id[:8]}",
        status=status,
        started_ms=_ms(job.started_at or job.created_at),
        ended_ms=_ms(job.finished_at or job.updated_at) if job.state in ENDED else None,
        tags={name: value[:TEXT] for name, value in tags.items() if value},
        params={name: value[:TEXT] for name, value in params.items()},
        live=live,
    )


def curve(lines: bytes, started_ms: int) -> Iterator[Metric]:
    """The figures of `metrics.jsonl`, at the times at which its steps ended."""
    elapsed_s = 0.0
    for step in train_steps(lines):
        elapsed_s += step.figures.get(SECONDS, 0.0)
        for name, value in step.figures.items():
            yield Metric(METRICS.get(name, name), value, started_ms + round(1000 * elapsed_s), step.number)


def run_document(job: Job, prefix: str, lines: bytes) -> RunDocument | None:
    """A job and its `metrics.jsonl` as one run; None while no worker ever had it."""
    run = run_of(job, prefix)
    if run is None:
        return None
    steps = [
        Step(step.number, {METRICS.get(name, name): value for name, value in step.figures.items()})
        for step in train_steps(lines)
        if step.figures
    ]
    return RunDocument(
        project=run.experiment,
        id=job.training_job_id,
        name=run.name,
        status=run.status,
        config={**run.params, **run.tags},
        steps=steps,
    )


def version_tags(policy: PolicyVersion) -> dict[str, str]:
    """The tags of a policy's version in the registry."""
    tags = {
        POLICY: policy.name,
        "ratchet.digest": policy.digest,
        "ratchet.stage": str(policy.stage),
        "ratchet.reason": policy.reason,
        "ratchet.dataset_digest": policy.dataset_digest,
        "ratchet.parent": None if policy.parent is None else str(policy.parent),
        "agent_role": policy.role,
        "training_type": policy.algorithm or "import",
    }
    return {name: value[:TEXT] for name, value in tags.items() if value}


def aliases(policies: Iterable[PolicyVersion], route: Route | None) -> dict[str, int | None]:
    """The policy version behind each alias of a role's model; None: no policy is.

    Production is the one that serves; staging the canary, else the newest that waits for its gates.
    """
    waiting = [policy.version for policy in policies if policy.stage == PolicyStage.REGISTERED]
    canary = route.canary.policy.version if route is not None and route.canary is not None else None
    return {
        PRODUCTION: route.stable.version if route is not None and route.stable is not None else None,
        STAGING: canary if canary is not None else max(waiting, default=None),
    }


def _flat(values: Mapping[str, object], before: str = "") -> Iterator[tuple[str, str]]:
    """Nested hyperparameters by dotted names."""
    for name, value in values.items():
        if isinstance(value, dict):
            nested: JsonObject = value
            yield from _flat(nested, f"{before}{name}.")
        else:
            yield f"{before}{name}", value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
