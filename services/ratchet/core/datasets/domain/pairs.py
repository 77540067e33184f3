"""Preference pairs for a snapshot: which of the stored preferences count, and one row of the format `pairs`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from ratchet.bus.message import JsonObject
from ratchet.core.contract import Preference
from ratchet.core.contract.snapshot import PairRow
from ratchet.core.contract.training import DatasetFilter
from ratchet.core.datasets.domain.rows import RowOrigin, SnapshotRow
from ratchet.core.datasets.domain.selection import (
    CONSUMED,
    EXCLUDED_RATER,
    is_excluded,
    is_held_out,
    is_not_among,
    is_outside_dates,
)
from ratchet.core.rules.chat import text_of

T = TypeVar("T")

HUMAN = "human"
"""The source of what people preferred."""
_ROUNDING = 1e-9
"""A share is a decimal fraction: .07 of 100 are 7, although their product is a little more."""


def most_pairs(people: int, others: int, share: float) -> int:
    """The most pairs, of so many that people gave and so many others, of which people's are at least `share`."""
    total = people + others
    return total if share <= 0 else min(total, math.floor(people / share + _ROUNDING))


def keep_share(newest_first: Sequence[T], is_human: Callable[[T], bool], share: float, most: int) -> list[T]:
    """The newest up to `most`, as many as leave people their share; newest first.

    Where too few of the newest are people's, older ones of people take the place of the oldest of the others.
    """
    people = [pair for pair in newest_first if is_human(pair)]
    size = min(most, most_pairs(len(people), len(newest_first) - len(people), share))
    needed = math.ceil(share * size - _ROUNDING)
    room, owed = size, needed
    kept: list[T] = []
    for pair in newest_first:
        human = is_human(pair)
        if room and (human or room > owed):
            kept.append(pair)
            room -= 1
            owed = max(0, owed - human)
    return kept


UNNAMED = "unnamed"
"""A manifest counts preferences without a rater under this name."""
FIRST_TEST = {"reward-margin": "verified-outcome", "rag-reward-margin": "rag-verified-outcome"}
"""Tests of one rule, which names in each preference the test that decided it. They are one rater: a verified outcome
that arrives after the rewards were compared does not contradict that preference, it takes its place."""
EMPTY, IDENTICAL, NOT_AN_ANSWER = "empty", "identical", "not_an_answer"
NOT_STORED = "not_stored"
"""It was erased while the snapshot was made."""
BEYOND_HUMAN_SHARE = "beyond_human_share"
"""With it, people's pairs would be too small a share."""
ROUNDING = 1e-9
"""Margins are differences of sums of floats."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """A stored preference, with what the choice depends on; the texts only by digest."""

    preference_id: str
    source: str
    rater: str | None
    domain: str | None
    at: datetime
    """When it was stored."""
    sequence: int
    """Its place in the stream, which gives sequences out again once it was made anew."""
    prompt: str
    chosen: str
    rejected: str
    group_key: str | None = None
    """The task of a derived pair."""
    confidence: float | None = None

    @property
    def place(self) -> tuple[datetime, int, str]:
        """Later ones are newer."""
        return self.at, self.sequence, self.preference_id

    @property
    def question(self) -> tuple[str, ...]:
        """The prompt and the two answers, whichever was preferred."""
        return (self.prompt, *sorted((self.chosen, self.rejected)))

    @property
    def judge(self) -> tuple[str, ...]:
        """Who judged; a preference without a rater is another judge's every time."""
        if not self.rater:
            return (self.source, "", self.preference_id)
        return (self.source, FIRST_TEST.get(self.rater, self.rater))


@dataclass(frozen=True, slots=True)
class PairRules:
    """The conditions on a preference that a job may learn from."""

    filter: DatasetFilter
    consumed: frozenset[str]
    """Preferences the lineage has already learned from."""
    per_group: int | None = None
    """Most pairs of one task; those without a group key are not bounded."""
    unusable: Mapping[str, str] = field(default_factory=dict[str, str])
    """By preference whose texts make no row: the reason."""


@dataclass(frozen=True, slots=True)
class PairSelection:
    """The chosen preferences, oldest first, and how many others were left out for which reason."""

    chosen: Sequence[Opinion]
    left_out: Mapping[str, int]
    votes: Mapping[str, tuple[str, ...]]
    """By chosen preference: every preference that prefers the same of the same two answers, itself included."""


def select_pairs(opinions: Iterable[Opinion], rules: PairRules, sample_size: int, unlisted: int = 0) -> PairSelection:
    """The newest pairs, up to `sample_size`, of which people's are at least the share that the filter asks for. Where
    several judged the same two answers, the majority counts, once.

    The majority is settled over all opinions, before any rule: one that its judge withdrew, or that was outvoted, must
    not come back because the newer one was learned from or filtered out. `unlisted`: how many older ones are stored.
    """
    left_out: Counter[str] = Counter()
    eligible: list[Opinion] = []
    votes: dict[str, tuple[str, ...]] = {}
    known = list(opinions)
    voting = [opinion for opinion in known if not is_excluded(opinion.source, opinion.rater, rules.filter)]
    left_out[EXCLUDED_RATER] += len(known) - len(voting)  # one that is left out decides no majority either
    for given in _newest_by_question(voting, left_out):
        ((winner, number), *others) = Counter(opinion.chosen for opinion in given).most_common()
        if others and others[0][1] == number:
            left_out["contradicted"] += len(given)
            continue
        agreeing = [opinion for opinion in given if opinion.chosen == winner]
        left_out["outvoted"] += len(given) - len(agreeing)
        left_out["duplicate"] += len(agreeing) - 1
        representative = _representative(agreeing, rules)
        if not isinstance(representative, str):
            representative = rules.unusable.get(representative.preference_id, representative)
        if isinstance(representative, str):
            left_out[representative] += 1
            continue
        eligible.append(representative)
        votes[representative.preference_id] = tuple(opinion.preference_id for opinion in agreeing)
    bounded = _newest_of_groups(eligible, rules.per_group)
    left_out["beyond_max_per_group"] += len(eligible) - len(bounded)
    share, within = rules.filter.min_human_share or 0.0, min(sample_size, len(bounded))
    kept = keep_share(bounded[::-1], lambda opinion: opinion.source == HUMAN, share, sample_size)
    left_out["beyond_sample_size"] += len(bounded) - within
    left_out[BEYOND_HUMAN_SHARE] += within - len(kept)  # what the share leaves out within the sample's size
    left_out["beyond_history"] += unlisted
    return PairSelection(
        kept[::-1], dict(+left_out), {opinion.preference_id: votes[opinion.preference_id] for opinion in kept}
    )


