"""By what rules a rollout is run and judged: the settings as the domain sees them."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.canary_deployer.domain.e_processes import MIN_WEIGHT

FAILURE, REWARD, LATENCY = "failure", "reward", "latency"
METRICS = (FAILURE, REWARD, LATENCY)


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a canary: its share of traffic and what it takes to leave it."""

    weight: float
    min_s: float
    min_trajectories: int
    """Finished canary trajectories."""


@dataclass(frozen=True, slots=True)
class TripLimits:
    """When rates alone end a rollout (see `trip_wires`)."""

    error_rate: float = 0.05
    error_min_calls: int = 40
    feedback_ratio: float = 2.0
    feedback_min_ratings: int = 20
    sustained_checks: int = 2


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that stays the same during a rollout."""

    stages: tuple[Stage, ...]
    """Before the promotion decision, which is taken in the last of them."""
    hold_back_weight: float = 0.05
    soak_s: float = 3600.0
    deadline_s: float = 7 * 86400.0
    horizon_s: float = 1800.0
    margin: float = 0.05
    latency_margin: float = 0.1
    metrics: tuple[str, ...] = METRICS
    promotion_metrics: tuple[str, ...] = (FAILURE, REWARD)
    rollback_threshold: float = 20.0
    promotion_threshold: float = 20.0
    caution_threshold: float = 4.0
    trips: TripLimits = TripLimits()
    longest_days: float = 14.0
    """A person is asked before a rollout that is expected to take longer."""
    lead_s: float = 2.0
    """A new weight holds from this long after the decision, when every gateway has read it."""
    keep_seen: int = 2000
    """Finished trajectories that are remembered."""

    def margin_of(self, metric: str) -> float:
        """How much more harm still counts as not worse."""
        return self.latency_margin if metric == LATENCY else self.margin

    @property
    def soaks(self) -> bool:
        """Whether a promoted policy is watched against a hold-back before the old one goes."""
        return self.soak_s > 0 and self.hold_back_weight >= MIN_WEIGHT

    @property
    def full_weight(self) -> float:
        """The canary's share during the soak."""
        return 1 - self.hold_back_weight
