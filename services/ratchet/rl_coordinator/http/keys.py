"""The HTTP routes of API keys: create, list, revoke. Every service that takes keys follows the bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import decode
from ratchet.core.contract.http.keys import KeyCreatedOut, KeyIn, KeyOut, KeysOut
from ratchet.core.contract.state import KEYS, Key, KeyLimits
from ratchet.core.errors import BadRequest, NotFound, WrongState
from ratchet.core.rules.access import (
    NAME,
    Caller,
    KeyScope,
    checked_scopes,
    hash_of,
    lacks_admin,
    new_key,
    why_unusable,
)
from ratchet.core.service.control_api import ControlApi
from ratchet.core.service.keys import OWN_PREFIX

log = structlog.get_logger()

CREATED: Mapping[int, str] = {201: "The new key. It is shown this once."}
OF_SETTINGS = (
    "take it out of RATCHET_KEYS, of RATCHET_GATEWAY_API_KEYS, or of the gateway's file of keys; settings count from"
    " the next start"
)
"""How an operator revokes a key that no command can revoke."""
LOCKED_OUT = "No key could create or revoke any afterwards."
WRONG: Mapping[int, str] = {400: "The body is not what this document says.", 409: LOCKED_OUT}
UNKNOWN: Mapping[int, str] = {
    404: "There is no such key.",
    409: f"It is a key of the settings, or the last one of an administrator. {LOCKED_OUT}",
}


class KeyStore:
    """The bucket `keys`, and the keys of the settings beside it."""

    def __init__(self, bus: Bus, own: Sequence[Key]) -> None:
        """`own`: the keys of the settings."""
        self.bucket = Bucket(bus, KEYS, Key)
        self.own = own
        self._raw = Bucket(bus, KEYS, msgspec.Raw)

    async def all_keys(self) -> list[Key]:
        """Those of the settings, and every key of the bucket that can be read: the others open nothing, and must not
        hide these."""
        keys = [*self.own]
        for entry in (await self._raw.items()).values():
            with suppress(msgspec.DecodeError):  # `KnownKeys` reports it
                keys.append(decode(entry.value, Key))
        return keys


def key_out(key: Key, now: datetime) -> KeyOut:
    """A key without what it is checked by."""
    state = "revoked" if key.revoked_at is not None else "expired" if why_unusable(key, now) else "usable"
    return msgspec.convert({**msgspec.structs.asdict(key), "state": state}, KeyOut, from_attributes=True)


@dataclass(frozen=True)
class KeyRoutes:
    """`/v1/keys` and what is under it."""

    store: KeyStore
    now: Callable[[], datetime]

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        one = "/v1/keys/{key_id}/revoke"
        api.route("POST", "/v1/keys", self.create_key, scope=KeyScope.ADMIN, answers=CREATED, errors=WRONG)
        api.route("GET", "/v1/keys", self.list_keys, scope=KeyScope.ADMIN, reads=True)
        api.route("POST", one, self.revoke_key, scope=KeyScope.ADMIN, errors=UNKNOWN, urgent=True)

    async def create_key(self, body: KeyIn, caller: Caller) -> KeyCreatedOut:
        """Create a key. The first one must be an administrator's: it closes services that were open until then."""
        now, scopes = self.now(), checked_scopes(body.scopes)
        if NAME.fullmatch(body.name) is None:
            raise BadRequest("a name is letters, digits, spaces and _.@/-, at most 64", param="name")
        if body.expires_at is not None and body.expires_at <= now:
            raise BadRequest("the key would have expired already", param="expires_at")
        if KeyScope.ADMIN not in scopes and lacks_admin(await self.store.all_keys(), now):
            raise WrongState("create a key with the scope `admin` first: after this one no key could create others")
        key_id, secret = new_key()
        key = Key(
            key_id=key_id,
            name=body.name,
            hash=hash_of(secret.encode()),
            scopes=scopes,
            created_at=now,
            created_by=caller.actor(),
            expires_at=body.expires_at,
            limits=msgspec.convert(body.limits, KeyLimits, from_attributes=True) if body.limits else None,
        )
        await self.store.bucket.create(key_id, key)
        log.info("key created", key=key_id, name=key.name, scopes=scopes, actor=key.created_by)
        return KeyCreatedOut(key=secret, about=key_out(key, now))

    async def list_keys(self) -> KeysOut:
        """Every key that was ever created, also expired and revoked ones, and those of the coordinator's settings,
        without what it is checked by."""
        keys = sorted(await self.store.all_keys(), key=lambda key: key.created_at, reverse=True)
        return KeysOut(keys=[key_out(key, self.now()) for key in keys])

    async def revoke_key(self, key_id: str, caller: Caller) -> KeyOut:
        """Revoke a key: it opens nothing from now on. Revoking it again changes nothing."""
        now = self.now()
        keys = {key.key_id: key for key in await self.store.all_keys()}
        if key_id in {key.key_id for key in self.store.own}:
            raise WrongState(f"{key_id} is a key of the settings: {OF_SETTINGS}")
        if key_id not in keys:
            hint = (
                f"a key of a service's settings is not revoked: {OF_SETTINGS}" if key_id.startswith(OWN_PREFIX) else ""
            )
            raise NotFound(f"there is no key {key_id[:40]}; {hint or '`ratchet keys list` shows all'}")
        that = keys.pop(key_id)
        if lacks_admin([*keys.values()], now) and not lacks_admin([that], now):
            raise WrongState(f"{key_id} is the last key that can create others: create another one first")

        def revoked(key: Key | None) -> Key:
            if key is None:
                raise NotFound(f"the key {key_id} has just been deleted")
            if key.revoked_at is not None:
                return key
            return msgspec.structs.replace(key, revoked_at=now, revoked_by=caller.actor())

        key = await self.store.bucket.change(key_id, revoked)
        log.info("key revoked", key=key_id, name=key.name, actor=key.revoked_by)
        return key_out(key, now)
