"""Two windows of a role -> what is worse, or otherwise than before, with its evidence.

Associations and detectors form hypotheses, all of which are one family: tested together, and merged where two tell of
the same trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ratchet.analyst.mining import associations, behavior, clusters, drift
from ratchet.analyst.mining.base import KNOWN_BEFORE, Episodes, Finding, Floats, Hypothesis, Mask
from ratchet.analyst.mining.family import borne_out, level_of
from ratchet.analyst.mining.measure import MISSING, Sample, compared, contrast, difference, measured
from ratchet.analyst.mining.stability import REPORTED, stability
from ratchet.analyst.mining.testing import Pools, formed_sign, p_values
from ratchet.core.contract.learning import MEASURES, MOST_EVIDENCE

DETECTORS: tuple[Callable[[Episodes, Episodes, int], list[Hypothesis]], ...] = (
    clusters.hypotheses,
    behavior.hypotheses,
    drift.hypotheses,
)
"""Each forms hypotheses of the forming parts of both windows by a seed. Of two that claim the same the first stands."""
EACH_WINDOW = 0.002
"""What the p-value of either window may be at most, whatever both are together: an incident of one window alone passes
the other window's test that often."""
SAME = 0.5
"""Two findings are one where the trajectories that match both are that share of those that match either."""
REMAINS_Z = 1.96
"""A finding that differs less where a stronger one does not hold says nothing new."""
AFTER_WEIGHT = 0.5
"""What a finding's strength counts if it is known only after the outcome: no plan's effect can be measured by it."""
MOST_TERMS = 12


@dataclass(frozen=True, slots=True)
class Mined:
    findings: tuple[Finding, ...]
    """The strongest first."""
    tested: int
    """Hypotheses of the family."""


@dataclass(frozen=True, slots=True)
class FamilyTests:
    """A family of hypotheses with what its tests say."""

    pools: Pools
    family: list[Hypothesis]
    p_value: Floats
    """Of both windows together (m,)."""
    stability: Callable[[Hypothesis], float]

    @classmethod
    def of(cls, pools: Pools, family: list[Hypothesis], alpha: float, seed: int) -> FamilyTests:
        """Test them."""
        p_value = p_values(pools, family, alpha, seed)
        return cls(pools, family, p_value, lambda hypothesis: stability(pools, hypothesis, seed))


def mine(
    before: Episodes,
    now: Episodes,
    *,
    alpha: float,
    seed: int,
    discoveries: int = 0,
    is_known: Callable[[Hypothesis], bool] = lambda _: False,
) -> Mined:
    """What both windows bear out at `alpha`, a run's part of a horizon's rate, after `discoveries` of its earlier runs.
    What is known opens no pattern, and is no discovery."""
    detected = [hypothesis for detector in DETECTORS for hypothesis in detector(before, now, seed)]
    family = [_computed_once(each) for each in _distinct([*detected, *associations.hypotheses(before, now)])]
    if not family or alpha <= 0:
        return Mined((), 0)
    tested = FamilyTests.of(Pools.of(before, now), family, alpha, seed)
    return judged(before, now, tested, alpha=alpha, discoveries=discoveries, is_known=is_known)


def judged(
    before: Episodes,
    now: Episodes,
    tested: FamilyTests,
    *,
    alpha: float,
    discoveries: int = 0,
    is_known: Callable[[Hypothesis], bool] = lambda _: False,
) -> Mined:
    """What the tests of a family bear out; see `mine`."""
    family, p_value, pools = tested.family, tested.p_value, tested.pools
    known = np.array([is_known(hypothesis) for hypothesis in family], dtype=np.bool_)
    accepted = np.flatnonzero(borne_out(p_value, alpha, discoveries, known) & (p_value <= EACH_WINDOW**2))
    stable = [(family[i], float(p_value[i]), tested.stability(family[i])) for i in accepted]
    claims = [_Claim.of(pools, now, *passed) for passed in stable if passed[2] >= REPORTED]
    left: list[_Claim] | None = None
    while left is None or len(left) < len(claims):
        claims = claims if left is None else left
        opening = sum(not is_known(claim.hypothesis) for claim in _merged(claims))
        left = [claim for claim in claims if claim.p_value <= level_of(alpha, discoveries + opening, len(family))]
    reported = _merged(claims)
    missing = MISSING * len(reported) / len(family)
    return Mined(tuple(claim.finding(before, now, missing) for claim in reported), len(family))


