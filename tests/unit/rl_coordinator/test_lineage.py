"""A policy has learned from its ancestors' data, and from nobody else's."""

from __future__ import annotations

import pytest

from ratchet.contract.state import PolicyVersion
from ratchet.errors import Rejected
from ratchet.rl_coordinator.registry.lineage import StartingPoint, ancestry, consumed_snapshots, starting_point
from tests.support.training import NOON


def policy(version: int, parent: int | None, dataset: str | None = "", stage: str = "archived") -> PolicyVersion:
    return PolicyVersion(
        role="support",
        version=version,
        name=f"support@{version}-dddddddd",
        digest="d" * 64,
        uri=f"s3://b/policies/{version}.json",
        kind="adapter",
        base_model="base",
        created_at=NOON,
        stage=stage,
        parent=parent,
        dataset_digest=f"snapshot {version}" if dataset == "" else dataset,
    )


def test_the_lineage_is_the_policy_and_its_ancestors() -> None:
    known = {1: policy(1, None), 2: policy(2, 1), 3: policy(3, 1, stage="refused"), 4: policy(4, 2)}
    assert [each.version for each in ancestry(4, known)] == [4, 2, 1]
    assert consumed_snapshots(4, known) == ["snapshot 4", "snapshot 2", "snapshot 1"]


@pytest.mark.parametrize("stage", ["refused", "rolled_back", "superseded", "a stage of a later release"])
def test_a_candidate_that_never_came_to_serve_releases_its_data(stage: str) -> None:
    known = {1: policy(1, None), 2: policy(2, 1, stage=stage)}
    assert consumed_snapshots(1, known) == ["snapshot 1"]


def test_a_role_without_a_policy_has_consumed_nothing() -> None:
    assert consumed_snapshots(None, {}) == []


def test_policies_made_elsewhere_end_or_skip_the_line() -> None:
    assert consumed_snapshots(3, {3: policy(3, 2), 2: policy(2, 1, dataset=None)}) == ["snapshot 3"]


def test_a_circle_ends() -> None:
    assert [each.version for each in ancestry(1, {1: policy(1, 2), 2: policy(2, 1)})] == [1, 2]


def test_stable_means_the_policy_that_serves_now() -> None:
    assert starting_point("stable", policy(2, 1), {}) == StartingPoint("s3://b/policies/2.json", "support@2-dddddddd")


def test_a_registered_policy_can_be_named_by_its_uri_and_any_other_model_is_taken_as_it_is() -> None:
    known = {1: policy(1, None)}
    assert starting_point("s3://b/policies/1.json", None, known).parent == "support@1-dddddddd"
    assert starting_point("org/model", policy(1, None), known) == StartingPoint("org/model", None)


def test_a_role_without_a_stable_policy_needs_a_base_model() -> None:
    with pytest.raises(Rejected, match="name a base_model"):
        starting_point("stable", None, {})
