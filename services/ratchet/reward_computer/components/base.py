"""What a reward component is: a function from the evidence about a trajectory to an assessment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ratchet.core.contract import Feedback, JsonObject, Trajectory
from ratchet.core.contract.reward import JUDGEMENT, JudgeRef
from ratchet.core.plugins import callable_with
from ratchet.reward_computer.domain.normalization import NOTHING_YET, Stats


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a component may look at."""

    trajectory: Trajectory
    feedback: Sequence[Feedback] = ()
    history: Stats = NOTHING_YET
    """Model calls per trajectory of the same task type, of the trajectories before this one."""
    judge: str | None = None
    """Digest of the role's judge: what others judged says nothing."""
    reward_model: str | None = None
    """That of its reward model."""

    @property
    def completion(self) -> float | None:
        """How far the task was done, 0..1 (success 1, partial from one half, else 0); None without an outcome."""
        outcome = self.trajectory.outcome
        if outcome is None:
            return None
        if outcome.status == "success":
            return 1.0
        if outcome.status != "partial":
            return 0.0
        return 0.5 + 0.5 * min(100.0, max(0.0, outcome.completion_percentage or 0.0)) / 100.0

    @property
    def trust(self) -> float:
        """Confidence in what the trajectory says of itself: full for an outcome that was verified, else one half."""
        outcome = self.trajectory.outcome
        return 1.0 if outcome is not None and outcome.verified_by else 0.5


@dataclass(frozen=True, slots=True)
class Assessment:
    """What one component says."""

    score: float
    """0..1, raw."""
    confidence: float
    """0..1."""
    reasoning: str
    source: str = "automated"
    """`automated`, `human`, `linter`, `test_results` or `benchmark`."""
    raw_data: JsonObject = field(default_factory=dict[str, object])
    digests: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the models that were asked, by what they are, such as `judge`: the reward names them."""

    def __post_init__(self) -> None:
        """Refuse scores that would take the total out of its range."""
        for name, value in (("score", self.score), ("confidence", self.confidence)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} {value} is not in 0..1")


TRUST_IN_MODELS = 0.5
"""Confidence in one judge or reward model, or in a parent's reward: that of an outcome which nothing has verified."""

Component = Callable[[Evidence], Assessment | None]
"""None means: says nothing about this trajectory."""


def fitting_component(name: str, candidate: object) -> Component:
    """A component of another package, whose answers are checked. Raises `Misfit` when it is none."""
    component: Callable[[Evidence], object] = callable_with(1)(name, candidate)

    def checked(evidence: Evidence) -> Assessment | None:
        answer = component(evidence)
        if answer is None or isinstance(answer, Assessment):
            return answer
        raise TypeError(f"reward component {name} returned a {type(answer).__name__}, not an Assessment or None")

    return checked


def labelled(evidence: Evidence, name: str) -> Assessment | None:
    """The score that the agent's host gave under `labels.scores.<name>`; nothing when it is not a number in 0..1."""
    scores: object = (evidence.trajectory.labels or {}).get("scores")
    score: object = scores.get(name) if isinstance(scores, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - free-form labels
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        return None
    return Assessment(float(score), evidence.trust, f"label scores.{name}", raw_data={"label": score})


@dataclass(frozen=True, slots=True)
class Judged:
    """The newest judgement of one model."""

    score: float
    by: JudgeRef
    words: str | None
    feedback_id: str


def judged_by(feedback: Sequence[Feedback], digest: str | None) -> Judged | None:
    """What the model of this digest said last; those of other models, or of another version of it, do not count."""
    by_time = sorted(feedback, key=lambda opinion: (opinion.at, opinion.feedback_id))
    for opinion in reversed(by_time):
        score, by = opinion.value, opinion.judge
        if opinion.kind != JUDGEMENT or by is None or by.digest != digest:
            continue
        if isinstance(score, float | int) and not isinstance(score, bool) and 0.0 <= score <= 1.0:
            return Judged(score, by, opinion.reasoning, opinion.feedback_id)
    return None
