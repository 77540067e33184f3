"""The rules of a rollout: the settings as the domain uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ratchet.canary_deployer.domain.e_processes import MIN_WEIGHT

FAILURE, MISSED, REWARD, LATENCY = "failure", "missing", "reward", "latency"
METRICS = (FAILURE, MISSED, REWARD, LATENCY)
"""Rollback compares known failures, missing outcomes, lost reward and relative latency."""
PROMOTION_METRICS = (FAILURE, REWARD, LATENCY)
"""Metrics that promotion may compare; a missing outcome counts as a failure there, and as a reward of 0."""
COST, OVER_CAP = "cost", "over_cap"
COSTS = (COST, OVER_CAP)
"""What a trajectory costs, cut at a cap that is frozen at the start, and whether it costs more than that: compared, by
rollback and by promotion, where stable's history is priced (`estimates.py`)."""
CHOICES = (*METRICS, COST)
COMPLAINTS = "complaints"
"""Trajectories of which their users say that they were bad: rolled back by a test of its own (`complaints.py`)."""
SHARES: Mapping[str, float] = {FAILURE: 4, MISSED: 2, REWARD: 3, LATENCY: 1, COST: 1, OVER_CAP: 1}
"""How the rollback test weighs its metrics, before those that a rollout compares are scaled to a sum of 1."""
COST_MARGIN, COMPLAINT_MARGIN = 0.25, 0.5
"""How much dearer, and how many more complaints, still count as not worse, relative to stable's."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The probability with which each test may roll back a canary that is not worse.

    Their sum is the guarantee: a union bound.
    """

    evidence: float = 0.025
    """The e-process over all metrics."""
    complaints: float = 0.005
    """The e-process over complaints."""
    first_call: float = 0.01
    """The e-process over first calls."""
    run: float = 0.005
    """Canary trajectories that fail one after the other."""
    safety: float = 0.005
    """The e-process over safety violations."""

    @property
    def total(self) -> float:
        """At most this share of canaries that are not worse is rolled back."""
        return self.evidence + self.complaints + self.first_call + self.run + self.safety


def threshold(share: float) -> float:
    """The e-value that uses up a share (Ville's inequality)."""
    return 1 / share


FULL_BUDGET = Budget()
HORIZON_MIN_S, HORIZON_MAX_S = 600.0, 21600.0
"""Bounds of a horizon that is taken from history: the shortest leaves room for reports that are held up, the longest is
how long a pending outcome may hold back the promotion."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a canary: its share of traffic, and the conditions for leaving it."""

    weight: float
    min_s: float
    min_trajectories: int
    """Canary trajectories whose outcome has settled."""


