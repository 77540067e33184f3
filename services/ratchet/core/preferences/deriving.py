"""From stored tries to published preferences: reads task by task, compares, publishes what is new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ratchet.core.preferences.clickhouse_tries import Tries
from ratchet.core.preferences.derivation import MAX_PER_TASK, derive_pairs
from ratchet.core.preferences.publishing import Known, Published, Sink, publish
from ratchet.core.preferences.rules.base import Rule, Try
from ratchet.core.preferences.teacher import Teacher

AT_A_TIME = 250
"""Tries whose texts are read together; a task is never split."""


@dataclass
class DerivationReport:
    """What was compared and what came of it."""

    source: str
    roles: list[str] = field(default_factory=list[str])
    tries: int = 0
    left_out: int = 0
    """Evaluation traffic, mixed arms, old tries of tasks with many, tries whose text cannot be read."""
    tasks: int = 0
    """Tasks with two tries or more."""
    comparisons: int = 0
    pairs: int = 0
    by_rater: Counter[str] = field(default_factory=Counter[str])
    by_task: Counter[str] = field(default_factory=Counter[str])
    """Pairs by role and task; tasks without a pair are not in it."""
    skipped: Counter[str] = field(default_factory=Counter[str])
    """Comparisons that gave no pair, by reason."""
    done: Published = field(default_factory=Published)


@dataclass(frozen=True, slots=True)
class Deriver:
    """Derives the pairs of a role's tries by one rule, and publishes them."""

    tries: Tries
    stored: Known
    sink: Sink
    rule: Rule | Teacher
    max_per_task: int = MAX_PER_TASK

    async def derive(self, roles: Sequence[str], on_progress: Callable[[float, float], None]) -> DerivationReport:
        """Go through the tasks of the roles; `on_progress` is called with the tries compared, and all tries."""
        report = DerivationReport(source=self.rule.source, roles=list(roles))
        listings = {role: await self.tries.listing(role) for role in roles}
        total = sum(len(task) for listing in listings.values() for task in listing.tasks)
        compared = 0
        for role, listing in listings.items():
            report.tries += listing.tries
            report.left_out += listing.left_out
            report.tasks += len(listing.tasks)
            for chunk in _chunks(listing.tasks):
                readable, unreadable = await self.tries.with_texts(role, chunk)
                rule = await self.rule.rule_for(readable) if isinstance(self.rule, Teacher) else self.rule
                derivation = derive_pairs(readable, rule, self.max_per_task)
                report.left_out += unreadable
                report.comparisons += derivation.comparisons
                report.pairs += len(derivation.pairs)
                report.by_rater.update(pair.verdict.rater for pair in derivation.pairs)
                report.by_task.update(f"{role}/{pair.chosen.task_key}" for pair in derivation.pairs)
                report.skipped.update(derivation.skipped)
                await publish(self.sink, self.stored, [pair.preference() for pair in derivation.pairs], report.done)
                compared += len(chunk)
                on_progress(compared, total)
        return report


def _chunks(tasks: Sequence[Sequence[Try]]) -> Iterator[list[Try]]:
    """Whole tasks, about `AT_A_TIME` tries at a time."""
    chunk: list[Try] = []
    for task in tasks:
        chunk.extend(task)
        if len(chunk) >= AT_A_TIME:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
