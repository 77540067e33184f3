"""Two policies on the same tasks: the judgements that an evaluator printed, and the paired difference of scores.

The lower confidence bound of the difference is that of Bonett & Price (2012, Adjusted Wald confidence interval for a
difference of binomial proportions based on paired data): one pair is added in which the candidate wins by 1 and one in
which it loses by 1, then the normal bound of a mean of N + 2 paired differences is taken. For successes and failures it
is exactly theirs; for scores in between it is the same mean and standard deviation. The two added pairs keep the bound
honest when few tasks differ, or none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import msgspec

from ratchet.bus.message import JsonObject

USUALLY = 0.5
"""An equal policy that passes less often than this was given too few tasks."""


class _Line(msgspec.Struct, frozen=True):
    """`{"task": str, "success": bool, "score": float}`; the last one is optional."""

    task: str
    success: bool
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """One policy's results on its tasks."""

    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """By task, 0..1; the mean of its tries when the policy played it more than once."""
    tries: int = 0
    successes: int = 0
    malformed: int = 0
    """Lines that were no result."""
    calls: int = 0
    """Tool calls, as far as graders count them."""
    valid_calls: int = 0
    refused: frozenset[str] = frozenset()
    """Tasks whose request the policy's server refused; they are scored 0."""
    seconds: float = 0.0
    """That playing took; 0 where it is not known."""


def read_results(lines: Iterable[str]) -> Played:
    """One JSON line per try. Empty lines are skipped; every other line that cannot be read is malformed."""
    totals: dict[str, tuple[float, int]] = {}
    successes = malformed = 0
    for text in lines:
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=_Line)
        except (msgspec.DecodeError, RecursionError):
            malformed += 1
            continue
        score = float(line.success) if line.score is None else line.score
        if not (line.task and 0 <= score <= 1):
            malformed += 1
            continue
        total, tries = totals.get(line.task, (0.0, 0))
        totals[line.task] = (total + score, tries + 1)
        successes += line.success
    scores = {task: total / tries for task, (total, tries) in totals.items()}
    played = sum(tries for _, tries in totals.values())
    return Played(scores, played, successes, malformed)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidate minus stable over `tasks` paired tasks."""

    tasks: int
    difference: float
    lower_bound: float
    standard_error: float
    confidence: float
    margin: float

    @property
    def upper_bound(self) -> float:
        return self.lower_bound + 2 * NormalDist().inv_cdf(self.confidence) * self.standard_error

    @property
    def passed(self) -> bool:
        return self.lower_bound >= -self.margin

    @property
    def p_worse(self) -> float:
        """How probable a difference as low as this is for a policy that is no worse (one-sided)."""
        return NormalDist().cdf(self.lower_bound / self.standard_error + NormalDist().inv_cdf(self.confidence))

    @property
    def pass_probability_if_equal(self) -> float:
        """How often a policy equal to stable would pass, at the spread that was observed."""
        return NormalDist().cdf(self.margin / self.standard_error - NormalDist().inv_cdf(self.confidence))

    @property
    def too_few_tasks(self) -> bool:
        return self.pass_probability_if_equal < USUALLY

    def figures(self) -> JsonObject:
        """For events and operators."""
        figures: JsonObject = {
            "tasks": self.tasks,
            "difference": round(self.difference, 4),
            "lower_bound": round(self.lower_bound, 4),
            "confidence": self.confidence,
            "margin": self.margin,
            "standard_error": round(self.standard_error, 4),
            "equal_policy_passes": round(self.pass_probability_if_equal, 3),
            "regression": not self.passed,
        }
        if self.too_few_tasks:
            often = f"would pass only {self.pass_probability_if_equal:.0%} of the time"
            figures["note"] = f"{self.tasks} tasks are few: a policy equal to stable {often}"
        return figures

    def sentence(self) -> str:
        """The difference and its bound in one line."""
        bound = f"difference {self.difference:+.3f}, lower bound {self.lower_bound:+.3f}"
        return f"{bound} against -{self.margin:g} on {self.tasks} tasks"


def compare(differences: Sequence[float], confidence: float, margin: float) -> Comparison:
    """Lower bound (one-sided, `confidence`) of the mean of `differences`, each in -1..1."""
    observed = len(differences)
    count = observed + 2
    mean = math.fsum(differences) / count
    spread = (math.fsum(d * d for d in differences) + 2) / count - mean * mean
    error = math.sqrt(spread / count)
    return Comparison(
        tasks=observed,
        difference=math.fsum(differences) / observed if observed else 0.0,
        lower_bound=mean - NormalDist().inv_cdf(confidence) * error,
        standard_error=error,
        confidence=confidence,
        margin=margin,
    )


def paired_differences(candidate: Played, stable: Played) -> list[float]:
    """Per task that stable played: candidate minus stable, a task that the candidate did not finish scored 0.

    A task that is refused for both is in no comparison: its request is at fault, or what serves the two.
    """
    compared = sorted(stable.scores.keys() - (candidate.refused & stable.refused))
    return [candidate.scores.get(task, 0.0) - stable.scores[task] for task in compared]
