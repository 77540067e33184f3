"""What the demo shows at one moment: traffic, the running job, the policies, the rollout. Plain values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ratchet.contract.http.rollouts import RolloutOut
from ratchet.contract.state import Job, PolicyVersion
from ratchet.demo.exams import Exam
from ratchet.demo.intervals import Proportion

HELDOUT_GATE = "heldout_tasks"
RECENT = 100
"""Trajectories behind the live success rate."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the warehouse holds of the role's live traffic."""

    calls: int = 0
    trajectories: int = 0
    rewards: int = 0
    recent: Proportion | None = None
    """Successes among the newest trajectories."""
    mean_reward: float | None = None
    """Of the same trajectories."""


@dataclass(frozen=True, slots=True)
class VersionTraffic:
    """Live trajectories of one policy version and what they were worth."""

    trajectories: int
    mean_reward: float | None


@dataclass(frozen=True, slots=True)
class RolloutPicture:
    """The newest rollout, as the deployer tells it."""

    version: int
    state: str
    weight: float
    canary: int
    """Finished trajectories of the canary."""
    stable: int
    rollback_e: float
    promotion_e: float
    threshold: float
    gates: Mapping[str, str]
    """Outcome by gate, in the order in which they were asked."""
    reason: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is shown."""

    traffic: Traffic = Traffic()
    jobs: Sequence[Job] = ()
    """Oldest first."""
    policies: Sequence[PolicyVersion] = ()
    """By version."""
    by_version: Mapping[int, VersionTraffic] = field(default_factory=dict[int, VersionTraffic])
    exams: Mapping[int, Exam] = field(default_factory=dict[int, Exam])
    """By version, of those that played the held-out tickets."""
    stable: int | None = None
    rollout: RolloutPicture | None = None

    @property
    def running_job(self) -> Job | None:
        """The job that waits or runs, if there is one."""
        return next((job for job in reversed(self.jobs) if job.finished_at is None), None)


def rollout_picture(rollout: RolloutOut) -> RolloutPicture:
    """As much of a rollout as is shown."""
    return RolloutPicture(
        version=rollout.candidate.version,
        state=rollout.state,
        weight=rollout.weight,
        canary=rollout.arms.canary.trajectories,
        stable=rollout.arms.stable.trajectories,
        rollback_e=rollout.e_values.get("rollback", {}).get("combined", 1.0),
        promotion_e=rollout.e_values.get("promotion", {}).get("combined", 1.0),
        threshold=rollout.thresholds["rollback"],
        gates={gate.gate: gate.outcome for gate in rollout.gates},
        reason=rollout.reason,
    )
