"""What log-probabilities on a probe say: of the policy that a replica serves, and of how it reports what it draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ratchet.core.contract.policy_manifest import BFLOAT16
from ratchet.core.rules.engines import PROCESSED_LOGPROBS, RAW_LOGPROBS, ProbeDifference, tolerance_in

PROCESSED, RAW = PROCESSED_LOGPROBS, RAW_LOGPROBS
"""vLLM's words for log-probabilities after and before the temperature."""
LEAST = -1000.0
"""vLLM writes -9999 for minus infinity."""
TEMPERATURE = 2.0
"""At which they differ."""
MARGIN = 2.0
"""The two kinds must be apart by so many tolerances: then a value within one of them is of one kind alone."""
WORDS = {
    PROCESSED: f"at temperature {TEMPERATURE:g} log-probabilities are the processed ones",
    RAW: f"at temperature {TEMPERATURE:g} log-probabilities are raw: calls at another temperature than 1 train nothing",
}

OTHER_FORMAT = (
    ", and it is as near as bfloat16 comes: the engine computes in another number format than the trainer (start it in "
    "{dtype}: vLLM's --dtype)"
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two candidates for one place of the probe, and how far their log-probabilities are apart at temperature 1."""

    place: int
    """Of the token of the output that they are candidates for."""
    likely: int
    unlikely: int
    gap: float

    def distinguishable(self, dtype: str | None) -> bool:
        """Whether processed and raw log-probabilities of the pair differ by more than a number format hides."""
        return self.gap * (1 - 1 / TEMPERATURE) >= MARGIN * tolerance_in(dtype).worst


def widest_pair(places: Sequence[Mapping[int, float]]) -> Pair | None:
    """The pair of candidates that are furthest apart, of all places; None where no place has two."""
    pairs: list[Pair] = []
    for place, candidates in enumerate(places):
        finite = {token: logprob for token, logprob in candidates.items() if math.isfinite(logprob) and logprob > LEAST}
        if len(finite) > 1:
            likely, unlikely = max(finite, key=finite.__getitem__), min(finite, key=finite.__getitem__)
            pairs.append(Pair(place, likely, unlikely, finite[likely] - finite[unlikely]))
    return max(pairs, key=lambda pair: pair.gap, default=None)


def reported_mode(pair: Pair, candidates: Mapping[int, float], dtype: str | None) -> str | None:
    """Whether candidates that a replica reports at `TEMPERATURE` are processed or raw.

    A temperature divides every difference of two log-probabilities, and changes nothing else: raw ones keep it. None
    where the pair is not among them; a sentence where they are neither.
    """
    if not {pair.likely, pair.unlikely} <= candidates.keys():
        return None
    gap, slack = candidates[pair.likely] - candidates[pair.unlikely], tolerance_in(dtype).worst
    for mode, expected in ((PROCESSED, pair.gap / TEMPERATURE), (RAW, pair.gap)):
        if abs(gap - expected) <= slack:
            return mode
    return (
        f"at temperature {TEMPERATURE:g} log-probabilities are neither processed nor raw: two tokens that are "
        f"{pair.gap:.3g} nats apart are {gap:.3g} apart"
    )


@dataclass(frozen=True, slots=True)
class ReplicaProbe:
    """What one replica's answers were compared with, and what could not be."""

    differences: Sequence[ProbeDifference] = ()
    """From the trainer's log-probabilities, once for every time the probe was played; none where that is impossible."""
    mode: str | None = None
    """The log-probabilities that it reports at `TEMPERATURE`; None where that is unknown."""
    not_checked: Sequence[str] = ()
    """What could not be checked, and why."""
    broken: str | None = None
    """Why its log-probabilities on the probe were none, where that was so once at least."""
    sound: int = 0
    """How often they were log-probabilities."""

    def matches(self, dtype: str | None) -> bool:
        """Whether the trainer's log-probabilities came back every time, where they could be compared."""
        return self.broken is None and all(difference.within(dtype) for difference in self.differences)

    def never_matches(self, dtype: str | None) -> bool:
        """Whether they came back not even once."""
        if not self.sound:
            return self.broken is not None
        return bool(self.differences) and not any(difference.within(dtype) for difference in self.differences)

    def other_format(self, dtype: str | None) -> bool:
        """Whether it is as far off as an engine in a coarser number format than the trainer's."""
        coarser = tolerance_in(dtype) != tolerance_in(BFLOAT16) and not self.matches(dtype)
        return coarser and self.broken is None and all(difference.within(BFLOAT16) for difference in self.differences)

    @property
    def worst(self) -> ProbeDifference | None:
        """The largest difference."""
        return max(self.differences, key=lambda difference: difference.worst, default=None)

    def sentence(self, dtype: str | None) -> str:
        """Why it does not match."""
        if self.broken is not None or self.worst is None:
            return self.broken or ""
        hint = OTHER_FORMAT.format(dtype=dtype) if self.other_format(dtype) else ""
        return self.worst.sentence(dtype) + hint
