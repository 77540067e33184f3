"""Sums up the rewards and opinions behind a policy. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
"""A row by column name; `Any` because each column has its own type."""


def reward_functions(rewards: Iterable[Row]) -> list[Row]:
    """By reward function, the most used first: how many trajectories it scored, their mean, the newest revision."""
    totals: dict[str, list[float]] = {}
    revisions: dict[str, int] = {}
    for row in rewards:
        name = str(row["function"]).strip() or "unnamed"
        totals.setdefault(name, []).append(row["total"])
        revisions[name] = max(revisions.get(name, 0), row["revision"])
    return [
        {
            "function": name,
            "trajectories": len(found),
            "mean": sum(found) / len(found),
            "newest_revision": revisions[name],
        }
        for name, found in sorted(totals.items(), key=lambda one: (-len(one[1]), one[0]))
    ]


def rater_counts(feedback: Iterable[Row]) -> list[Row]:
    """How often who said what, the most frequent first; equal combinations are added up."""
    counts: Counter[tuple[str | None, str | None, str]] = Counter()
    for row in feedback:
        counts[(row["rater"], row["source"], row["kind"])] += row["count"]
    ordered = sorted(counts.items(), key=lambda one: (-one[1], *(part or "" for part in one[0])))
    return [
        {"rater": rater, "source": source, "kind": kind, "count": count} for (rater, source, kind), count in ordered
    ]
