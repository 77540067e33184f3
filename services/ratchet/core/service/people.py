"""People who sign in at an issuer (OpenID Connect): whose token it is, and what its holder may do.

    people = People(shared.oidc)                     # None without an issuer: keys alone
    caller = await people.caller_of(token)           # raises HttpError (401) for a token that opens nothing

A token is a JWT that the issuer signed with one of the keys that it publishes, for our client, a while ago at most. The
issuer withdraws a person by no longer giving tokens: those it gave count until they expire, for an hour at most. So a
stolen or withdrawn one is good for as long. Nothing is kept of people: each request is judged by its token.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, cast

import msgspec
import structlog
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet

from ratchet.bus.clock import utc_now
from ratchet.bus.message import JsonObject, decode
from ratchet.core.errors import Unavailable
from ratchet.core.rules.access import ID_LENGTH, NAME, Caller
from ratchet.core.service.authentication import unauthenticated
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.core.service.settings import OidcSettings

log = structlog.get_logger()

ALGORITHMS = tuple(f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512))
"""Signatures that the holder of a public key cannot make: never `none`, never HS256."""
KEY_KINDS = frozenset({"RSA", "EC"})
LONGEST_S = 3600.0
"""No token counts for longer after it was given, whatever it says of itself."""
SKEW_S = 30
"""The clocks of issuer and service may differ by so much."""
TOKEN_BYTES = 8192
"""No token is longer: more is not even read. A token with hundreds of groups is as long."""
ISSUER_S, ISSUER_BYTES = 5.0, 256 * 1024
"""Longest wait for an answer of the issuer, and most bytes of one."""
KEYS_S, AGAIN_S, STALE_S = 300.0, 10.0, 3600.0
"""Its keys are read again after so long, at once for one that is not among them but no sooner than `AGAIN_S` after the
last time, and count for `STALE_S` while it does not answer."""
_UNPROVEN = (False, "false")
"""Of an address that the issuer does not vouch for; some write it as a text."""
ID_PREFIX = "oidc_"
"""Begins the id of a person."""


class Issuer(msgspec.Struct, frozen=True):
    """What an issuer publishes of itself (OpenID Connect Discovery 1.0)."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str
    token_endpoint: str


class _Published(msgspec.Struct, frozen=True):
    keys: list[JsonObject]


