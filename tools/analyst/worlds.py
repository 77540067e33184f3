"""Worlds whose truth is known: two windows of a role in which nothing is wrong, or what was planted.

Subjects come back, some of them hundreds of times; their luck, topics, language and model stay with them. Costs and
latencies have heavy tails, a tenth of the outcomes is unknown, and one task has rewards that only spread wider. Rewards
and feedback come late: what came within `PROMPT` of the end counts, in either window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from ratchet.analyst.domain.windows import PROMPT
from ratchet.analyst.mining.base import MOST_VALUES, Column, Episodes, Finding, Floats, Mask, Members
from ratchet.core.contract.learning import Trigger

HOUR_S = 3600.0
REWARD_S, FEEDBACK_S = 120.0, 3600.0
"""Mean of what rewards and ratings take after the end."""
TASKS, LANGUAGES, DOMAINS, MODELS, AGENTS = 12, 8, 5, 4, 3
TOPICS, TERMS, TERMS_OF_EPISODE = 30, 600, 6
DOCUMENTS, TOOLS, ERRORS = 300, 10, 12
LUCK = 1.0
"""Standard deviation of a subject's logit of failing."""
USUAL_FAILURES = -1.4
"""Logit: a fifth."""
WIDER_TASK = 5
"""Its rewards have the mean of others and thrice their spread."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A cause: episodes with the trigger are worse in a measure."""

    trigger: Trigger
    measure: str
    """`failure`, `cost_usd` or `latency_ms`."""
    effect: float
    """Of `failure`: added to its probability. Of the others: the logarithm of the factor."""


@dataclass(frozen=True, slots=True)
class World:
    before: Episodes
    now: Episodes
    planted: tuple[Planted, ...]
    risk: Floats
    """Chance of failing of each episode of the later window (n,)."""


def planted(effect: float, factor: float) -> tuple[Planted, ...]:
    """Five causes, each in an attribute of its own; each a tenth of the episodes or somewhat more."""
    causes = (
        ("task_type", "task 2", "failure", effect),
        ("term", "late", "failure", effect),
        ("language", "language 2", "failure", effect),
        ("model", "model 3", "latency_ms", factor),
        ("tool", "tool 9", "cost_usd", factor),
    )
    return tuple(Planted(Trigger(attribute=a, value=v), measure, size) for a, v, measure, size in causes)


def world(count: int, causes: Sequence[Planted], seed: int) -> World:
    """`count` episodes in each of two windows of an hour."""
    random = np.random.default_rng([seed, count])
    subjects = _Subjects.drawn(count, random)
    before, _ = _window(subjects, count, causes, 0.0, random)
    now, risk = _window(subjects, count, causes, HOUR_S, random)
    return World(before, now, tuple(causes), risk)


@dataclass(frozen=True, slots=True)
class _Subjects:
    """What stays with a subject (s,)."""

    hashes: Any
    weight: Floats
    """How often it comes back: heavy-tailed, normed to 1."""
    luck: Floats
    scale: Floats
    """Logarithm of the factor on its costs and latencies."""
    traits: dict[str, Any]

    @classmethod
    def drawn(cls, count: int, random: np.random.Generator) -> _Subjects:
        weight = np.minimum(random.pareto(1.5, count) + 0.3, 50.0)
        shares = {"language": LANGUAGES, "domain": DOMAINS, "model": MODELS, "agent": AGENTS, "topic": TOPICS}
        traits = {name: random.choice(values, count, p=_falling(values)) for name, values in shares.items()}
        hashes = random.integers(0, 2**63, count, dtype=np.uint64)
        return cls(hashes, weight / weight.sum(), random.normal(0, LUCK, count), random.normal(0, 0.5, count), traits)


def _falling(values: int) -> Floats:
    weight = 1.0 / np.arange(2, values + 2)
    return weight / weight.sum()


def _window(
    subjects: _Subjects, count: int, causes: Sequence[Planted], at: float, random: np.random.Generator
) -> tuple[Episodes, Floats]:
    """Episodes, and the chance of each to fail."""
    who = random.choice(len(subjects.hashes), count, p=subjects.weight)
    ended_at = np.sort(random.uniform(at, at + HOUR_S, count))
    columns, members = _attributes(subjects, who, ended_at, random)
    empty = Episodes(
        tuple(random.bytes(16).hex() for _ in range(count)), subjects.hashes[who], ended_at, {}, columns, members
    )
    shift = {name: shifts(empty, causes, name) for name in ("failure", "cost_usd", "latency_ms")}
    usual = 1 / (1 + np.exp(-(USUAL_FAILURES + subjects.luck[who])))
    risk = np.clip(usual + shift["failure"], 0, 1)
    failure = (random.random(count) < risk).astype(np.float64)
    spread = np.where(columns["task_type"].codes == WIDER_TASK, 0.9, 0.3)
    reward = 1 - 1.5 * failure + random.normal(0, 1, count) * spread
    cost = 0.01 * np.exp(subjects.scale[who] + shift["cost_usd"]) * (1 + random.pareto(1.6, count))
    latency = 900 * np.exp(subjects.scale[who] + shift["latency_ms"] + random.normal(0, 0.9, count))
    measures: dict[str, Floats] = {
        "failure": np.where(random.random(count) < 0.1, np.nan, failure),
        "reward": np.where(random.exponential(REWARD_S, count) > PROMPT.total_seconds(), np.nan, reward),
        "cost_usd": cost,
        "latency_ms": latency,
        "tokens": cost * 1e5,
        "calls": (1 + random.poisson(2, count)).astype(np.float64),
        "feedback": (
            (random.random(count) < 0.5) & (random.exponential(FEEDBACK_S, count) <= PROMPT.total_seconds())
        ).astype(np.float64),
        "answer_chars": np.exp(random.normal(5.5, 0.8, count)),
    }
    return Episodes(empty.ids, empty.subject, ended_at, measures, columns, members), risk


