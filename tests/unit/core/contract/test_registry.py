"""A policy for people: its stage in the registry, and whether it is ready."""

from __future__ import annotations

import pytest

from ratchet.core.contract.state import Route, registry_stage
from tests.support.canary_world import ROLE, policy, served

ROUTE = Route(role=ROLE, stable=served(2), previous=served(1))


@pytest.mark.parametrize(
    ("version", "stage", "shown"),
    [
        (2, "stable", "production"),
        (1, "archived", "archived"),
        (3, "registered", "staging"),
        (3, "canary", "staging"),
        (3, "refused", "archived"),
        (3, "rolled_back", "archived"),
    ],
)
def test_the_stage_in_the_registry(version: int, stage: str, shown: str) -> None:
    assert registry_stage(policy(version, stage=stage), ROUTE) == shown


def test_route_decides_which_policy_is_in_production_not_policys_own_stage() -> None:
    assert registry_stage(policy(2, stage="canary"), ROUTE) == "production"
    assert registry_stage(policy(1, stage="stable"), ROUTE) == "archived"


def test_without_a_route_nothing_is_in_production() -> None:
    assert registry_stage(policy(1), None) == "staging"


@pytest.mark.parametrize(
    ("stage", "status"),
    [
        ("registered", "pending"),
        ("canary", "ready"),
        ("stable", "ready"),
        ("archived", "ready"),
        ("refused", "failed"),
        ("rolled_back", "failed"),
        ("something newer", "pending"),
    ],
)
def test_a_policy_is_ready_when_it_passed_and_was_not_taken_back(stage: str, status: str) -> None:
    assert policy(1, stage=stage).status == status