def _distinct(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    unique: dict[object, Hypothesis] = {}
    for hypothesis in hypotheses:
        name = hypothesis.finding if not hypothesis.triggers else ""
        unique.setdefault(
            (name, hypothesis.measure, frozenset(hypothesis.triggers), hypothesis.between_windows), hypothesis
        )
    return list(unique.values())


def _computed_once(hypothesis: Hypothesis) -> Hypothesis:
    """The hypothesis with the values that a detector computes kept for each window."""
    value, kept = hypothesis.value, dict[int, Floats]()
    if value is None:
        return hypothesis

    def once(episodes: Episodes) -> Floats:
        if id(episodes) not in kept:
            kept[id(episodes)] = value(episodes)
        return kept[id(episodes)]

    return replace(hypothesis, value=once)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A hypothesis that passed, before it is known whether a stronger one tells of the same."""

    hypothesis: Hypothesis
    p_value: float
    stability: float
    sample: Sample
    """Of both tests."""
    sign: float
    """Towards which its episodes differ."""
    matching: Mask
    """Episodes of the later window."""

    @classmethod
    def of(cls, pools: Pools, now: Episodes, hypothesis: Hypothesis, p_value: float, stability: float) -> _Claim:
        sample = pools.whole(hypothesis)
        sign = formed_sign(pools, hypothesis) if hypothesis.rare is None else -1.0
        return cls(hypothesis, p_value, stability, sample, sign, now.matching(hypothesis.triggers))

    @property
    def about(self) -> object:
        own = self.hypothesis
        return own.between_windows, own.rare, own.triggers or own.finding

    @property
    def strength(self) -> float:
        before = all(trigger.attribute in KNOWN_BEFORE for trigger in self.hypothesis.triggers)
        return abs(contrast(self.hypothesis, self.sample).z) * (1.0 if before else AFTER_WEIGHT)

    def repeats(self, stronger: _Claim) -> bool:
        """Whether a stronger claim tells of the same trajectories, or leaves nothing of this one's difference."""
        own, other = self.hypothesis, stronger.hypothesis
        if not own.triggers or not other.triggers or own.between_windows != other.between_windows:
            return False
        if own.rare is not None or other.rare is not None:
            return False
        either = np.count_nonzero(self.matching | stronger.matching)
        if np.count_nonzero(self.matching & stronger.matching) >= SAME * either:
            return True
        rest = difference(self.sample.of(~stronger.sample.group)).z * self.sign
        return not own.between_windows and _subject(self) == _subject(stronger) and rest < REMAINS_Z

    def finding(self, before: Episodes, now: Episodes, missing: float) -> Finding:
        """`missing`: share of intervals like this one that do not hold the true effect."""
        differs = contrast(self.hypothesis, self.sample)
        low, high = differs.interval(missing)
        reward, cost = (_excess(self, before, now, measure) for measure in ("reward", "cost_usd"))
        return Finding(
            hypothesis=self.hypothesis,
            p_value=self.p_value,
            effect=differs.value,
            low=low,
            high=high,
            share=float(self.matching.mean()),
            count=int(np.count_nonzero(self.matching)),
            reward_cost=-reward,
            cost_usd=max(0.0, cost),
            stability=self.stability,
            evidence=_evidence(self, now),
        )


def _subject(claim: _Claim) -> str:
    """What a claim is about: a failure and a lower reward are the same."""
    return {"reward": "failure"}.get(claim.hypothesis.measure, claim.hypothesis.measure)


def _merged(claims: Sequence[_Claim]) -> list[_Claim]:
    """The strongest claims, failures before what they cost, each with the terms of those that tell of the same. Of
    several with the same triggers the first in the order of measures stands: a pattern keeps its identity while its
    p-values change places."""
    kept: list[_Claim] = []
    order = {measure: place for place, measure in enumerate(MEASURES)}
    strongest: dict[object, float] = {}
    for claim in claims:
        strongest[claim.about] = max(strongest.get(claim.about, 0.0), claim.strength)

    def place_of(claim: _Claim) -> tuple[bool, float, int]:
        measure = claim.hypothesis.measure
        return _subject(claim) != "failure", -strongest[claim.about], order.get(measure, len(order))

    for claim in sorted(claims, key=place_of):
        place = next((i for i, stronger in enumerate(kept) if claim.repeats(stronger)), None)
        if place is None:
            kept.append(claim)
            continue
        hypothesis = kept[place].hypothesis
        names = [*hypothesis.terms, *claim.hypothesis.terms, *(t.value for t in claim.hypothesis.triggers)]
        own = {trigger.value for trigger in hypothesis.triggers}
        terms = tuple(name for name in dict.fromkeys(names) if name not in own)[:MOST_TERMS]
        kept[place] = replace(kept[place], hypothesis=replace(hypothesis, terms=terms))
    return kept


def _excess(claim: _Claim, before: Episodes, now: Episodes, measure: str) -> float:
    """Sum over the matching episodes of the later window, over what the others have, or the window before had."""
    if claim.hypothesis.rare is not None:
        return 0.0
    values, matching = measured(now, measure), claim.matching
    if claim.hypothesis.between_windows:
        others = measured(before, measure)[before.matching(claim.hypothesis.triggers)]
    else:
        others = values[~matching]
    own, others = values[matching], others[~np.isnan(others)]
    own = own[~np.isnan(own)]
    if not len(own) or not len(others):
        return 0.0
    return float((own.mean() - others.mean()) * np.count_nonzero(matching))


def _evidence(claim: _Claim, now: Episodes) -> tuple[str, ...]:
    """Of the matching episodes that differ most those that share most attributes with the others, the newest first."""
    rows = np.flatnonzero(claim.matching)
    values = compared(now, claim.hypothesis)[rows] * claim.sign
    known = values[~np.isnan(values)]
    if len(known):
        rows = rows[values >= np.median(known) if len(np.unique(known)) > 2 else values == known.max()]
    typical = np.zeros(len(rows))
    for column in now.columns.values():
        codes = column.codes[rows]
        common = np.bincount(codes[codes >= 0], minlength=1) / max(1, len(rows))
        typical += np.where(codes >= 0, common[np.maximum(codes, 0)], 0.0)
    best = np.lexsort((-now.ended_at[rows], -typical))[:MOST_EVIDENCE]
    return tuple(now.ids[row] for row in rows[best])