def shifts(episodes: Episodes, causes: Sequence[Planted], measure: str) -> Floats:
    """What the causes add to a measure (n,); what a cause of failures adds is added to failures only."""
    own = [cause for cause in causes if cause.measure == measure]
    shift = np.zeros(len(episodes))
    for cause in own:
        shift += cause.effect * episodes.matching([cause.trigger])
    return shift


def _attributes(
    subjects: _Subjects, who: Any, ended_at: Floats, random: np.random.Generator
) -> tuple[dict[str, Column], dict[str, Members]]:
    count = len(who)
    task = random.choice(TASKS, count, p=_falling(TASKS))
    codes = {name: subjects.traits[name][who] for name in ("language", "domain", "model", "agent")}
    codes |= {"task_type": task, "hour": (ended_at // HOUR_S).astype(int), "length": random.integers(0, 5, count)}
    names = {"task_type": "task"}
    columns = {
        name: Column(code.astype(np.int32), tuple(f"{names.get(name, name)} {i}" for i in range(int(code.max()) + 1)))
        for name, code in codes.items()
    }
    topic = subjects.traits["topic"][who, None]
    own = (topic * 20 + random.integers(0, 20, (count, TERMS_OF_EPISODE))) % TERMS
    term = np.where(random.random(own.shape) < 0.7, own, random.integers(0, TERMS, own.shape))
    late = np.where(random.random(count) < 0.1, TERMS, term[:, 0])[:, None]
    tool = np.stack([random.choice(TOOLS, count, p=_falling(TOOLS)), (task * 7 + 3) % (TOOLS - 1)], axis=1)
    tool[:, 0] = np.where(random.random(count) < 0.06, TOOLS - 1, tool[:, 0])
    error = np.where(random.random(count) < 0.05, random.integers(0, ERRORS, count), -1)[:, None]
    members = {
        "term": _members(np.hstack([term, late]), (*_named("word", TERMS), "late")),
        "document": _members(
            random.choice(DOCUMENTS, (count, 2), p=_falling(DOCUMENTS)), _named("document", DOCUMENTS)
        ),
        "tool": _members(tool, _named("tool", TOOLS)),
        "tool_sequence": _members(tool[:, :1] * TOOLS + tool[:, 1:], _named("pair", TOOLS * TOOLS)),
        "tool_error": _members(error, _named("error", ERRORS)),
    }
    return columns, members


def _named(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name} {i}" for i in range(count))


def _members(codes: Any, names: tuple[str, ...]) -> Members:
    """Codes (n, k), of which -1 is none, as the most frequent values."""
    rows, places = np.nonzero(codes >= 0)
    matrix = sparse.csc_array(
        (np.ones(len(rows), dtype=np.bool_), (rows, codes[rows, places])), shape=(len(codes), len(names))
    )
    matrix.sum_duplicates()
    frequent = np.sort(np.argsort(-np.diff(matrix.indptr), kind="stable")[:MOST_VALUES])
    return Members(matrix[:, frequent].astype(np.bool_), tuple(names[i] for i in frequent))


SAME_CAUSE = 0.5
"""Share of the episodes of either that a finding has in common with a cause that it names."""
LEAST_SHIFT = 0.1
"""Of the planted effect: a finding whose episodes have less of it, beside others, is false."""
FAMILIES = {"failure": ("failure", "reward"), "cost_usd": ("cost_usd", "tokens"), "latency_ms": ("latency_ms",)}


def cause_of(finding: Finding, truth: World) -> Planted | None:
    """The cause that a finding names."""
    return next((cause for cause in truth.planted if _names(finding, cause, truth.now)), None)


def _names(finding: Finding, cause: Planted, now: Episodes) -> bool:
    if finding.hypothesis.measure not in FAMILIES[cause.measure]:
        return False
    own, planted_in = now.matching(finding.hypothesis.triggers), now.matching([cause.trigger])
    return bool(np.count_nonzero(own & planted_in) >= SAME_CAUSE * np.count_nonzero(own | planted_in))


def is_true(finding: Finding, truth: World) -> bool:
    """Whether its episodes have been made worse than others in what it claims."""
    return (
        any(_shifted(finding, cause, truth.now) for cause in truth.planted) and not finding.hypothesis.between_windows
    )


def _shifted(finding: Finding, cause: Planted, now: Episodes) -> bool:
    if finding.hypothesis.measure not in FAMILIES[cause.measure]:
        return False
    own: Mask = now.matching(finding.hypothesis.triggers)
    shift = now.matching([cause.trigger]).astype(np.float64)
    worse = finding.effect < 0 if finding.hypothesis.measure == "reward" else finding.effect > 0
    return bool(worse and own.any() and not own.all() and shift[own].mean() - shift[~own].mean() >= LEAST_SHIFT)


def true_effect(finding: Finding, truth: World) -> float | None:
    """Of a finding about failures: how much likelier its episodes were to fail than others."""
    if finding.hypothesis.measure != "failure" or not finding.hypothesis.triggers:
        return None
    own = truth.now.matching(finding.hypothesis.triggers)
    return float(truth.risk[own].mean() - truth.risk[~own].mean())