@dataclass(frozen=True, slots=True)
class Rules:
    """They stay the same during a rollout."""

    stages: tuple[Stage, ...]
    """Their last one ends with the promotion decision."""
    hold_back_weight: float = 0.05
    """Share of traffic that stays with the old policy while the promoted one soaks; 0 promotes at once."""
    soak_s: float = 3600.0
    deadline_s: float = 7 * 86400.0
    """A rollout that is undecided for this long is held for an operator; every resume grants this long again."""
    horizon_s: float = 1800.0
    """When an outcome that has not come is missing. A rollout freezes its own at its start (`estimates.py`)."""
    horizon_min_s: float = HORIZON_MIN_S
    horizon_max_s: float = HORIZON_MAX_S
    margin: float = 0.05
    latency_margin: float = 0.1
    """That of relative latency x/(x + typical), where .5 is typical and .6 half as slow again."""
    metrics: tuple[str, ...] = METRICS
    promotion_metrics: tuple[str, ...] = (FAILURE, REWARD)
    """What must each be shown to be not worse than the margin: an average, as the rollback's, would promote a fast and
    wrong policy on its latency."""
    budget: Budget = FULL_BUDGET
    promotion_threshold: float = 20.0
    """E-value that promotion needs: at most 1/this false promotions."""
    caution_threshold: float = 4.0
    """No stage advances while the rollback e-value is at least this."""
    min_coverage: float = 0.8
    """Share of settled outcomes that must be known on both arms, before a stage is left and before promotion."""
    ratio_error: float = 0.005
    """Probability with which the sample-ratio test may hold a rollout whose arms do get their shares."""
    outcomes: bool = True
    """False: the role has no outcomes; the tests compare reward, latency and first calls, and an operator promotes."""
    compares_cost: bool = True
    """Whether cost is a metric of rollouts whose stable policy has enough priced trajectories."""
    cost_cap_usd: float | None = None
    """The cost that is a harm of 1; None: cost is not compared. A rollout freezes it (`estimates.py`)."""
    roles_without_outcomes: frozenset[str] = frozenset()
    roles_that_lose_users: frozenset[str] = frozenset()
    """Roles whose users leave after a failure: only the first trajectory of each subject counts."""
    first_alone: bool = False
    roles_kept_small: frozenset[str] = frozenset()
    """Roles whose suspended canary keeps the first stage's weight."""
    kept_small: bool = False
    roles_rolled_back_on_safety: frozenset[str] = frozenset()
    """Roles whose canary is rolled back by its first safety violation: a trip wire, outside the budget."""
    safety_rolls_back: bool = False
    mean_share: float = 0.0
    """Share of the error that the mean of a subject's first trajectories has (`subjects.py`). A rollout freezes it."""
    far_margin: float = 0.4
    """A canary that is kept small loses the rest of its traffic when it fails so much more often, ..."""
    far_threshold: float = 200.0
    """... by this e-value: of equal policies whose sessions differ by .3, 0 of 1,800 reached it."""
    longest_days: float = 14.0
    """An operator decides before a rollout that is expected to take longer."""
    replay_weight: float = 0.25
    """The largest first weight after a passed shadow replay: traffic begins at the last stage that is not above it."""
    lead_s: float = 2.0
    """A new weight holds from this long after the decision, when every gateway has read it: they look every 2 s."""
    keep_seen: int = 20_000
    """How many settled trajectories a rollout remembers, so that none counts twice and late feedback finds its arm."""

    def for_role(self, role: str) -> Rules:
        """The rules of one role."""
        rules = replace(
            self,
            first_alone=role in self.roles_that_lose_users,
            kept_small=role in self.roles_kept_small,
            safety_rolls_back=role in self.roles_rolled_back_on_safety,
        )
        if role not in self.roles_without_outcomes:
            return rules
        return replace(rules, outcomes=False, metrics=(REWARD, LATENCY), promotion_metrics=(REWARD, LATENCY))

    @property
    def suspended_weight(self) -> float:
        """The canary's share of traffic while it is suspended."""
        return self.stages[0].weight if self.kept_small else 0.0

    def with_cost(self, cap_usd: float) -> Rules:
        """The rules with cost as a metric. The others keep their thresholds of promotion, and less of a rollback's."""
        metrics, promoting = (*self.metrics, *COSTS), (*self.promotion_metrics, *COSTS)
        return replace(self, cost_cap_usd=cap_usd, metrics=metrics, promotion_metrics=promoting)

    @property
    def shares(self) -> dict[str, float]:
        """Of the error of the rollback's e-process, by metric; they sum to 1."""
        total = sum(SHARES[name] for name in self.metrics)
        return {name: SHARES[name] / total for name in self.metrics}

    def margin_of(self, metric: str) -> float:
        """How much more harm still counts as not worse; of cost relative to stable's."""
        return {LATENCY: self.latency_margin, COST: COST_MARGIN}.get(metric, self.margin)

    def tested_margin(self, metric: str) -> float:
        """What the tests take off the difference of harms: cost's margin is folded into its harm (`cohorts.py`)."""
        return 0.0 if metric == COST else self.margin_of(metric)

    @property
    def ceiling(self) -> float:
        """Where promotion's wealth is cut (`e_processes.py`)."""
        return 5 * self.promotion_threshold

    @property
    def patience_s(self) -> float:
        """How long after its start a trajectory waits for its outcome while the reward computer is away: twice the
        horizon, so that at most twice as many trajectories are open as without an outage."""
        return 2 * self.horizon_s

    @property
    def soaks(self) -> bool:
        """Whether the tests compare a promoted policy with a hold-back before the old one goes."""
        return self.soak_s > 0 and self.hold_back_weight >= MIN_WEIGHT

    @property
    def full_weight(self) -> float:
        """The canary's share during the soak."""
        return 1 - self.hold_back_weight
