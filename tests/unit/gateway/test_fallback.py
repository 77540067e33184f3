"""Who may answer in the place of a policy that failed."""

from __future__ import annotations

from ratchet.contract import named_id
from ratchet.contract.state import Route, ServedPolicy
from ratchet.gateway.domain.arms import Arm
from ratchet.gateway.domain.routes import claim_of, fall_back, lend
from ratchet.rules.arms import Assignment

OLD = ServedPolicy(version=1, name="support@1-aaaaaaaa", digest="a" * 64)
NEW = ServedPolicy(version=2, name="support@2-bbbbbbbb", digest="b" * 64)
OTHER = ServedPolicy(version=0, name="provider:big", digest="")
ROUTE = Route(role="support", stable=OLD)
CANARY = Assignment("canary", 0.5, NEW)


def talk() -> Arm:
    return Arm(named_id("trajectory", "f"), "support")


def test_stable_takes_the_place_of_a_canary_for_good_and_mixes_the_trajectory() -> None:
    conversation = talk()
    assert fall_back(ROUTE, conversation, CANARY) == Assignment("stable", 0.5, OLD)
    assert conversation.assignment == Assignment("stable", 0.5, OLD)
    assert conversation.mixed is True


def test_stable_takes_the_place_of_a_former_stable_that_a_trajectory_kept() -> None:
    promoted = Route(role="support", stable=NEW, previous=OLD)
    assert fall_back(promoted, talk(), Assignment("stable", 0.0, OLD)) == Assignment("stable", 0.0, NEW)


def test_stable_is_not_asked_twice_and_never_in_the_place_of_a_version_asked_for_by_name() -> None:
    for failed in (Assignment("stable", 0.0, OLD), Assignment("pinned", 0.0, NEW)):
        conversation = talk()
        assert fall_back(ROUTE, conversation, failed) is None
        assert conversation.mixed is False
    assert fall_back(None, talk(), CANARY) is None


def test_another_server_mixes_a_trajectory_unless_the_role_never_had_a_policy() -> None:
    conversation = talk()
    lent = lend(OTHER, conversation, CANARY)
    assert lent is not None
    assert claim_of("support", lent, mixed=conversation.mixed).arm == "mixed"
    fresh = talk()
    assert lend(OTHER, fresh, None) == Assignment("stable", 0.0, OTHER)
    assert fresh.mixed is False
    assert lend(OTHER, fresh, Assignment("pinned", 0.0, NEW)) is None
