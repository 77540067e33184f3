"""The trajectories of a run as a tree."""

from __future__ import annotations

from typing import Any

from ratchet.core.stores.trajectories import tree_of


def row(name: str, parent: str | None) -> dict[str, Any]:
    return {
        "trajectory_id": name,
        "parent_trajectory_id": parent,
        "role": "support",
        "agent_id": "a",
        "turns": 1,
        "outcome": None,
    }


def test_every_trajectory_stands_after_its_parent_and_deeper() -> None:
    rows = [row("b", "a"), row("c", "b"), row("a", "elsewhere"), row("d", "a")]
    assert [(one.depth, one.trajectory_id) for one in tree_of(rows)] == [(0, "a"), (1, "b"), (2, "c"), (1, "d")]


def test_a_single_trajectory_is_no_tree_and_one_that_names_itself_ends() -> None:
    assert tree_of([row("a", None)]) == []
    assert tree_of([row("a", "a"), row("b", "a")])[0].trajectory_id == "a"
