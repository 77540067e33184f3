"""API keys over HTTP, as the coordinator creates, lists and revokes them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ratchet.core.contract.http.answers import Answer, Instant
from ratchet.core.contract.values import listed

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class LimitsIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that a key may use; a member that is absent sets no limit."""

    requests_per_minute: AtLeastOne | None = None
    """Of one gateway process."""
    tokens_per_minute: AtLeastOne | None = None
    """Tokens of prompts and answers, of one gateway process."""
    usd_per_day: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """US dollars in a day in UTC, of all gateways together."""


class KeyIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to create."""

    name: str
    """What people, logs and audit logs call it: letters, digits, spaces and `_.@/-`, at most 64."""
    scopes: list[str]
    """Such as `infer:support`, `feedback:*`, `train`, `operate`, `view`, `annotate`, `admin`."""
    expires_at: Instant | None = None
    """From then on it opens nothing; absent: it does not expire."""
    limits: LimitsIn | None = None


class LimitsOut(Answer, frozen=True, kw_only=True):
    """The most that a key may use; null sets no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    usd_per_day: float | None = None


class KeyOut(Answer, frozen=True, kw_only=True):
    """A key, without what it is checked by."""

    key_id: str
    """Its public name, which stands in turns, logs and metrics."""
    name: str
    scopes: list[str]
    state: Annotated[str, listed("usable", "expired", "revoked")]
    created_at: Instant
    created_by: str
    expires_at: Instant | None
    revoked_at: Instant | None
    revoked_by: str | None
    limits: LimitsOut | None


class KeyCreatedOut(Answer, frozen=True, kw_only=True):
    """A fresh key. Nothing stores the key itself: it is shown this once."""

    key: str
    """What a request sends as `Authorization: Bearer <key>`."""
    about: KeyOut


class KeysOut(Answer, frozen=True, kw_only=True):
    """All keys that were ever created, the newest first."""

    keys: list[KeyOut]
