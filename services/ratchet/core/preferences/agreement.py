"""How far raters agree where they judged the same two answers, and who disagrees more than chance makes.

Agreement is Krippendorff's alpha for nominal values (Computing Krippendorff's Alpha-Reliability, 2011): 1 is perfect, 0
is chance.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ratchet.core.datasets.domain.pairs import Opinion
from ratchet.core.rules.intervals import wilson

LEAST_SHARED = 20
"""Fewer questions in common with others are no evidence against a rater."""
RULES = ("derived",)
"""Sources that follow verified outcomes and rewards: where people disagree with these, the people may be wrong."""


@dataclass(frozen=True, slots=True)
class RaterReport:
    """A rater against the majority of the others."""

    rater: str
    shared: int
    """Questions that others judged too, with a majority among them."""
    disagreed: int
    low: float
    high: float
    """The 95 % interval (Wilson) of the share that it disagrees on."""
    is_outlier: bool
    """Even the low end is above the share that the other raters disagree on."""

    @property
    def is_quarantined(self) -> bool:
        """It is an outlier by enough questions, and no rule that follows outcomes."""
        return self.is_outlier and self.shared >= LEAST_SHARED and self.rater.partition("/")[0] not in RULES


@dataclass(frozen=True, slots=True)
class Agreement:
    """The raters of a role."""

    questions: int
    """Two answers that at least two raters judged."""
    alpha: float | None
    """None where nothing can be compared."""
    raters: Sequence[RaterReport]


def agreement(opinions: Iterable[Opinion]) -> Agreement:
    """The newest opinion of each rater on each question counts. Preferences without a rater are left out."""
    sides: dict[tuple[str, ...], dict[str, bool]] = defaultdict(dict)
    for opinion in sorted(opinions, key=lambda opinion: opinion.sequence):
        if opinion.rater:
            sides[opinion.question]["/".join(opinion.judge)] = opinion.chosen <= opinion.rejected
    shared = [votes for votes in sides.values() if len(votes) > 1]
    return Agreement(len(shared), alpha(shared), _reports(shared))


def alpha(shared: Sequence[dict[str, bool]]) -> float | None:
    """Krippendorff's alpha of the votes on each question. Which side is called true must say nothing."""
    values = Counter(side for votes in shared for side in votes.values())
    number = values.total()
    if not values[True] or not values[False]:
        return 1.0 if number else None
    apart = 0.0
    for votes in shared:
        yes = sum(votes.values())
        apart += 2 * yes * (len(votes) - yes) / (len(votes) - 1)
    return 1 - (number - 1) * apart / (2 * values[True] * values[False])


def _reports(shared: Sequence[dict[str, bool]]) -> list[RaterReport]:
    number, apart = Counter[str](), Counter[str]()
    for votes in shared:
        for rater, side in votes.items():
            others = Counter(vote for other, vote in votes.items() if other != rater)
            if others[True] != others[False]:
                number[rater] += 1
                apart[rater] += side != (others[True] > others[False])
    reports: list[RaterReport] = []
    for rater, n in sorted(number.items()):
        low, high = wilson(apart[rater], n)
        rest = number.total() - n
        usual = (apart.total() - apart[rater]) / rest if rest else 1.0
        reports.append(RaterReport(rater, n, apart[rater], low, high, low > usual))
    return sorted(reports, key=lambda report: -report.low)
