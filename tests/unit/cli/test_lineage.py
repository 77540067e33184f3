"""A policy's lineage as a tree for people."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console

from ratchet.cli.policies import lineage_tree
from ratchet.core.contract.http.models import LineageOut

EMPTY: dict[str, Any] = {"total": 0, "offset": 0, "items": []}
POLICY = {
    "role": "support",
    "version": 2,
    "name": "support@2-aaaaaaaa",
    "stage": "production",
    "state": "stable",
    "status": "ready",
    "algorithm": "rloo",
    "parent": 1,
    "takes_tools": False,
    "metrics": {"loss": 0.5},
    "digest": "aa",
    "uri": "s3://b/policies/aa.json",
    "kind": "adapter",
    "base_model": "tiny",
    "created_at": "2026-11-21T12:00:00Z",
}
JOB = {
    "training_job_id": "job-1",
    "algorithm": "rloo",
    "state": "completed",
    "requester": "ann",
    "trigger_reason": "manual",
    "created_at": "2026-11-21T12:00:00+00:00",
    "from_history": False,
    "events": {},
}
SNAPSHOT: dict[str, Any] = {
    "uri": "s3://b/snapshots/ab.json",
    "digest": "ab",
    "format": "trajectories",
    "rows": 2,
    "reward_function": "default 1",
    "reward_transform": "identity",
    "parent_policy": None,
    "filters": {"min_reward": 0.5},
    "left_out": {"below_min_reward": 3},
    "raters": {},
}


def lineage(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "policy": POLICY,
        "job": JOB,
        "snapshot": SNAPSHOT,
        "trajectories": EMPTY,
        "preferences": EMPTY,
        "rewards": [],
        "feedback": [],
        "announcements": [],
        "counted": 0,
        "missing": [],
        "parent": None,
    }
    return plain | changes


def drawn(answer: dict[str, Any]) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(lineage_tree(msgspec.convert(answer, LineageOut)))
    return captured.get()


def test_the_tree_goes_from_the_policy_to_trajectories_and_raters() -> None:
    reward = {"event_id": "r", "total": 0.75, "function": "default 1", "revision": 1, "at": "2026-11-21T12:00:00Z"}
    item = {"trajectory_id": "t1", "event_id": "e1", "task": "refund", "source": "client", "reward": reward}
    page = {"total": 2, "offset": 0, "items": [item]}
    feedback = [{"rater": "ann", "source": None, "kind": "thumbs", "count": 4}]
    functions = [{"function": "default 1", "trajectories": 2, "mean": 0.6, "newest_revision": 1}]
    text = drawn(lineage(trajectories=page, feedback=feedback, rewards=functions))
    for words in (
        "support@2-aaaaaaaa production (stable), ready",
        "parent support@1",
        "tools its engine's chat template shows it none",
        "job job-1 completed",
        "asked by ann (manual)",
        "snapshot ab of 2 trajectories",
        "left_out below_min_reward 3",
        "2 trajectories, 1 shown",
        "t1 task refund, client, reward 0.750 (revision 1)",
        "rewards of default 1: 2 trajectories, mean 0.600, newest revision 1",
        "feedback ann (thumbs) 4",
    ):
        assert words in text


def test_missing_pieces_are_named() -> None:
    text = drawn(lineage(job=None, snapshot=None, missing=["snapshot ab is not in the object store any more"]))
    assert "missing: snapshot ab is not in the object store any more" in text


def test_a_trajectory_that_is_gone_is_shown_as_gone() -> None:
    gone = {"trajectory_id": "t1", "event_id": None}
    assert "t1 (not stored any more)" in drawn(lineage(trajectories={"total": 1, "offset": 0, "items": [gone]}))


def test_a_parent_is_a_branch_of_its_own() -> None:
    parent = lineage(policy=POLICY | {"version": 1, "name": "support@1-bbbbbbbb", "stage": "archived"})
    assert "support@1-bbbbbbbb archived" in drawn(lineage(parent=parent))
