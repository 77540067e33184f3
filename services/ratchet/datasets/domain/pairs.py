"""Preference pairs for a snapshot: which of the stored preferences count, and one row of the format `pairs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ratchet.bus.message import JsonObject
from ratchet.contract import Preference
from ratchet.contract.snapshot import PairRow
from ratchet.contract.training import DatasetFilter
from ratchet.datasets.domain.rows import RowOrigin, SnapshotRow
from ratchet.rules.chat import text_of

UNNAMED = "unnamed"
"""The rater of a preference that names none, in a manifest's count."""
FIRST_TEST = {"reward-margin": "verified-outcome", "rag-reward-margin": "rag-verified-outcome"}
"""Tests of one rule, which names in each preference the one that told the tries apart. They are one rater: a verified
outcome that comes in after the reward was compared does not contradict that word, it takes its place."""
CONSUMED = "consumed_by_lineage"
EMPTY, IDENTICAL, NOT_AN_ANSWER = "empty", "identical", "not_an_answer"


@dataclass(frozen=True, slots=True)
class Opinion:
    """A stored preference, as far as choosing needs to know it; the texts only by digest."""

    preference_id: str
    source: str
    rater: str | None
    domain: str | None
    at: datetime
    """When it was stored."""
    sequence: int
    """Its place in the stream: later ones are newer."""
    prompt: str
    chosen: str
    rejected: str
    group_key: str | None = None
    """Of a derived pair: its task."""


@dataclass(frozen=True, slots=True)
class PairRules:
    """What a preference must be like."""

    filter: DatasetFilter
    consumed: frozenset[str]
    """Preferences the lineage has already learned from."""
    per_group: int | None = None
    """Most pairs of one task; those without a group key are not bounded."""


@dataclass(frozen=True, slots=True)
class PairSelection:
    """The chosen ones, oldest first, and how many were left out for which reason."""

    chosen: Sequence[Opinion]
    left_out: Mapping[str, int]
    votes: Mapping[str, tuple[str, ...]]
    """By chosen preference: every preference that says the same of the same two answers, itself among them."""


def select_pairs(opinions: Iterable[Opinion], rules: PairRules, sample_size: int) -> PairSelection:
    """The newest pairs, up to `sample_size`. Where several judged the same two answers, the majority counts, once.

    Who won is settled over everything that was said, before any rule: a word that was taken back, or outvoted, must not
    come back because the newer one was learned from or filtered away.
    """
    left_out: Counter[str] = Counter()
    eligible: list[Opinion] = []
    votes: dict[str, tuple[str, ...]] = {}
    for agreeing in _decided(_newest_words(opinions, left_out), left_out):
        taken = _spokesman(agreeing, rules)
        left_out["duplicate"] += len(agreeing) - 1
        if isinstance(taken, str):
            left_out[taken] += 1
        else:
            eligible.append(taken)
            votes[taken.preference_id] = tuple(vote.preference_id for vote in agreeing)
    bounded = _newest_of_groups(eligible, rules.per_group)
    left_out["beyond_max_per_group"] += len(eligible) - len(bounded)
    newest = bounded[-sample_size:]
    left_out["beyond_sample_size"] += len(bounded) - len(newest)
    chosen = {opinion.preference_id: votes[opinion.preference_id] for opinion in newest}
    return PairSelection(newest, dict(+left_out), chosen)


def reason_against(opinion: Opinion, rules: PairRules) -> str | None:
    """The first rule the preference breaks, as a token; None when it may be learned from."""
    return next((reason for reason, breaks in _RULES.items() if breaks(opinion, rules)), None)


def pair_row(preference: Preference, votes: Sequence[str] = ()) -> SnapshotRow | str:
    """The row, or the reason (a token) why there can be none. `votes`: the preferences that say the same."""
    prompt = _messages(preference.prompt, "user")
    chosen, rejected = (_messages(answer, "assistant") for answer in (preference.chosen, preference.rejected))
    if not prompt or not any(_holds_something(message) for message in prompt):
        return EMPTY
    for answer in (chosen, rejected):
        said = [message for message in answer if message.get("role") == "assistant"]
        if not said:
            return NOT_AN_ANSWER
        if not any(_holds_something(message) for message in said):
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
    tries = tuple(one for one in (row.chosen_trajectory_id, row.rejected_trajectory_id) if one is not None)
    said = tuple(dict.fromkeys((row.preference_id, *votes)))
    return SnapshotRow(row, RowOrigin(tries, row.source, said, row.rater or UNNAMED))


