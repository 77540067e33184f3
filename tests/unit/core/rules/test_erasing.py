"""Whose a message is: by whole ids, and by when it began."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from ratchet.core.contract.erasure import AGENT, ASKED, SESSION, TRAJECTORY, USER, Erasure
from ratchet.core.rules.erasing import CLOCKS, Erasures, is_of, names_in

ASKED_AT = datetime(2026, 3, 2, 15, tzinfo=UTC)


def erasure(kind: str, ref: str, role: str | None = None) -> Erasure:
    return Erasure(
        erasure_id="0199f7b0-0000-7111-8222-333344445555",
        kind=kind,
        ref=ref,
        role=role,
        asked_by="test",
        asked_at=ASKED_AT,
        phase=ASKED,
    )


def named(**members: Any) -> Any:
    return names_in(msgspec.json.encode({"role": "support", **members}))


@pytest.mark.parametrize(
    ("kind", "member"),
    [
        *((USER, "user_ref"), (SESSION, "session_id"), (AGENT, "agent_id")),
        *((TRAJECTORY, "trajectory_id"), (TRAJECTORY, "workflow_id")),
    ],
)
def test_ref_that_begins_alike_is_another_one(kind: str, member: str) -> None:
    assert is_of(erasure(kind, "mia"), named(**{member: "mia"}))
    for other in ("mia-2", "mi", "MIA", " mia", ""):
        assert not is_of(erasure(kind, "mia"), named(**{member: other}))


def test_erasure_of_a_role_leaves_other_roles_alone() -> None:
    assert is_of(erasure(USER, "mia", "support"), named(user_ref="mia"))
    assert not is_of(erasure(USER, "mia", "billing"), named(user_ref="mia"))


def test_past_of_a_clock_that_is_ahead_stays_erased() -> None:
    late = named(user_ref="mia", timestamp=(ASKED_AT + CLOCKS).isoformat())
    new = named(user_ref="mia", timestamp=(ASKED_AT + CLOCKS + timedelta(seconds=1)).isoformat())
    assert is_of(erasure(USER, "mia"), late)
    assert not is_of(erasure(USER, "mia"), new)


def test_trajectory_stays_erased_whenever_it_claims_to_be() -> None:
    assert is_of(erasure(TRAJECTORY, "t"), named(parent_trajectory_id="t", timestamp="2099-01-01T00:00:00Z"))


def test_telemetry_is_of_the_user_whom_a_span_names() -> None:
    spans = [{"span_id": "1"}, {"span_id": "2", "user_ref": "mia", "started_at": "2026-03-02T14:00:00Z"}]
    assert is_of(erasure(USER, "mia"), named(spans=spans))
    assert not is_of(erasure(USER, "mia-2"), named(spans=spans))


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b'{"user_ref": ["mia"]}', b'{"spans": "mia"}', b"\xff", b"{" * 5000]
)
def test_message_that_cannot_be_read_names_nothing(body: bytes) -> None:
    assert not is_of(erasure(USER, "mia"), names_in(body))


def test_instant_without_a_zone_is_utc_and_a_wrong_one_is_past() -> None:
    assert is_of(erasure(USER, "mia"), named(user_ref="mia", timestamp="2026-03-02T14:00:00"))
    assert is_of(erasure(USER, "mia"), named(user_ref="mia", timestamp="soon"))


def test_message_is_compared_with_no_erasure_of_another_ref() -> None:
    class Counted(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    many = Erasures([erasure(TRAJECTORY, Counted(f"t{number}")) for number in range(1000)])
    Counted.compared = 0
    assert many.which(named(trajectory_id="t7", user_ref="mia")) is many.oldest_first[7]
    assert Counted.compared < 10


def test_of_several_erasures_the_oldest_that_covers_a_message_counts() -> None:
    spans = [{"span_id": "1", "user_ref": "mia"}, {"span_id": "2", "user_ref": 7}]
    asked = [erasure(USER, "mia", "billing"), erasure(USER, "mia"), erasure(USER, "mia", "support")]
    assert Erasures(asked).which(named(spans=spans)) is asked[1]
    assert Erasures(asked).which(named(user_ref=["mia"], spans=[3, None])) is None
