"""People sign in to the console: by way of their issuer and back, once, in the browser that began."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest_asyncio

from ratchet.bus.testing import eventually
from ratchet.console.pages import Pages, Site
from ratchet.console.pass_through import COORDINATOR, PassThrough
from ratchet.console.sign_in import COOKIE_BYTES, PATHS, CookieSession, SignIn
from ratchet.core.contract.http.console import SessionOut
from ratchet.core.rules.access import Caller, KeyScope
from ratchet.core.service.asgi import Answer, Handler, Request, json_response
from ratchet.core.service.authentication import Authentication, session_of
from ratchet.core.service.control_api import ControlApi
from ratchet.core.service.http import HttpServer
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.core.service.keys import KnownKeys
from tests.support.issuer import LocalIssuer, issuing
from tests.support.running import http_client, listening, running


def owner(_: str, __: str) -> Handler:
    """The coordinator: says with which key a request came."""

    async def answer(request: Request) -> Answer:
        return json_response({"key": request.header(b"authorization")})

    return answer


@asynccontextmanager
async def console(issuer: LocalIssuer, folder: Any) -> AsyncIterator[str]:
    """The site of a console, of which only `/v1/session` is there."""

    async def session(caller: Caller) -> SessionOut:
        """Who asks."""
        return session_of(caller)

    async def act(caller: Caller) -> SessionOut:
        """Change something."""
        return session_of(caller)

    async def connect() -> Any:
        raise NotImplementedError

    api = ControlApi("Console", "", errors={})
    api.route("GET", "/v1/session", session, scope=None)
    api.route("POST", "/v1/act", act, scope=KeyScope.OPERATE, answers={200: "Done."})
    people = issuer.people()
    keys = KnownKeys(connect, folder / "keys.json", is_local=True, people=people.caller_of)
    async with listening(owner) as there, AsyncApiClient(Peer("the coordinator", there)) as peer:
        passed = PassThrough("coordinator", peer, "the coordinator", COORDINATOR)
        site = Site(
            Pages({}),
            CookieSession(Authentication(api, keys.caller_of)),
            {"coordinator": CookieSession(Authentication(passed, keys.caller_of))},
            dict.fromkeys(PATHS, SignIn(people, None)),
        )
        server = HttpServer(site, "127.0.0.1", 0)
        async with running(server):
            await eventually(lambda: _listens(server))
            yield f"http://127.0.0.1:{server.port}"


async def _listens(server: HttpServer) -> bool:
    return server.port != 0


@pytest_asyncio.fixture
async def issuer() -> AsyncIterator[LocalIssuer]:
    async with issuing() as local:
        yield local


async def returned(browser: httpx.AsyncClient) -> str:
    """The address that the issuer sends a browser back to, which began at the console."""
    begun = await browser.get("/sign-in")
    assert begun.status_code == 303
    signed = await browser.get(begun.headers["location"])
    return signed.headers["location"]


async def test_person_signs_in_acts_and_signs_out(issuer: LocalIssuer, tmp_path: Any) -> None:
    async with console(issuer, tmp_path) as url, http_client(base_url=url) as browser:
        foreign = await browser.get("/v1/session")
        assert (foreign.status_code, foreign.headers["x-ratchet-sign-in"]) == (401, "sign-in")
        begun = await browser.get("/sign-in")
        asked = parse_qs(urlsplit(begun.headers["location"]).query)
        assert asked["code_challenge_method"] == ["S256"]
        assert asked["redirect_uri"] == [f"{url}/signed-in"]
        back = await browser.get(await returned(browser))
        assert (back.status_code, back.headers["location"]) == (303, "/")
        (session,) = [one for one in back.headers.get_list("set-cookie") if one.startswith("ratchet-session=")]
        assert "HttpOnly" in session
        assert "SameSite=Strict" in session
        who = (await browser.get("/v1/session")).json()
        assert (who["name"], who["scopes"]) == (
            "ada@example.com",
            ["annotate:support", "operate:support", "train:support"],
        )
        assert (await browser.post("/v1/act", headers={"origin": url})).status_code == 403  # about all roles
        passed = (await browser.get("/coordinator/v1/jobs")).json()["key"]
        assert passed == f"Bearer {browser.cookies['ratchet-session']}"
        with_key = await browser.get("/v1/session", headers={"x-api-key": "rtk_wrong"})
        assert with_key.status_code != 200, "a key counts before the cookie"
        assert (await browser.post("/sign-out", headers={"origin": url})).status_code == 204
        assert (await browser.get("/v1/session")).status_code == 401


async def test_page_of_another_site_acts_for_nobody(issuer: LocalIssuer, tmp_path: Any) -> None:
    issuer.groups = ["platform"]
    async with console(issuer, tmp_path) as url, http_client(base_url=url) as browser:
        await browser.get(await returned(browser))
        assert (await browser.post("/v1/act", headers={"origin": url})).status_code == 200
        for origin in ("https://evil.example", "http://127.0.0.1:1", "null"):
            for path in ("/v1/act", "/sign-out"):
                assert (await browser.post(path, headers={"origin": origin})).status_code == 403
        kind = {"origin": url, "content-type": "text/plain"}
        assert (await browser.post("/v1/act", headers=kind, content=b"x")).status_code == 415


async def test_answer_counts_once_and_in_the_browser_that_asked(issuer: LocalIssuer, tmp_path: Any) -> None:
    async with console(issuer, tmp_path) as url, http_client(base_url=url) as victim, http_client() as other:
        address = await returned(victim)
        assert (await other.get(address)).status_code == 400, "a code that an attacker began is no session of others"
        held = {"cookie": f"ratchet-started={victim.cookies['ratchet-started']}"}
        assert (await victim.get(address)).status_code == 303
        assert (await victim.get(address)).status_code == 400, "the same answer again"
        again = await other.get(address, headers=held)
        assert (again.status_code, "ratchet-session" in again.headers.get("set-cookie", "")) == (503, False)
        forged = f"{url}/signed-in?code=x&state=y"
        assert (await other.get(forged, headers={"cookie": "ratchet-started=z"})).status_code == 400
        assert (await other.get(f"{url}/signed-in")).status_code == 400


UNLIKE: list[tuple[dict[str, Any], int]] = [
    ({"nonce": "another"}, 401),
    ({"aud": "another"}, 401),
    ({"exp": 1}, 401),
    ({"groups": ["x" * 20] * (COOKIE_BYTES // 20)}, 403),
]
"""Claims of tokens that make no session, and the answer."""


async def test_token_that_is_not_of_this_sign_in_makes_no_session(issuer: LocalIssuer, tmp_path: Any) -> None:
    given = issuer.token
    async with console(issuer, tmp_path) as url, http_client(base_url=url) as browser:
        for claims, status in UNLIKE:
            address = await returned(browser)
            issuer.token = lambda claims=claims, **own: given(**{**own, **claims})  # type: ignore[method-assign]
            answer = await browser.get(address)
            assert (answer.status_code, "ratchet-session" in answer.headers.get("set-cookie", "")) == (status, False)


async def test_issuer_decides_where_nobody_is_sent_and_words_are_plain(issuer: LocalIssuer, tmp_path: Any) -> None:
    async with console(issuer, tmp_path) as url, http_client(base_url=url) as browser:
        begun = await browser.get("/sign-in?next=https://evil.example&redirect_uri=https://evil.example")
        assert begun.headers["location"].startswith(f"{issuer.url}/authorize?")
        state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
        refused = await browser.get(f"/signed-in?state={state}&error=<script>access_denied")
        assert (refused.status_code, refused.headers["content-type"]) == (403, "text/plain; charset=utf-8")
        begun = await browser.get("/sign-in")
        state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
        mixed = await browser.get(f"/signed-in?state={state}&code=x&iss=https://evil.example")
        assert mixed.status_code == 400


async def test_cookies_by_tls_are_of_this_host_alone(issuer: LocalIssuer, tmp_path: Any) -> None:
    async with console(issuer, tmp_path) as url, http_client(base_url=url) as browser:
        begun = await browser.get("/sign-in", headers={"host": "console"})
        cookie = begun.headers["set-cookie"]
        assert cookie.startswith("__Host-ratchet-started=")
        assert "; Secure" in cookie
        asked = parse_qs(urlsplit(begun.headers["location"]).query)
        assert asked["redirect_uri"] == ["https://console/signed-in"]
        unknown = await browser.get("/sign-in", headers={"host": "evil.example"})
        assert unknown.status_code == 403, "a site that has its name point here"