def _newest_words(opinions: Iterable[Opinion], left_out: Counter[str]) -> list[Opinion]:
    """What each rater said last of two answers; who gives no name is somebody else every time."""
    last: dict[tuple[str, ...], Opinion] = {}
    for opinion in sorted(opinions, key=lambda opinion: opinion.sequence):
        key = (*_voice(opinion), opinion.prompt, *sorted((opinion.chosen, opinion.rejected)))
        left_out["superseded"] += key in last
        last[key] = opinion
    return list(last.values())


def _voice(opinion: Opinion) -> tuple[str, ...]:
    """Whose word it is."""
    if not opinion.rater:
        return (opinion.source, "", opinion.preference_id)
    return (opinion.source, FIRST_TEST.get(opinion.rater, opinion.rater))


def _decided(opinions: Sequence[Opinion], left_out: Counter[str]) -> list[list[Opinion]]:
    """For every two answers that a majority tells apart, those who agree with it, oldest first."""
    asked: dict[tuple[str, ...], list[Opinion]] = {}
    for opinion in opinions:
        asked.setdefault((opinion.prompt, *sorted((opinion.chosen, opinion.rejected))), []).append(opinion)
    kept: list[list[Opinion]] = []
    for votes in asked.values():
        ((winner, number), *others) = Counter(vote.chosen for vote in votes).most_common()
        if others and others[0][1] == number:
            left_out["contradicted"] += len(votes)
            continue
        agreeing = [vote for vote in votes if vote.chosen == winner]
        kept.append(agreeing)
        left_out["outvoted"] += len(votes) - len(agreeing)
    return kept


def _newest_of_groups(eligible: Iterable[Opinion], limit: int | None) -> list[Opinion]:
    """Oldest first. Deriving bounds a task's pairs each time; no task may outweigh the others over time."""
    kept: list[Opinion] = []
    taken: Counter[str] = Counter()
    for opinion in sorted(eligible, key=lambda opinion: (opinion.sequence, opinion.preference_id), reverse=True):
        if opinion.group_key is not None:
            taken[opinion.group_key] += 1
            if limit is not None and taken[opinion.group_key] > limit:
                continue
        kept.append(opinion)
    return kept[::-1]


def _spokesman(agreeing: Sequence[Opinion], rules: PairRules) -> Opinion | str:
    """The newest of those who agree that may be learned from, or why none may; learned once, in whosever name."""
    if any(vote.preference_id in rules.consumed for vote in agreeing):
        return CONSUMED
    reasons = [reason_against(vote, rules) for vote in agreeing]
    free = [vote for vote, reason in zip(agreeing, reasons, strict=True) if reason is None]
    return free[-1] if free else reasons[-1] or CONSUMED


def _messages(text: str | list[JsonObject], role: str) -> list[JsonObject]:
    """A plain text is one message of `role`."""
    return [{"role": role, "content": text}] if isinstance(text, str) else text


def _holds_something(message: JsonObject) -> bool:
    content = message.get("content")
    parts = isinstance(content, list) and bool(content)
    return bool(text_of(content).strip()) or parts or bool(message.get("tool_calls"))


def _outside_dates(opinion: Opinion, rules: PairRules) -> bool:
    dates = rules.filter.date_range
    if dates is None:
        return False
    too_old = dates.start is not None and opinion.at < dates.start
    return too_old or (dates.end is not None and opinion.at >= dates.end)


def _not_in(value: str | None, allowed: list[str] | None) -> bool:
    return allowed is not None and value not in allowed


_RULES: Mapping[str, Callable[[Opinion, PairRules], bool]] = {
    CONSUMED: lambda o, r: o.preference_id in r.consumed,
    "outside_date_range": _outside_dates,
    "source": lambda o, r: _not_in(o.source, r.filter.sources),
    "task_domain": lambda o, r: _not_in(o.domain, r.filter.task_domains),
}
"""Reason -> whether a preference is left out for it, in the order in which reasons are reported."""
