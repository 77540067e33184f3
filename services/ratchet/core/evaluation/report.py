"""What an evaluation shows: each policy's success with its interval, and how two differ on the same tasks. Pure.

Success is a share of tasks: a task that is sampled several times counts by the mean of its tries, for tries of one task
are not independent. Wilson's interval then is a little too wide, never too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ratchet.core.evaluation.playing import Try
from ratchet.core.rules.intervals import paired_difference, wilson

Interval = tuple[float, float]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """How one policy did in one mode."""

    policy: str
    mode: str
    tasks: int
    """That it answered at least once."""
    tries: int
    success: float | None
    """Mean over tasks of the share of right tries; None without a task."""
    interval: Interval
    """95 %."""
    score: float | None
    """Mean over tasks, where graders give parts of a point."""
    refused: int
    """Tries that its server refused: they count as wrong."""
    faults: int
    """Tries without an answer: they count nowhere."""
    reason: str | None
    """Why the first of them has none, or else why the first refused one was; None where each try was answered."""
    prompt_tokens: int
    completion_tokens: int
    latency_p50_ms: float | None
    latency_p95_ms: float | None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Success of a policy less that of another one, over the tasks that both answered.

    A task that is refused for both is left out: its request is at fault, or what serves the two.
    """

    mode: str
    tasks: int
    refused_for_both: int
    """Tasks that are left out: each of both policies' tries was refused."""
    better: int
    """Tasks at which it did better,"""
    worse: int
    """and worse."""
    difference: float
    interval: Interval
    """95 % (Bonett and Price, paired)."""


class DifferingTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task at which two policies did differently."""

    task: str
    mode: str
    policy: float
    """Share of right tries."""
    against: float
    why: str
    """Of the first wrong try of the one that did worse."""


def summary_of(policy: str, mode: str, tries: Sequence[Try]) -> Summary:
    """Of one policy's tries in one mode."""
    answered = [tried for tried in tries if tried.fault is None]
    shares, scores = success_by_task(answered), score_by_task(answered)
    right, latencies = math.fsum(shares.values()), sorted(tried.latency_ms for tried in answered)
    return Summary(
        policy=policy,
        mode=mode,
        tasks=len(shares),
        tries=len(answered),
        success=right / len(shares) if shares else None,
        interval=wilson(right, len(shares)),
        score=math.fsum(scores.values()) / len(scores) if scores else None,
        refused=sum(tried.refused for tried in answered),
        faults=len(tries) - len(answered),
        reason=next((tried.fault for tried in tries if tried.fault), None)
        or next((tried.why for tried in tries if tried.refused), None),
        prompt_tokens=sum(tried.prompt_tokens for tried in answered),
        completion_tokens=sum(tried.completion_tokens for tried in answered),
        latency_p50_ms=_quantile(latencies, 0.5),
        latency_p95_ms=_quantile(latencies, 0.95),
    )


def difference_of(mode: str, tries: Sequence[Try], against: Sequence[Try]) -> Difference:
    """Of two policies' tries in one mode."""
    after, before = (success_by_task(tried for tried in side if tried.fault is None) for side in (tries, against))
    refused = refused_tasks(tries) & refused_tasks(against)
    both = sorted(after.keys() & before.keys() - refused)
    changes = [after[task] - before[task] for task in both]
    return Difference(
        mode=mode,
        tasks=len(both),
        refused_for_both=len(refused),
        better=sum(change > 0 for change in changes),
        worse=sum(change < 0 for change in changes),
        difference=math.fsum(changes) / len(changes) if changes else 0.0,
        interval=paired_difference([before[task] for task in both], [after[task] for task in both]),
    )


def differing(mode: str, tries: Sequence[Try], against: Sequence[Try]) -> list[DifferingTask]:
    """The tasks at which the policies did differently, those at which `tries` lost first."""
    after, before = (success_by_task(tried for tried in side if tried.fault is None) for side in (tries, against))
    changed = [task for task in sorted(after.keys() & before.keys()) if after[task] != before[task]]
    rows = [
        DifferingTask(
            task=task,
            mode=mode,
            policy=after[task],
            against=before[task],
            why=next(
                tried.why
                for tried in (tries if after[task] < before[task] else against)
                if tried.task == task and tried.fault is None and not tried.success
            ),
        )
        for task in changed
    ]
    return sorted(rows, key=lambda row: (row.policy - row.against, row.task))


def success_by_task(tries: Iterable[Try]) -> Mapping[str, float]:
    """The share of right tries of each task."""
    return _means((tried.task, float(tried.success)) for tried in tries)


def score_by_task(tries: Iterable[Try]) -> Mapping[str, float]:
    """The mean score of each task's tries."""
    return _means((tried.task, tried.score) for tried in tries)


def _means(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    by_task: dict[str, list[float]] = {}
    for task, value in values:
        by_task.setdefault(task, []).append(value)
    return {task: math.fsum(own) / len(own) for task, own in by_task.items()}


def refused_tasks(tries: Sequence[Try]) -> set[str]:
    """The tasks of which no try brought an answer that could be graded, and none a fault."""
    return {tried.task for tried in tries} - {tried.task for tried in tries if not tried.refused}


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) if ordered else None
