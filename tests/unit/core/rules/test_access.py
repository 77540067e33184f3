"""Scopes, callers and keys: what is allowed, what is refused and in which words."""

from __future__ import annotations

import re
from datetime import timedelta

import msgspec
import pytest

from ratchet.core.contract.state import Key
from ratchet.core.errors import BadRequest, Forbidden
from ratchet.core.rules.access import (
    AGENT_SCOPES,
    ALL_ROLES,
    ANYONE,
    NAME,
    NAMING_ROLES,
    UNAUTHENTICATED,
    Caller,
    KeyScope,
    checked_scopes,
    hash_of,
    lacks_admin,
    new_key,
    why_unusable,
)
from tests.support.contract_files import ALL_SCHEMAS
from tests.support.messages import AT


def holder(*scopes: str) -> Caller:
    return Caller("key_0123456789", "ci", frozenset(scopes))


def key(**members: object) -> Key:
    given = {
        "key_id": "key_0123456789",
        "name": "ci",
        "hash": hash_of(b"x"),
        "scopes": ["admin"],
        "created_at": AT,
        "created_by": "ops",
    }
    return msgspec.convert({**given, **members}, Key)


@pytest.mark.parametrize(
    ("held", "scope", "role", "allowed"),
    [
        ("infer:support", KeyScope.INFER, "support", True),
        ("infer:support", KeyScope.INFER, "sales", False),
        ("infer:support", KeyScope.INFER, None, True),
        ("infer:support", KeyScope.FEEDBACK, "support", False),
        ("infer:*", KeyScope.INFER, "sales", True),
        ("infer:*", KeyScope.FEEDBACK, "sales", False),
        ("infer:*", KeyScope.FEEDBACK, None, False),
        ("infer:sup", KeyScope.INFER, "support", False),
        ("infer:support", KeyScope.INFER, "sup", False),
        ("infer:support", KeyScope.INFER, "*", False),
        ("train", KeyScope.TRAIN, None, True),
        ("train", KeyScope.VIEW, None, True),
        ("train", KeyScope.OPERATE, None, False),
        ("operate", KeyScope.VIEW, None, True),
        ("operate", KeyScope.TRAIN, None, False),
        ("annotate", KeyScope.VIEW, None, True),
        ("annotate", KeyScope.FEEDBACK, "support", True),
        ("annotate", KeyScope.FEEDBACK, None, True),
        ("annotate", KeyScope.INFER, None, False),
        ("train:support", KeyScope.TRAIN, "support", True),
        ("train:support", KeyScope.TRAIN, None, True),
        ("train:support", KeyScope.VIEW, "support", True),
        ("train:support", KeyScope.TRAIN, "sales", False),
        ("train:support", KeyScope.VIEW, "sales", False),
        ("annotate:support", KeyScope.FEEDBACK, "support", True),
        ("annotate:support", KeyScope.FEEDBACK, "sales", False),
        ("view:*", KeyScope.VIEW, "sales", True),
        ("view:acme-*", KeyScope.VIEW, "acme-support", True),
        ("view:acme-*", KeyScope.VIEW, "acme", False),
        ("view:acme-*", KeyScope.VIEW, "acmecorp-support", False),
        ("view:acme-*", KeyScope.VIEW, "acme-*", True),
        ("infer:acme_*", KeyScope.INFER, "acme_support", True),
        ("view", KeyScope.TRAIN, None, False),
        ("view", KeyScope.INFER, "support", False),
        ("view", KeyScope.ADMIN, None, False),
    ],
)
def test_scope_allows_what_it_includes(held: str, scope: KeyScope, role: str | None, allowed: bool) -> None:
    assert holder(held).allows(scope, role) is allowed


@pytest.mark.parametrize("scope", [*KeyScope])
def test_an_admin_may_do_everything_and_an_unauthenticated_caller_nothing(scope: KeyScope) -> None:
    assert holder("admin").allows(scope, "support")
    assert ANYONE.allows(scope, "support")
    assert not UNAUTHENTICATED.allows(scope, "support")
    assert not UNAUTHENTICATED.allows(scope)


