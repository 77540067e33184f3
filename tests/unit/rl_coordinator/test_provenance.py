"""Summing up the rewards and opinions behind a policy."""

from __future__ import annotations

from typing import Any

from ratchet.core.contract.http.models import RaterPart
from ratchet.rl_coordinator.registry.provenance import rater_counts, reward_functions


def row(function: str, total: float, revision: int = 0) -> dict[str, Any]:
    return {"function": function, "total": total, "revision": revision}


def test_rewards_are_summed_up_by_function_the_most_used_first() -> None:
    sums = reward_functions([row("new 2", 1.0), row("default 1", 0.5, 3), row("default 1", 0.7)])
    assert [(one.function, one.trajectories, round(one.mean, 6), one.newest_revision) for one in sums] == [
        ("default 1", 2, 0.6, 3),
        ("new 2", 1, 1.0, 0),
    ]


def test_equal_opinions_of_several_queries_are_added_up() -> None:
    thumbs = {"rater": "ann", "source": None, "kind": "thumbs", "count": 2}
    rating = {"rater": None, "source": "web", "kind": "rating", "count": 3}
    assert rater_counts([thumbs, rating, thumbs]) == [RaterPart(**{**thumbs, "count": 4}), RaterPart(**rating)]


def test_no_rows_have_no_sums() -> None:
    assert reward_functions([]) == []
    assert rater_counts([]) == []
