"""A policy has learned from the data of its ancestors, and from no other policy's."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.core.contract.state import PolicyVersion, Route, ServedPolicy
from ratchet.core.errors import Rejected
from ratchet.rl_coordinator.registry.domain import Policies, StartingPoint, continues_stable
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


def registered(*versions: PolicyVersion, stable: int | None = None) -> Policies:
    """The policies of a role; `stable`: the version that serves it."""
    known = {policy.version: policy for policy in versions}
    if stable is None:
        return Policies(None, known)
    served = ServedPolicy(version=stable, name=known[stable].name, digest=known[stable].digest)
    return Policies(Route(role="support", stable=served, next_version=9), known)


def test_the_lineage_is_the_policy_and_its_ancestors() -> None:
    known = registered(policy(1, None), policy(2, 1), policy(3, 1, stage="refused"), policy(4, 2), stable=4)
    assert [each.version for each in known.ancestry(4)] == [4, 2, 1]
    assert known.consumed_snapshots() == ["snapshot 4", "snapshot 2", "snapshot 1"]


@pytest.mark.parametrize("stage", ["refused", "rolled_back", "superseded", "a stage of a later release"])
def test_a_candidate_that_never_came_to_serve_releases_its_data(stage: str) -> None:
    known = registered(policy(1, None), policy(2, 1, stage=stage), stable=1)
    assert known.consumed_snapshots() == ["snapshot 1"]


def test_a_role_without_a_policy_has_consumed_nothing() -> None:
    assert registered().consumed_snapshots() == []


def test_policies_made_elsewhere_end_or_skip_the_line() -> None:
    known = registered(policy(3, 2), policy(2, 1, dataset=None), stable=3)
    assert known.consumed_snapshots() == ["snapshot 3"]


def test_data_of_a_stable_parent_stays_fresh_beside_refused_candidates() -> None:
    """Versions 3 to 11 were trained from 2, and refused."""
    refused = [policy(version, 2, stage="refused") for version in range(3, 12)]
    known = registered(policy(1, None), policy(2, 1), *refused, policy(12, 11), stable=2)
    away = known.generations("support@2-dddddddd")
    assert (away[2], away[1]) == (0, 1)
    assert {away[version] for version in range(3, 12)} == {1}
    assert away[12] == 2


def test_policies_of_another_line_and_of_no_known_start_have_no_age() -> None:
    known = registered(policy(1, None), policy(2, 1), policy(5, None))
    assert known.generations("support@2-dddddddd") == {2: 0, 1: 1}
    assert known.generations("support@99-dddddddd") == known.generations(None) == {}
    assert registered(policy(1, 2), policy(2, 1)).generations("support@1-dddddddd") == {1: 0, 2: 1}


def test_a_circle_ends() -> None:
    assert [each.version for each in registered(policy(1, 2), policy(2, 1)).ancestry(1)] == [1, 2]


def test_stable_means_the_policy_that_serves_now() -> None:
    serving = registered(policy(2, 1), stable=2)
    assert serving.starting_point("stable") == StartingPoint("s3://b/policies/2.json", "support@2-dddddddd")
    names = ("stable", "Current Stable", "s3://b/policies/x.json")
    assert [continues_stable(name) for name in names] == [True, True, False]


def test_registered_policy_is_named_by_uri_and_other_models_are_kept() -> None:
    known = registered(policy(1, None), stable=1)
    assert known.starting_point("s3://b/policies/1.json").parent == "support@1-dddddddd"
    assert known.starting_point("org/model") == StartingPoint("org/model", None)


def test_a_role_without_a_stable_policy_needs_a_base_model() -> None:
    with pytest.raises(Rejected, match="name a base_model"):
        registered(policy(1, None)).starting_point("stable")


def test_calls_as_agents_send_them_are_no_model_to_train() -> None:
    as_sent = msgspec.structs.replace(policy(0, None), uri="")
    with pytest.raises(Rejected, match="no stable policy yet"):
        registered(as_sent, stable=0).starting_point("stable")