def test_refusal_names_the_scope_that_is_missing_and_the_public_id_of_key() -> None:
    with pytest.raises(Forbidden, match="key_0123456789 lacks the scope `infer:sales`"):
        holder("infer:support").require(KeyScope.INFER, "sales")
    with pytest.raises(Forbidden, match="`train`"):
        holder("view").require(KeyScope.TRAIN)
    with pytest.raises(Forbidden, match="`feedback:<role>`"):
        UNAUTHENTICATED.require(KeyScope.FEEDBACK)


def test_with_a_key_the_declared_name_is_only_whom_it_acts_for() -> None:
    assert holder("operate").actor("alice") == "ci (key_0123456789) on behalf of alice"
    assert holder("operate").actor() == holder("operate").actor("ci") == "ci (key_0123456789)"
    assert ANYONE.actor("alice") == "alice"
    assert ANYONE.actor() == "anonymous"


@pytest.mark.parametrize(
    "scope",
    [
        "",
        "infer",
        "infer:",
        "infer:A",
        "infer:a b",
        "infer:**",
        "infer:a:b",
        "admin:a",
        "admin:*",
        "train:",
        "view:acme*",
        "view:*-acme",
        "view:acme-*-x",
        "view:acme-**",
        "Admin",
        "*",
        "all",
        "infer:\n",
    ],
)
def test_a_scope_that_there_is_not_is_refused(scope: str) -> None:
    with pytest.raises(BadRequest, match="no scope"):
        checked_scopes(["view", scope])
    assert not re.search(ALL_SCHEMAS["key.v1"]["properties"]["scopes"]["items"]["pattern"].replace("$", r"\Z"), scope)


def test_scopes_come_sorted_and_once_and_fit_the_contract() -> None:
    every = [f"{scope}:support" if scope in NAMING_ROLES else str(scope) for scope in KeyScope]
    every += [f"view:{roles}" for roles in ("support", "*", "acme-*", "acme_*", "-*")]
    pattern = ALL_SCHEMAS["key.v1"]["properties"]["scopes"]["items"]["pattern"]
    assert checked_scopes([*every, *every, *AGENT_SCOPES]) == tuple(sorted({*every, *AGENT_SCOPES}))
    assert all(re.search(pattern, scope) for scope in [*every, *AGENT_SCOPES])
    with pytest.raises(BadRequest, match="opens nothing"):
        checked_scopes([])


def test_a_fresh_key_is_long_unlike_any_other_and_its_id_fits_the_contract() -> None:
    made = [new_key() for _ in range(100)]
    assert len({key_id for key_id, _ in made}) == len({secret for _, secret in made}) == 100
    for key_id, secret in made:
        assert re.search(ALL_SCHEMAS["key.v1"]["properties"]["key_id"]["pattern"], key_id)
        assert re.fullmatch(r"rtk_[A-Za-z0-9_-]{43}", secret)
        assert key_id.removeprefix("key_") not in secret
    assert NAME.pattern in ALL_SCHEMAS["key.v1"]["properties"]["name"]["pattern"]


def test_a_key_opens_nothing_once_it_is_revoked_or_from_its_expiry_on() -> None:
    assert why_unusable(key(), AT) is None
    assert why_unusable(key(expires_at=AT + timedelta(microseconds=1)), AT) is None
    assert "expired" in (why_unusable(key(expires_at=AT), AT) or "")
    assert "revoked" in (why_unusable(key(revoked_at=AT + timedelta(days=1)), AT) or "")


def test_a_time_without_a_zone_cannot_be_read() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**msgspec.to_builtins(key()), "expires_at": "2026-01-01T00:00:00"}, Key)


@pytest.mark.parametrize("role", ["support", "acme-support", "acme-", "acme", "acmecorp", "sales", "a.b"])
@pytest.mark.parametrize("scopes", [["view:support", "train:acme-*"], ["view:acme-*"], ["infer:*"], ["view:a-b"]])
def test_pattern_for_queries_means_the_same_roles(scopes: list[str], role: str) -> None:
    roles = holder(*scopes).roles(KeyScope.VIEW)
    assert roles.pattern is not None
    assert (re.search(roles.pattern, role) is not None) == (role in roles)
    assert ALL_ROLES.pattern is None


def test_admins_that_expired_or_were_revoked_are_none() -> None:
    assert lacks_admin([], AT)
    assert lacks_admin([key(scopes=["train"]), key(revoked_at=AT), key(expires_at=AT)], AT)
    assert not lacks_admin([key()], AT)
