"""Callers in front of an application, for tests of what lies behind the authentication, and keys in the bucket."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.state import KEYS, Key
from ratchet.core.rules.access import ANYONE, Caller, hash_of, new_key
from ratchet.core.service.asgi import AsgiApp, Headers
from ratchet.core.service.authentication import Authentication


def called_by(app: AsgiApp, caller: Caller = ANYONE) -> Authentication:
    """The application behind an authentication that takes every request for the caller's."""

    async def identify(_: Headers) -> Caller:
        return caller

    return Authentication(app, identify)


async def made(bus: Bus, *scopes: str, **members: Any) -> tuple[Key, str]:
    """A key in the bucket, and the key itself."""
    key_id, secret = new_key()
    given = {
        "key_id": key_id,
        "name": "test",
        "hash": hash_of(secret.encode()),
        "scopes": list(scopes),
        "created_at": datetime.now(UTC),
        "created_by": "test",
    }
    key = msgspec.convert({**given, **members}, Key)
    await Bucket(bus, KEYS, Key).put(key_id, key)
    return key, secret
