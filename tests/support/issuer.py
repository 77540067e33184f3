"""An issuer of OpenID Connect on a real port, with keys of its own: it signs every browser in at once."""

from __future__ import annotations

import hashlib
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from ratchet.core.service.people import People
from ratchet.core.service.settings import OidcSettings

CLIENT = "ratchet"
RIGHTS = {"help": ["operator:support"], "readers": ["viewer"], "acme": ["owner:acme-*"], "platform": ["owner"]}


@cache
def first_key() -> RSAKey | ECKey:
    """Of every issuer: making one takes a while."""
    return new_key("one")


def new_key(kid: str, kind: str = "RSA") -> RSAKey | ECKey:
    named: Any = {"kid": kid, "use": "sig"}
    if kind == "RSA":
        return RSAKey.generate_key(2048, named)
    return ECKey.generate_key("P-256", named)


@dataclass
class LocalIssuer:
    """What it answers, for tests to change."""

    url: str = ""
    keys: list[Any] = field(default_factory=lambda: [first_key()])
    groups: list[str] = field(default_factory=lambda: ["help"])
    published: Any = None
    """In the place of the key set."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Claims besides those of every token, or in their place."""
    asked: list[str] = field(default_factory=list[str])
    """The path of each request."""
    codes: dict[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """What was asked for with each code, until it is used."""

    def settings(self, **changes: Any) -> OidcSettings:
        given = {"issuer": self.url, "client_id": CLIENT, "rights": RIGHTS}
        return OidcSettings.model_validate(given | changes)

    def people(self, **changes: Any) -> People:
        return People(self.settings(), **changes)

    def token(self, key: Any = None, alg: str = "RS256", **claims: Any) -> str:
        """A token of Ada, who is in `groups`; a claim of None is left out."""
        now, signs = int(time.time()), key or self.keys[-1]
        given = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "u-1",
            "email": "ada@example.com",
            "groups": self.groups,
            "iat": now,
            "exp": now + 300,
            **self.extra,
            **claims,
        }
        kept = {name: value for name, value in given.items() if value is not None}
        return jwt.encode({"alg": alg, "kid": signs.kid}, kept, signs, [alg])

    async def answer(self, request: web.Request) -> web.Response:
        """Any request: forms too, which no server of ours takes."""
        routes = {
            "/.well-known/openid-configuration": self._about,
            "/keys": self._keys,
            "/authorize": self._authorize,
            "/token": self._token,
        }
        self.asked.append(request.path)
        given = dict(request.query) | dict(await request.post())
        return routes[request.path]({name: str(value) for name, value in given.items()})

    def _about(self, _: Mapping[str, str]) -> web.Response:
        places = {"jwks_uri": "keys", "authorization_endpoint": "authorize", "token_endpoint": "token"}
        return web.json_response({"issuer": self.url, **{name: f"{self.url}/{at}" for name, at in places.items()}})

    def _keys(self, _: Mapping[str, str]) -> web.Response:
        own = {"keys": [key.as_dict(private=False) for key in self.keys]}
        return web.json_response(own if self.published is None else self.published)

    def _authorize(self, asked: Mapping[str, str]) -> web.Response:
        code = hashlib.sha256(urlencode(asked).encode()).hexdigest()
        self.codes[code] = asked
        back = urlencode({"code": code, "state": asked["state"], "iss": self.url})
        return web.Response(status=303, headers={"location": f"{asked['redirect_uri']}?{back}"})

    def _token(self, given: Mapping[str, str]) -> web.Response:
        asked = self.codes.pop(given["code"], None)
        verified = urlsafe_b64encode(hashlib.sha256(given["code_verifier"].encode()).digest()).decode().rstrip("=")
        if asked is None or verified != asked["code_challenge"] or given["redirect_uri"] != asked["redirect_uri"]:
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response({"id_token": self.token(nonce=asked["nonce"]), "token_type": "Bearer"})


@asynccontextmanager
async def issuing() -> AsyncIterator[LocalIssuer]:
    """An issuer, while it listens."""
    local, app = LocalIssuer(), web.Application()
    app.router.add_route("*", "/{path:.*}", local.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        local.url = "http://{}:{}".format(*runner.addresses[0][:2])
        yield local
    finally:
        await runner.cleanup()
