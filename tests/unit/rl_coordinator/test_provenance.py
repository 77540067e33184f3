"""Summing up the rewards and opinions behind a policy."""

from __future__ import annotations

from typing import Any

from ratchet.rl_coordinator.registry.provenance_sums import rater_counts, reward_functions


def row(function: str, total: float, revision: int = 0) -> dict[str, Any]:
    return {"function": function, "total": total, "revision": revision}


def test_rewards_are_summed_up_by_function_the_most_used_first():
    found = reward_functions([row("new 2", 1.0), row("default 1", 0.5, 3), row("default 1", 0.7)])
    assert [(one["function"], one["trajectories"], round(one["mean"], 6), one["newest_revision"]) for one in found] == [
        ("default 1", 2, 0.6, 3),
        ("new 2", 1, 1.0, 0),
    ]


def test_equal_opinions_of_several_queries_are_added_up():
    said = {"rater": "ann", "source": None, "kind": "thumbs", "count": 2}
    other = {"rater": None, "source": "web", "kind": "rating", "count": 3}
    assert rater_counts([said, other, said]) == [{**said, "count": 4}, other]


def test_nothing_is_nothing():
    assert reward_functions([]) == []
    assert rater_counts([]) == []
