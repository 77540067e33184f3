"""The reward function: components, weighed for the role, become a reward; feedback makes its next revision.

The total is the weighted mean of the components that apply (weights are renormalised over them), so it stays in 0..1.
Where none applies the total is 0 at confidence 0: nothing is known, and nothing should be learnt from it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

import msgspec

from ratchet.core.contract import DEFAULT_ROLE, Feedback, Reward, Trajectory, named_id
from ratchet.core.contract.reward import (
    FLAG,
    JUDGEMENT,
    PARENT_REWARD,
    UPDATE,
    RewardComponent,
    RewardFunction,
    RewardMetadata,
    TurnReward,
)
from ratchet.core.contract.trajectory import TrajectoryTurn
from ratchet.core.judging.calibration import UNCALIBRATED, Calibration
from ratchet.core.judging.profile import JudgeProfile
from ratchet.core.rules.effort import effort_of
from ratchet.reward_computer.components import COMPONENTS, Assessment, Component, Evidence
from ratchet.reward_computer.components.user_feedback import scoring
from ratchet.reward_computer.domain.normalization import (
    NO_PAST,
    TOTAL,
    ScoreWindows,
    Stats,
    normalized,
    of_total,
    parameters,
)

DEFAULT_WEIGHTS: Mapping[str, float] = {
    "task_completion": 0.40,
    "efficiency": 0.20,
    "code_quality": 0.15,
    "user_feedback": 0.25,
}
WATCHED = ("safety",)
"""Components that are computed wherever they apply, also without a weight in the role: rollouts watch them."""
RULES = "1"
"""Of the built-in components and of this file: raise it with every change that makes another reward of the same
evidence."""
JUDGE = "judge"
"""The component that has weight only where its judge is calibrated."""
REWARD_MODEL = "reward_model"
"""The component of a model that learnt from preferences."""
PARENT = "parent"
"""The component of the parent's reward."""
FURTHER = frozenset({UPDATE, JUDGEMENT, FLAG, PARENT_REWARD})
"""Kinds of feedback that are no opinions, and revise a reward where they change a component."""
_SILENT = RewardComponent(score=0.0, weight=0.0, source="automated", applicable=False)
_OPINION, _HISTORY = "user_feedback", "efficiency"


@dataclass(frozen=True)
class RewardSpec:
    """Which function rewards are computed with. Other weights or components need another `function`."""

    function: RewardFunction
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """Role -> component -> weight; `default` for roles without an entry, and DEFAULT_WEIGHTS without that."""
    components: Mapping[str, Component] = field(default_factory=lambda: COMPONENTS)
    method: str = "z-score"
    """`z-score`, `min-max` or `none`."""
    methods: Mapping[str, str] = field(default_factory=dict[str, str])
    """Role -> method, where it has one of its own."""
    window: int = 1000
    dense: bool = True
    judges: Mapping[str, JudgeProfile] = field(default_factory=dict[str, JudgeProfile])
    """Role -> its judge; `default` for all others."""
    calibrations: Mapping[str, Calibration] = field(default_factory=dict[str, Calibration])
    """Digest of a judge -> how far people agreed with it when the function was accepted."""
    reward_models: Mapping[str, str] = field(default_factory=dict[str, str])
    """Role -> sha256 of its reward model's manifest; `default` for all others."""

    @cached_property
    def digest(self) -> str:
        """sha256 of all that a reward depends on besides the evidence."""
        parts = (
            RULES,
            self.function,
            self.weights or DEFAULT_WEIGHTS,
            (self.method, self.methods, self.window, self.dense),
            {role: judge.digest for role, judge in self.judges.items()},
            self.calibrations,
            *([self.reward_models] if self.reward_models else []),
        )
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()

    def weights_of(self, role: str) -> Mapping[str, float]:
        """The weights of a role's components. A judge that people have not agreed with has none."""
        weights, judge = self._asked(role), self.judge_of(role)
        calibrated = judge is not None and self.calibrations.get(judge.digest, UNCALIBRATED).holds
        return weights if JUDGE not in weights or calibrated else {**weights, JUDGE: 0.0}

    def method_of(self, role: str) -> str:
        """How scores of a role are normalised."""
        return self.methods.get(role) or self.methods.get(DEFAULT_ROLE) or self.method

    def judge_of(self, role: str) -> JudgeProfile | None:
        """Who judges a role's trajectories; None where nothing counts what a judge says."""
        return (self.judges.get(role) or self.judges.get(DEFAULT_ROLE)) if JUDGE in self._asked(role) else None

    def reward_model_of(self, role: str) -> str | None:
        """The digest of a role's reward model; None where nothing counts what it says."""
        if REWARD_MODEL not in self._asked(role):
            return None
        return self.reward_models.get(role) or self.reward_models.get(DEFAULT_ROLE)

    @cached_property
    def asks_judges(self) -> bool:
        """Whether some role has a judge that counts."""
        return any(map(self.judge_of, {DEFAULT_ROLE, *self.weights, *self.judges}))

    @cached_property
    def asks_reward_models(self) -> bool:
        """Whether some role has a reward model that counts."""
        return any(map(self.reward_model_of, {DEFAULT_ROLE, *self.weights, *self.reward_models}))

    def shares(self, role: str) -> bool:
        """Whether trajectories of a role share the reward of their parent."""
        return PARENT in self._asked(role)

    @cached_property
    def shares_rewards(self) -> bool:
        """Whether those of some role do."""
        return any(map(self.shares, {DEFAULT_ROLE, *self.weights}))

    def _asked(self, role: str) -> Mapping[str, float]:
        """The weights that the settings give a role's components."""
        return self.weights.get(role) or self.weights.get(DEFAULT_ROLE) or DEFAULT_WEIGHTS


