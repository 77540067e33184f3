"""Preference pairs from tries of the same task. Pure: the same tries in any order give the same pairs.

The prompt of a pair is the longest beginning that both tries share, message by message, and that ends before a message
of the assistant in both; what follows are the chosen and the rejected answer. Where users open each try in their own
words there is no such beginning: the prompt is then what the tries do share, the instructions, and the answers are two
whole conversations. That is sound for a loss on what the policy wrote alone: given the conversation so far, the user's
words are as likely under any policy, so they cancel in the ratio of policy and reference.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ratchet.bus.message import JsonObject
from ratchet.core.contract import Preference, named_id
from ratchet.core.preferences.rules.base import Chat, Rule, Try, Verdict
from ratchet.core.rules.chat import text_of

MAX_PER_TASK = 4
"""Pairs of one task: enough for two successes against two failures, and no task outweighs the others."""

IDENTICAL = "identical"
EMPTY = "empty"
NO_COMMON_PROMPT = "no_common_prompt"
DUPLICATE = "duplicate"
OPPOSITE_ORDER = "opposite_order"
BEYOND = "beyond_max_per_task"


@dataclass(frozen=True, slots=True)
class Pair:
    """One try preferred over another; they are one up to message `start`."""

    chosen: Try
    rejected: Try
    start: int
    source: str
    verdict: Verdict

    @property
    def preference_id(self) -> str:
        """The same two tries in the same order under the same test: the same pair, wherever it is derived."""
        return named_id("preference", self.verdict.rater, self.chosen.trajectory_id, self.rejected.trajectory_id)

    def preference(self) -> Preference:
        """The message that publishes it."""
        return Preference(
            preference_id=self.preference_id,
            role=self.chosen.role,
            prompt=self.chosen.messages[: self.start],
            chosen=self.chosen.messages[self.start :],
            rejected=self.rejected.messages[self.start :],
            source=self.source,
            rater=self.verdict.rater,
            confidence=self.verdict.confidence,
            domain=self.chosen.domain,
            tools=self.chosen.tools or self.rejected.tools or None,
            chosen_trajectory_id=self.chosen.trajectory_id,
            rejected_trajectory_id=self.rejected.trajectory_id,
            # Where tries have no group key their task is the group: pairs of one task must stay together in a hold-out.
            group_key=self.chosen.task_key,
        )


@dataclass(frozen=True, slots=True)
class Derivation:
    """The pairs, ordered by role, task and strength, and why every other comparison gave no pair."""

    pairs: Sequence[Pair]
    skipped: Mapping[str, int]
    tasks: int
    """Tasks with at least one try."""
    comparisons: int
    """Two tries of one task, each two once: `len(pairs) + sum(skipped.values())`."""


def derive_pairs(tries: Iterable[Try], rule: Rule, max_per_task: int = MAX_PER_TASK) -> Derivation:
    """Compare all tries of each task of each role. Trajectory ids are unique."""
    tasks: dict[tuple[str, str], list[Try]] = {}
    for tried in sorted(tries, key=lambda tried: (tried.role, tried.task_key, tried.trajectory_id)):
        tasks.setdefault((tried.role, tried.task_key), []).append(tried)
    pairs: list[Pair] = []
    skipped: Counter[str] = Counter()
    comparisons = 0
    for task in tasks.values():
        allowed: list[Pair] = []
        for one, other in combinations(task, 2):
            comparisons += 1
            pair = _pair(one, other, rule)
            if isinstance(pair, Pair):
                allowed.append(pair)
            else:
                skipped[pair] += 1
        pairs += _bounded(_consistent(allowed, skipped), max_per_task, skipped)
    return Derivation(pairs, dict(+skipped), len(tasks), comparisons)


def common_prompt(one: Chat, other: Chat) -> int:
    """How many messages both answer: see the top of this file. 0 when they share no message."""
    length = min(len(one), len(other))
    shared = next((n for n in range(length) if _canonical(one[n]) != _canonical(other[n])), length)
    ends = [n for n in range(1, min(shared + 1, length)) if _speaks(one[n]) and _speaks(other[n])]
    return ends[-1] if ends else shared


def _pair(one: Try, other: Try, rule: Rule) -> Pair | str:
    """The pair that two tries make, or why they make none."""
    verdict = rule.judge(one, other)
    if isinstance(verdict, str):
        return verdict
    chosen, rejected = (one, other) if verdict.first else (other, one)
    start = common_prompt(chosen.messages, rejected.messages)
    # A job learns only from the messages that the policy wrote.
    answers = [[message for message in tried.messages[start:] if _speaks(message)] for tried in (chosen, rejected)]
    for answer in answers:
        if not any(text_of(message.get("content")).strip() or message.get("tool_calls") for message in answer):
            return EMPTY
    if [*map(_canonical, answers[0])] == [*map(_canonical, answers[1])]:
        return IDENTICAL
    return Pair(chosen, rejected, start, rule.source, verdict) if start else NO_COMMON_PROMPT


def _consistent(pairs: Sequence[Pair], skipped: Counter[str]) -> list[Pair]:
    """Strongest first, each text once; two texts preferred over each other cancel out."""
    kept: dict[tuple[str, str, str], Pair] = {}
    for pair in sorted(pairs, key=_strongest_first):
        chosen, rejected, start = pair.chosen.messages, pair.rejected.messages, pair.start
        texts = _canonical(chosen[:start]), _canonical(chosen[start:]), _canonical(rejected[start:])
        if kept.setdefault(texts, pair) is not pair:
            skipped[DUPLICATE] += 1
    opposed = {(prompt, chosen, rejected) for prompt, chosen, rejected in kept if (prompt, rejected, chosen) in kept}
    skipped[OPPOSITE_ORDER] += len(opposed)
    return [pair for texts, pair in kept.items() if texts not in opposed]


def _bounded(pairs: Sequence[Pair], limit: int, skipped: Counter[str]) -> list[Pair]:
    """At most `limit`, spread over the tries so that one lucky try is not in every pair, strong ones first."""
    used: Counter[str] = Counter()
    rest, chosen = list(pairs), list[Pair]()
    while rest and len(chosen) < limit:
        best = min(rest, key=lambda pair: max(used[pair.chosen.trajectory_id], used[pair.rejected.trajectory_id]))
        rest.remove(best)
        chosen.append(best)
        used.update((best.chosen.trajectory_id, best.rejected.trajectory_id))
    skipped[BEYOND] += len(rest)
    return sorted(chosen, key=_strongest_first)


def _strongest_first(pair: Pair) -> tuple[float, str, str]:
    return -pair.verdict.strength, pair.chosen.trajectory_id, pair.rejected.trajectory_id


def _canonical(value: JsonObject | Chat) -> str:
    """Equal for equal JSON, whatever the order of members."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _speaks(message: JsonObject) -> bool:
    return message.get("role") == "assistant"
