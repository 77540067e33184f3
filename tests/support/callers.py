"""Callers in front of an application, keys in the bucket, and a coordinator that knows whose keys they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.state import KEYS, Key
from ratchet.core.rules.access import ANYONE, Caller, hash_of, new_key
from ratchet.core.service.asgi import Answer, AsgiApp, Find, Handler, Headers, Request, json_response
from ratchet.core.service.authentication import Authentication, session_of, unauthenticated


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


def coordinator_of(keys: Mapping[str, Sequence[str]]) -> Find:
    """A coordinator that knows these keys, each with its scopes, and `open`, as where none are asked for."""

    async def answer(request: Request) -> Answer:
        key = (request.header(b"authorization") or "").removeprefix("Bearer ")
        if key == "open":
            return json_response(session_of(ANYONE))
        if key not in keys:
            raise unauthenticated("no API key")
        return json_response(session_of(Caller("key_0000000000", "ada", frozenset(keys[key]))))

    def find(method: str, path: str) -> Handler:
        assert (method, path) == ("GET", "/v1/session")
        return answer

    return find