@dataclass(frozen=True, slots=True)
class Circumstances:
    """When a reward is computed, as which revision, against which past, and after which reward."""

    at: datetime
    revision: int = 0
    windows: ScoreWindows = NO_PAST
    previous: Reward | None = None
    reported_at: datetime | None = None
    """When a stream stored the report of the trajectory; None for later revisions, which have equal content in every
    process."""
    scored: Collection[str] = ()
    """Components that applied in some revision before it."""


def reward_of(spec: RewardSpec, evidence: Evidence, when: Circumstances) -> Reward:
    """The reward of a trajectory. Its id follows from trajectory, function and revision."""
    trajectory, function = evidence.trajectory, spec.function
    weights, judge = spec.weights_of(trajectory.role), spec.judge_of(trajectory.role)
    model = spec.reward_model_of(trajectory.role)
    evidence = replace(evidence, judge=judge.digest if judge else None, reward_model=model)
    watched = [name for name in WATCHED if name in spec.components and name not in weights]
    answers = {name: spec.components[name](evidence) for name in (*weights, *watched)}
    assessments = {name: assessment for name, assessment in answers.items() if assessment is not None}
    shares = effective_weights(weights, assessments)
    total = _mean({name: assessment.score for name, assessment in assessments.items()}, shares)
    digests = {"function": spec.digest}
    for assessment in assessments.values():
        digests |= assessment.digests
    return Reward(
        reward_id=reward_id(trajectory, function, when.revision),
        trajectory_id=trajectory.trajectory_id,
        session_id=trajectory.session_id,
        timestamp=when.at,
        reward_components={
            name: _part(spec, trajectory.role, name, assessments[name], shares[name], when)
            if name in assessments
            else _SILENT
            for name in dict.fromkeys((*weights, *assessments))
        },
        total_reward=total,
        reward_type="dense" if spec.dense else "sparse",
        metadata=RewardMetadata(
            evaluator=f"reward_computer {named(function)}",
            evaluation_method=_method([assessments[name] for name, share in shares.items() if share > 0]),
            confidence=_mean({name: assessment.confidence for name, assessment in assessments.items()}, shares),
            digests=digests,
        ),
        normalization=of_total(when.windows.stats(TOTAL, spec.window), spec.method_of(trajectory.role)),
        role=trajectory.role,
        revision=when.revision,
        reported_at=when.reported_at,
        reward_function=function,
        turn_rewards=turn_rewards(trajectory.turns, total) if spec.dense else None,
        effort=effort_of(trajectory),
        first_scored=sorted(set(assessments) - set(when.scored)) if when.revision else None,
        trace=trajectory.trace,
    )


def turn_rewards(turns: Sequence[TrajectoryTurn], total: float) -> list[TurnReward]:
    """Dense rewards that sum to `total` (to rounding).

    Where the environment gave rewards of its own (`turns[].reward`) they stand, and the last turn takes what is missing
    to the total, as a final reward does. Else the turns that worked (`result.success`) share the total equally; all
    turns do when none worked.
    """
    if any(turn.reward is not None for turn in turns):
        shares = [turn.reward or 0.0 for turn in turns]
    else:
        worked = [turn.result.success for turn in turns]
        paid = worked if any(worked) else [True] * len(turns)
        shares = [total / sum(paid) if is_paid else 0.0 for is_paid in paid]
    shares[-1] += total - math.fsum(shares)
    return [TurnReward(turn_id=turn.turn_id, reward=share) for turn, share in zip(turns, shares, strict=True)]


