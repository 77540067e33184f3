"""The test over complaints: whether users say more often of the canary's trajectories that they were bad.

A trajectory is complained of when its user gives a bad opinion within the horizon after its start; no opinion is no
complaint. By trajectories that are *rated* one would compare those who speak: a canary that annoys its users into
silence would look better. It counts on the arm that was drawn, whichever policy answered in the end (intention to
treat), and by subject as all else does. What raters say is in no test: who chooses what to rate may choose by the arm.

Complaints are rare, so the claim is relative, as with cost: the canary is worse when it has more than (1 + r) times as
many, r = .5, which is folded into the harm (`cohorts.py`). The factors are those of conditional thinning with d = 0
(`e_processes.py`). For a folded harm the stake of a risk ratio theta is about the best one against a canary that has
theta + r times as many complaints as stable.

**Why a process of its own**, with a share of the budget that is taken from that of the other metrics. Outcomes are
mostly known within seconds or minutes, and then a block is folded for good; that no user complains is known when the
horizon is over. In one mixture every block, with all its harms, would stay open for so long. This process closes blocks
by itself, later. Its error adds to that of the others (a union bound), as that of first calls does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ratchet.canary_deployer.domain.cohorts import Cohort, mean_rollback_gain, rollback_gain
from ratchet.canary_deployer.domain.e_processes import (
    FIRST_CAPITAL,
    RISK_RATIOS,
    Floats,
    Products,
    grown_capital,
    largest_prefix,
    prefix_values,
    thinning_factors,
)
from ratchet.canary_deployer.domain.evidence import Evidence
from ratchet.canary_deployer.domain.rules import COMPLAINTS


@dataclass(frozen=True, slots=True)
class ComplaintState:
    """The state of the test after its closed blocks."""

    block: int
    """How many are closed."""
    capital: Floats
    """Per stake, before the next block."""
    peaks: Floats
    """Largest e-value of any prefix, [..., 2]: by subject, by trajectory."""


@dataclass(frozen=True, slots=True)
class ComplaintEvidence:
    """The e-values at one moment, [...]."""

    by_subject: Floats
    by_trajectory: Floats
    recent: Floats
    """By trajectory, of a prefix that reaches into the open blocks."""

    def added_to(self, evidence: Evidence, place: tuple[int, ...] = ()) -> Evidence:
        """The evidence of one rollout with that of its complaints; its place is `()` when there is only one."""
        return msgspec.structs.replace(
            evidence,
            rollback=evidence.rollback | {COMPLAINTS: float(self.by_subject[place])},
            suspension=evidence.suspension | {COMPLAINTS: float(self.by_trajectory[place])},
            caution=max(evidence.caution, float(self.recent[place])),
        )


class ComplaintTest:
    """The test of one rollout, or of many at once, on arrays as in `evidence.py`."""

    def __init__(self, shares: Mapping[int, float]) -> None:
        """`shares`: of each k in the test by subject."""
        self._shares = shares
        each = np.repeat([*shares.values(), 1.0], len(RISK_RATIOS))[:, None] / len(RISK_RATIOS)
        by_subject = np.arange(len(each)) < len(shares) * len(RISK_RATIOS)
        self._mixtures = each * np.stack([by_subject, ~by_subject], axis=-1)
        """[stakes, 2]: how much of the capital by subject, and by trajectory, is on each stake. Columns sum to 1."""

    def initial_state(self, *shape: int) -> ComplaintState:
        """Before the first start, in rollouts of this shape."""
        return ComplaintState(0, np.full((*shape, len(self._mixtures)), FIRST_CAPITAL), np.ones((*shape, 2)))

    def products(self, cohort: Cohort) -> Products:
        """Of a cohort, pending complaints at their bounds."""
        singly = thinning_factors(cohort.weight, rollback_gain(cohort, COMPLAINTS, None, 0.0), 0.0)
        parts = list[Floats]()
        for k in self._shares:
            gain = (rollback_gain if k == 1 else mean_rollback_gain)(cohort, COMPLAINTS, None, 0.0)
            of_units = singly if k == 1 else thinning_factors(cohort.weight, gain, 0.0)
            parts.append(np.where(cohort.opens[..., None], of_units, 1.0))
        return Products.of([*parts, singly])

    def close_block(self, state: ComplaintState, products: Products) -> ComplaintState:
        """The state after a full block of which nothing is pending."""
        values = prefix_values(products.running, state.capital, self._mixtures, state.block)
        capital = grown_capital(state.capital, products.running[..., -1, :], state.block)
        return ComplaintState(state.block + 1, capital, np.maximum(state.peaks, values.max(axis=-2)))

    def evaluate(self, state: ComplaintState, products: Sequence[Products]) -> ComplaintEvidence:
        """The closed blocks and the open ones behind them, as they are now."""
        largest = largest_prefix(state.capital, state.block, self._mixtures, products)
        peaks = np.maximum(state.peaks, largest)
        return ComplaintEvidence(peaks[..., 0], peaks[..., 1], largest[..., 1])


class StoredComplaints(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `ComplaintState` in the record."""

    block: int = 0
    capital: list[float] = []
    """Empty: before the first start."""
    peaks: list[float] = []

    @classmethod
    def of_state(cls, state: ComplaintState) -> StoredComplaints:
        """The state of one rollout."""
        return cls(state.block, state.capital.tolist(), state.peaks.tolist())

    def state(self) -> ComplaintState:
        """The state that was stored."""
        return ComplaintState(self.block, np.array(self.capital), np.array(self.peaks))