class People:
    """Judges tokens of one issuer."""

    def __init__(
        self,
        settings: OidcSettings,
        now: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._now = now
        self._monotonic = monotonic
        self._keys = KeySet([])
        self._read_at = self._tried_at = -STALE_S
        self._reading = asyncio.Lock()

    async def caller_of(self, token: bytes) -> Caller:
        """Who holds a token. Raises `HttpError` (401) for one that opens nothing, and `Unavailable` while the issuer's
        keys are not known."""
        claims = await self.claims_of(token)
        held = _at(claims, self.settings.claim)
        groups = [held] if isinstance(held, str) else cast("list[object]", held) if isinstance(held, list) else []
        scopes = {scope for group in groups for scope in self.settings.scopes_of(str(group))}
        return Caller(id_of(claims), name_of(claims), frozenset(scopes))

    async def claims_of(self, token: bytes, nonce: str | None = None) -> JsonObject:
        """What the issuer says in a token, of the sign-in with a `nonce`. Raises as `caller_of` does."""
        if len(token) > TOKEN_BYTES:
            raise unauthenticated(f"the token of the sign-in is longer than {TOKEN_BYTES} bytes: is it of many groups?")
        try:
            claims = (await self._decoded(token)).claims
            self._check(claims, nonce)
        except (JoseError, ValueError, TypeError, OverflowError, RecursionError) as error:
            log.info("token refused", reason=f"{type(error).__name__}: {error}"[:200])  # no help for a forger
            raise unauthenticated("the sign-in has expired or is not valid here: sign in again") from error
        return claims

    async def issuer(self) -> Issuer:
        """What the issuer publishes of itself. Raises `Unavailable`."""
        at = self.settings.issuer.rstrip("/")
        about = await self._get(f"{at}/.well-known/openid-configuration", Issuer)
        if about.issuer.rstrip("/") != at:
            raise Unavailable(f"the issuer {at} calls itself {about.issuer[:200]}: RATCHET_OIDC must name it so")
        is_safe = at.startswith("https://")
        if is_safe and not all(url.startswith("https://") for url in msgspec.structs.astuple(about)[1:]):
            raise Unavailable(f"the issuer {at} publishes addresses without TLS")
        return about

    def client(self) -> AsyncApiClient:
        """Asks the issuer: for a while, for little, and without following redirects."""
        return AsyncApiClient(Peer("the issuer", self.settings.issuer, {}, ISSUER_S, answer_bytes=ISSUER_BYTES))

    async def _decoded(self, token: bytes) -> jwt.Token:
        await self._read(KEYS_S)
        try:
            return jwt.decode(token, self._keys, ALGORITHMS)
        except InvalidKeyIdError:  # a key that is new there
            await self._read(AGAIN_S)
            return jwt.decode(token, self._keys, ALGORITHMS)

    def _check(self, claims: JsonObject, nonce: str | None) -> None:
        now = int(self._now().timestamp())
        registry = jwt.JWTClaimsRegistry(
            now=now,
            leeway=SKEW_S,
            iss={"essential": True, "value": self.settings.issuer},
            aud={"essential": True, "value": self.settings.client_id},
            exp={"essential": True},
            iat={"essential": True},
            sub={"essential": True},
        )
        registry.validate(claims)
        if nonce is not None and claims.get("nonce") != nonce:
            raise ValueError("given for another sign-in")
        if now - float(claims["iat"]) > LONGEST_S:
            raise ValueError("given longer ago than a token counts here")
        if claims.get("azp", self.settings.client_id) != self.settings.client_id:
            raise ValueError("given to another client")

    async def _read(self, age_s: float) -> None:
        """Have keys that are no older, if the issuer answers. Raises `Unavailable` where none can be used."""
        async with self._reading:
            now = self._monotonic()
            if now - self._read_at > age_s and now - self._tried_at > min(age_s, AGAIN_S):
                self._tried_at = now
                try:
                    published = await self._get((await self.issuer()).jwks_uri, _Published)
                    self._keys, self._read_at = KeySet(usable(published.keys)), self._monotonic()
                except Unavailable as error:
                    log.warning("the issuer's keys cannot be read", reason=str(error))
            if self._monotonic() - self._read_at > STALE_S:
                raise Unavailable("the issuer of the sign-in does not answer: try again, or use a key")

    async def _get(self, url: str, kind: type[Any]) -> Any:
        async with self.client() as http:
            reply = await http.exchange("GET", url)
        if reply.status != 200:
            raise Unavailable(f"the issuer answered {reply.status} to {url}")
        try:
            return decode(reply.content, kind)
        except msgspec.DecodeError as error:
            raise Unavailable(f"the issuer's answer to {url} cannot be read: {error}") from error


def usable(published: Iterable[JsonObject]) -> list[Key]:
    """The keys that sign tokens, of the kinds that are read; others are no reason to refuse these."""
    keys: list[Key] = []
    for key in published:
        if key.get("kty") in KEY_KINDS and key.get("use", "sig") == "sig":
            try:
                keys.append(JWKRegistry.import_key(cast("Any", key)))
            except (JoseError, ValueError, TypeError) as error:
                log.warning("a key of the issuer cannot be read", reason=f"{type(error).__name__}: {error}"[:200])
    return keys


def id_of(claims: Mapping[str, Any]) -> str:
    """The public id of a person: the same for a subject of an issuer, whatever its name and address become."""
    digest = hashlib.sha256(b"ratchet person\0" + msgspec.json.encode([claims["iss"], claims["sub"]])).hexdigest()
    return f"{ID_PREFIX}{digest[:ID_LENGTH]}"


def name_of(claims: Mapping[str, Any]) -> str:
    """What logs call a person: the address, unless the issuer does not vouch for it; else the subject."""
    address = claims.get("email") if claims.get("email_verified") not in _UNPROVEN else None
    name = re.sub(r"[^A-Za-z0-9 _.@/-]", "_", str(address or claims["sub"]))[:64]
    return name if NAME.fullmatch(name) else f"person {name}"[:64]


def _at(claims: Mapping[str, Any], path: str) -> object:
    """A claim, such as `groups`, or one within another, such as `realm_access.roles`."""
    if path in claims:  # a name may hold dots itself: https://example.com/groups
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        value = cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else None
    return value