def named(function: RewardFunction) -> str:
    """As people write it."""
    return f"{function.name}@{function.version}"


def reward_id(trajectory: Trajectory, function: RewardFunction, revision: int) -> str:
    """The same trajectory in the same role, function and revision always have the same id."""
    return named_id("reward", trajectory.role, trajectory.trajectory_id, function.name, function.version, revision)


def effective_weights(weights: Mapping[str, float], assessments: Mapping[str, Assessment]) -> dict[str, float]:
    """The weights of the components that apply, renormalised to sum to 1 (all 0 where none of them has weight)."""
    mass = math.fsum(weights.get(name, 0.0) for name in assessments)
    return {name: weights.get(name, 0.0) / mass if mass > 0 else 0.0 for name in assessments}


def revision_of(feedback: Sequence[Feedback]) -> int:
    """A revision is numbered by how many opinions and further pieces of feedback it takes into account.

    Every worker reads a set of stored feedback that only grows, so two sets of one size are the same set: equal
    revisions have equal content, whichever process computes them, however often.
    """
    return len(scoring(feedback)) + len({opinion.feedback_id for opinion in feedback if opinion.kind in FURTHER})


def has_new_opinions(spec: RewardSpec, feedback: Sequence[Feedback], last: Reward) -> bool:
    """Whether some opinion is not in `last` yet."""
    if _OPINION not in spec.weights_of(last.role):
        return False
    part = last.reward_components.get(_OPINION)
    known = set((part.raw_data or {}).get("feedback_ids", ())) if part else set[str]()
    return not {opinion.feedback_id for opinion in scoring(feedback)} <= known


def has_equal_scores(reward: Reward, last: Reward) -> bool:
    """Whether the scores of two rewards of a trajectory are equal, component by component."""
    return reward.reward_function == last.reward_function and _scores(reward) == _scores(last)


def scored_in(rewards: Sequence[Reward], function: RewardFunction) -> set[str]:
    """Components that apply in some of these revisions under a function."""
    own = (reward for reward in rewards if reward.reward_function == function)
    return {name for reward in own for name in _scores(reward)}


def _scores(reward: Reward) -> dict[str, float]:
    return {name: part.score for name, part in reward.reward_components.items() if part.applicable}


def newest(rewards: Sequence[Reward], function: RewardFunction) -> Reward | None:
    """The reward that a revision follows: the last one of this function, else the last one of any."""
    return max(
        rewards,
        key=lambda reward: (reward.reward_function == function, reward.revision, reward.timestamp),
        default=None,
    )


def recorded_history(last: Reward) -> Stats | None:
    """The baseline that a reward was computed against: later revisions use the same. None where it needed none."""
    part = last.reward_components.get(_HISTORY)
    raw = (part.raw_data or {}) if part else {}
    if "count" not in raw:
        return None
    return Stats(count=int(raw["count"]), mean=float(raw["mean"]), std=float(raw["std"]))


def _part(
    spec: RewardSpec, role: str, name: str, assessment: Assessment, weight: float, when: Circumstances
) -> RewardComponent:
    """One component of a reward. A score that the previous revision has too keeps the normalisation of then."""
    before = when.previous.reward_components.get(name) if when.previous else None
    same_function = when.previous is not None and when.previous.reward_function == spec.function
    if before is None or not same_function or not before.applicable or before.score != assessment.score:
        before = None
    past, method = when.windows.stats(name, spec.window), spec.method_of(role)
    return RewardComponent(
        score=assessment.score,
        weight=weight,
        source=assessment.source,
        reasoning=assessment.reasoning,
        raw_data=assessment.raw_data,
        normalized=before.normalized if before else normalized(assessment.score, past, method),
        parameters=before.parameters if before else parameters(past, method),
    )


def _method(weighted: Sequence[Assessment]) -> str:
    """How a reward was evaluated, by the components that have weight."""
    kinds = {
        "human" if assessment.source == "human" else "model-based" if assessment.digests else "automated"
        for assessment in weighted
    }
    return "hybrid" if len(kinds) > 1 else next(iter(kinds), "automated")


def _mean(values: Mapping[str, float], shares: Mapping[str, float]) -> float:
    return min(1.0, max(0.0, math.fsum(values[name] * shares[name] for name in values)))
