"""People sign in to the console at their issuer: authorization code with PKCE (RFC 7636), then a cookie.

    GET /sign-in      to the issuer, with what this browser alone can answer
    GET /signed-in    back from it: the code becomes a token, the token a cookie
    POST /sign-out    the cookie goes

The cookie is the issuer's token itself: signed there, expiring there, and kept nowhere else. No script reads it, no
page of another site sends it, and it is for this host alone. Who comes back must have gone from here: state, nonce and
verifier follow from a secret that a short-lived cookie of this browser holds, and that is used once.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
import structlog

from ratchet.bus.message import decode
from ratchet.core.errors import RatchetError, Unavailable
from ratchet.core.service.asgi import AsgiApp, Headers, Receive, Response, Scope, Send, send_response
from ratchet.core.service.people import LONGEST_S, People
from ratchet.core.service.settings import is_loopback

log = structlog.get_logger()

START, BACK, OUT = "/sign-in", "/signed-in", "/sign-out"
PATHS: Mapping[str, tuple[str, ...]] = {START: ("GET", "HEAD"), BACK: ("GET",), OUT: ("POST",)}
WHERE = (b"x-ratchet-sign-in", START.removeprefix("/").encode())
"""Of every 401: where a page sends a person who has no key."""
STARTED_S = 600
"""A person has so long to sign in at the issuer."""
COOKIE_BYTES = 3800
"""Browsers keep no cookie of more than 4,096 bytes with its name and attributes."""
_TEXT = ((b"content-type", b"text/plain; charset=utf-8"),)


class _Given(msgspec.Struct, frozen=True):
    """What the issuer gives for a code."""

    id_token: str


@dataclass(frozen=True, slots=True)
class _Browser:
    """The addresses and cookies of the console, as the browser knows it: by TLS everywhere but on this machine."""

    host: str

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host.rpartition(":")[0].strip("[]") or self.host)

    @property
    def back(self) -> str:
        return f"{'http' if self.is_local else 'https'}://{self.host}{BACK}"

    def cookie(self, name: str) -> str:
        """A name that a browser takes from this host alone, where there is TLS."""
        return f"ratchet-{name}" if self.is_local else f"__Host-ratchet-{name}"

    def setting(self, name: str, value: str, age_s: int, same_site: str) -> tuple[bytes, bytes]:
        secure = "" if self.is_local else "; Secure"
        held = f"{self.cookie(name)}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite={same_site}{secure}"
        return b"set-cookie", held.encode()


class SignIn:
    """An ASGI application of the three paths."""

    def __init__(self, people: People, secret: str | None) -> None:
        """`secret`: ours at the issuer; None for a public client."""
        self._people = people
        self._secret = secret

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """ASGI entry point."""
        browser = _Browser(dict(scope["headers"]).get(b"host", b"").decode("latin-1"))
        if scope["method"] not in PATHS[scope["path"]]:
            answer = Response(405, b"method not allowed", _TEXT)
        elif scope["path"] == OUT:
            answer = Response(204, b"", [browser.setting("session", "", 0, "Strict")])
        else:
            try:
                answer = await (self._start(browser) if scope["path"] == START else self._back(scope, browser))
            except RatchetError as error:
                answer = _failed(503 if isinstance(error, Unavailable) else 401, str(error))
        await send_response(send, answer)

    async def _start(self, browser: _Browser) -> Response:
        """To the issuer. Raises `Unavailable`."""
        secret, issuer = secrets.token_urlsafe(32), await self._people.issuer()
        verifier = _derived(secret, "verifier")
        asked = {
            "response_type": "code",
            "client_id": self._people.settings.client_id,
            "redirect_uri": browser.back,
            "scope": "openid profile email",
            "state": _derived(secret, "state"),
            "nonce": _derived(secret, "nonce"),
            "code_challenge": _hashed(verifier),
            "code_challenge_method": "S256",
        }
        separator = "&" if "?" in issuer.authorization_endpoint else "?"
        to = f"{issuer.authorization_endpoint}{separator}{urlencode(asked)}"
        # Lax: the browser comes back from another site.
        return Response(303, b"", [(b"location", to.encode()), browser.setting("started", secret, STARTED_S, "Lax")])

    async def _back(self, scope: Scope, browser: _Browser) -> Response:
        """With a cookie, to the pages. Raises `Unavailable`, and `HttpError` for a token that opens nothing."""
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        secret = cookies(scope["headers"]).get(browser.cookie("started"), "")
        over = browser.setting("started", "", 0, "Lax")
        state = query.get("state", "")
        if not secret or not hmac.compare_digest(state.encode(), _derived(secret, "state").encode()):
            return _failed(400, "this sign-in did not begin in this browser, or is over", over)
        if query.get("iss", self._people.settings.issuer) != self._people.settings.issuer:
            return _failed(400, "the answer is of another issuer", over)
        if "code" not in query:
            return _failed(403, f"the issuer refused: {query.get('error', 'no code')[:100]}", over)
        token = await self._token(query["code"], _derived(secret, "verifier"), browser.back)
        await self._people.claims_of(token.encode(), _derived(secret, "nonce"))
        if len(token) > COOKIE_BYTES:
            return _failed(403, f"the token is longer than a cookie ({COOKIE_BYTES} bytes): give fewer claims", over)
        session = browser.setting("session", token, int(LONGEST_S), "Strict")
        return Response(303, b"", [(b"location", b"/"), over, session])

    async def _token(self, code: str, verifier: str, back: str) -> str:
        """What the issuer gives for a code. Raises `Unavailable`."""
        client_id = self._people.settings.client_id
        given = {"grant_type": "authorization_code", "code": code, "redirect_uri": back, "code_verifier": verifier}
        headers = {"content-type": "application/x-www-form-urlencoded"}
        if self._secret is None:
            given["client_id"] = client_id
        else:
            pair = f"{quote(client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        issuer = await self._people.issuer()
        async with self._people.client() as http:
            body = urlencode(given).encode()
            reply = await http.exchange("POST", issuer.token_endpoint, body=body, headers=headers)
        try:
            return decode(reply.content, _Given).id_token
        except msgspec.DecodeError as error:
            log.warning("the issuer gave no token", status=reply.status)
            raise Unavailable(f"the issuer gave no token for the code ({reply.status}): sign in again") from error


class CookieSession:
    """An ASGI application that takes the cookie of a signed-in person for the token of each request."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point. A request that presents a key is another's."""
        headers: Headers = scope["headers"]
        held = dict(headers)
        token = cookies(headers).get(_Browser(held.get(b"host", b"").decode("latin-1")).cookie("session"))
        if token and not held.keys() & {b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"}:
            scope = {**scope, "headers": [*headers, (b"authorization", f"Bearer {token}".encode())]}

        async def sending(event: Scope) -> None:
            if event["type"] == "http.response.start" and event["status"] == 401:
                event["headers"] = [*event["headers"], WHERE]
            await send(event)

        await self._app(scope, receive, sending)


def cookies(headers: Headers) -> Mapping[str, str]:
    """The cookies of a request; of one whose cookies cannot be read, none."""
    held = "; ".join(value.decode("latin-1") for name, value in headers if name == b"cookie")
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(held).items()}
    except CookieError:
        return {}


def _derived(secret: str, purpose: str) -> str:
    """A random text for one purpose, 43 letters."""
    return _hashed(f"{purpose} {secret}")


def _hashed(text: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def _failed(status: int, why: str, *headers: tuple[bytes, bytes]) -> Response:
    return Response(status, f"The sign-in failed: {why}.\n".encode(), [*_TEXT, *headers])