def pair_row(preference: Preference | None, votes: Sequence[str] = ()) -> SnapshotRow | str:
    """The row, or the reason (a token) why it cannot be made. `votes`: the preferences that say the same."""
    if preference is None:
        return NOT_STORED
    prompt = _messages(preference.prompt, "user")
    chosen, rejected = (_messages(answer, "assistant") for answer in (preference.chosen, preference.rejected))
    if not prompt or not any(_has_content(message) for message in prompt):
        return EMPTY
    for answer in (chosen, rejected):
        answers = [message for message in answer if message.get("role") == "assistant"]
        if not answers:
            return NOT_AN_ANSWER
        if not any(_has_content(message) for message in answers):
            return EMPTY
    if chosen == rejected:
        return IDENTICAL
    row = PairRow(
        preference_id=preference.preference_id,
        prompt=prompt,
        chosen=chosen,
        rejected=rejected,
        tools=preference.tools or [],
        source=preference.source,
        rater=preference.rater,
        confidence=preference.confidence,
        domain=preference.domain,
        chosen_trajectory_id=preference.chosen_trajectory_id,
        rejected_trajectory_id=preference.rejected_trajectory_id,
        group_key=preference.group_key,
    )
    tries = tuple(try_id for try_id in (row.chosen_trajectory_id, row.rejected_trajectory_id) if try_id is not None)
    preferences = tuple(dict.fromkeys((row.preference_id, *votes)))
    return SnapshotRow(row, RowOrigin(tries, row.source, preferences, row.rater or UNNAMED))


def _newest_by_question(opinions: Iterable[Opinion], left_out: Counter[str]) -> Iterable[list[Opinion]]:
    """For every two answers, each judge's newest opinion, oldest first."""
    newest: dict[tuple[tuple[str, ...], tuple[str, ...]], Opinion] = {}
    for opinion in sorted(opinions, key=lambda known: known.place):
        key = (opinion.judge, opinion.question)
        left_out["superseded"] += key in newest
        newest[key] = opinion
    by_question: dict[tuple[str, ...], list[Opinion]] = {}
    for opinion in newest.values():
        by_question.setdefault(opinion.question, []).append(opinion)
    return by_question.values()


def _representative(agreeing: Sequence[Opinion], rules: PairRules) -> Opinion | str:
    """The newest of agreeing opinions that breaks no rule, or the reason why none may be used.

    They count once, so an opinion that the lineage has learned from stands for all of them.
    """
    reasons = [next((why for why, breaks in _RULES.items() if breaks(opinion, rules)), None) for opinion in agreeing]
    if CONSUMED in reasons:
        return CONSUMED
    usable = [opinion for opinion, reason in zip(agreeing, reasons, strict=True) if reason is None]
    return usable[-1] if usable else str(reasons[-1])


def _newest_of_groups(eligible: Iterable[Opinion], limit: int | None) -> list[Opinion]:
    """Oldest first. Each derivation bounds a task's pairs; this bounds what several derivations add up to."""
    kept: list[Opinion] = []
    taken: Counter[str] = Counter()
    for opinion in sorted(eligible, key=lambda opinion: opinion.place, reverse=True):
        if opinion.group_key is not None:
            taken[opinion.group_key] += 1
            if limit is not None and taken[opinion.group_key] > limit:
                continue
        kept.append(opinion)
    return kept[::-1]


def _messages(text: str | list[JsonObject], role: str) -> list[JsonObject]:
    """A plain text is one message of `role`."""
    return [{"role": role, "content": text}] if isinstance(text, str) else text


def _has_content(message: JsonObject) -> bool:
    content = message.get("content")
    parts = isinstance(content, list) and bool(content)
    return bool(text_of(content).strip()) or parts or bool(message.get("tool_calls"))


_RULES: Mapping[str, Callable[[Opinion, PairRules], bool]] = {
    CONSUMED: lambda o, r: o.preference_id in r.consumed,
    "held_out": lambda o, r: o.group_key is not None and is_held_out(o.group_key, r.filter.held_out),
    "outside_date_range": lambda o, r: is_outside_dates(o.at, r.filter),
    "source": lambda o, r: is_not_among(o.source, r.filter.sources),
    "task_domain": lambda o, r: is_not_among(o.domain, r.filter.task_domains),
    "no_margin": lambda o, r: r.filter.min_margin is not None and o.confidence is None and o.source != HUMAN,
    "below_min_margin": lambda o, r: (
        o.confidence is not None and o.confidence + ROUNDING < (r.filter.min_margin or 0.0)
    ),
}
"""Reason -> whether a preference is left out for it, in the order in which reasons are reported."""
