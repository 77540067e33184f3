"""What the console passes on: listed paths alone, the caller's own key alone, and answers as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from ratchet.console.pages import Pages, Site
from ratchet.console.pass_through import ANALYST, BODY_BYTES, COORDINATOR, DEPLOYER, GATEWAY, WORKFLOWS, PassThrough
from ratchet.core.rules.access import ANYONE, Caller
from ratchet.core.service.http_client import AsyncApiClient, Peer
from tests.support.callers import called_by

ROUTES = {
    "coordinator": COORDINATOR,
    "deployer": DEPLOYER,
    "gateway": GATEWAY,
    "workflows": WORKFLOWS,
    "analyst": ANALYST,
}
OPERATOR = Caller("key_0000000000", "ops", frozenset({"operate"}))
KEY = "rtk_" + "a" * 43


class Upstream:
    """A service that remembers what it was asked, and answers as it is given to."""

    def __init__(self, answer: Callable[[httpx.Request], httpx.Response] | None = None) -> None:
        self.asked: list[httpx.Request] = []
        self._answer = answer or _accept

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self._answer(request)


def _accept(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"ok": True})


@asynccontextmanager
async def console(
    upstream: Upstream, service: str = "deployer", caller: Caller = OPERATOR
) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.MockTransport(upstream)
    async with AsyncApiClient(Peer(f"the {service}", f"http://{service}:8083"), transport) as peer:
        app = called_by(PassThrough(service, peer, f"the {service}", ROUTES[service]), caller)
        site = Site(Pages({}), app, {service: app})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url="http://127.0.0.1:8084") as http:
            yield http


async def test_service_that_does_not_run_here_is_named() -> None:
    app = called_by(PassThrough("workflows", None, "the workflows", WORKFLOWS), OPERATOR)
    site = Site(Pages({}), app, {"workflows": app})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url="http://127.0.0.1:8084") as http:
        answer = await http.get("/workflows/v1/workflows", headers={"x-api-key": KEY})
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        404,
        "the workflows service does not run here, or RATCHET_WORKFLOWS_URL does not say where",
    )


async def test_request_is_passed_on_with_its_callers_key_and_no_other_header() -> None:
    upstream = Upstream()
    async with console(upstream) as http:
        answer = await http.post(
            "/deployer/v1/rollouts/support/approve?x=1",
            json={"actor": "ada", "reason": "looked at it"},
            headers={
                "x-api-key": KEY,
                "cookie": "a=b",
                "origin": "http://127.0.0.1:8084",
                "x-forwarded-for": "10.0.0.1",
                "connection": "x-secret",
                "host": "127.0.0.1:8084",
            },
        )
    (asked,) = upstream.asked
    assert answer.json() == {"ok": True}
    assert (asked.method, str(asked.url)) == ("POST", "http://deployer:8083/v1/rollouts/support/approve?x=1")
    assert asked.content == b'{"actor":"ada","reason":"looked at it"}'
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers["host"] == "deployer:8083"
    assert not {"cookie", "origin", "x-forwarded-for", "x-api-key", "x-secret"} & {*asked.headers}


async def test_an_open_installation_passes_no_key_on() -> None:
    upstream = Upstream()
    async with console(upstream, caller=ANYONE) as http:
        await http.get("/deployer/v1/rollouts", headers={"authorization": f"Bearer {KEY}"})
    assert "authorization" not in upstream.asked[0].headers


@pytest.mark.parametrize(
    ("service", "method", "path", "status"),
    [
        ("deployer", "GET", "/v1/rollouts", 200),
        ("deployer", "GET", "/v1/rollouts/support/audit", 200),
        ("deployer", "GET", "/v1/policies/support/3/bundle", 200),
        ("deployer", "POST", "/v1/rollouts/support/revert", 200),
        ("deployer", "DELETE", "/v1/rollouts/support", 405),
        ("deployer", "POST", "/v1/rollouts/support/destroy", 404),
        ("deployer", "GET", "/v1/rollouts/support/../../../metrics", 404),
        ("deployer", "GET", "/v1/rollouts/%2e%2e", 404),
        ("deployer", "GET", "/v1/rollouts%2fsupport", 404),
        ("deployer", "GET", "/v1/rollouts/support\\audit", 404),
        ("deployer", "GET", "/openapi.json", 404),
        ("deployer", "GET", "//evil.example/v1/rollouts", 404),
        ("coordinator", "GET", "/v1/jobs/0190-a", 200),
        ("coordinator", "POST", "/v1/jobs/0190-a/cancel", 200),
        ("coordinator", "GET", "/v1/models/support/3/lineage", 200),
        ("coordinator", "POST", "/v1/keys", 404),
        ("coordinator", "POST", "/v1/storage/sweep", 404),
        ("gateway", "POST", "/v1/feedback", 200),
        ("gateway", "POST", "/v1/embeddings", 404),
        ("workflows", "GET", "/v1/workflows", 200),
        ("workflows", "POST", "/v1/workflows/0190-a/cancel", 200),
        ("workflows", "POST", "/v1/workflows", 405),
        ("workflows", "POST", "/v1/workers", 404),
        ("analyst", "GET", f"/v1/patterns/support/{'a' * 32}", 200),
        ("analyst", "POST", f"/v1/patterns/support/{'a' * 32}/dismiss", 200),
        ("analyst", "POST", f"/v1/patterns/support/{'a' * 32}/reopen", 200),
        ("analyst", "POST", f"/v1/plans/support/{'a' * 32}/approve", 200),
        ("analyst", "GET", "/v1/learning/support/events", 200),
        ("analyst", "POST", f"/v1/plans/support/{'a' * 32}/execute", 404),
        ("analyst", "GET", "/v1/patterns/support/a-pattern", 404),
        ("gateway", "POST", "/t/x/v1/chat/completions", 404),
    ],
)
async def test_only_listed_paths_are_passed_on(service: str, method: str, path: str, status: int) -> None:
    upstream = Upstream()
    async with console(upstream, service) as http:
        url = httpx.URL("http://127.0.0.1:8084").copy_with(raw_path=f"/{service}{path}".encode())
        answer = await http.request(method, url)
    assert answer.status_code == status
    assert bool(upstream.asked) is (status == 200)
    assert status == 200 or answer.json()["error"]["message"]


async def test_a_refusal_comes_back_as_it_is_and_a_page_of_a_proxy_does_not() -> None:
    refusal = {"error": {"message": "lacks `operate`", "type": "permission_error", "param": None, "code": "x"}}
    async with console(Upstream(lambda _: httpx.Response(403, json=refusal))) as http:
        answer = await http.get("/deployer/v1/rollouts")
        assert (answer.status_code, answer.json()) == (403, refusal)
    async with console(Upstream(lambda _: httpx.Response(404, html="<h1>nginx</h1>"))) as http:
        answer = await http.get("/deployer/v1/rollouts")
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            502,
            "the deployer, or a proxy before it, answered 404",
        )
    moved = httpx.Response(302, headers={"location": "http://evil.example"})
    async with console(Upstream(lambda _: moved)) as http:
        assert (await http.get("/deployer/v1/rollouts")).status_code == 502


async def test_words_name_a_service_that_is_away_or_slow() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    async with console(Upstream(refuse)) as http:
        answer = await http.get("/deployer/v1/rollouts")
    assert answer.status_code == 503
    assert answer.json()["error"]["message"].startswith("the deployer does not answer at http://deployer:8083")

    def hang(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("")

    async with console(Upstream(hang)) as http:
        answer = await http.post("/deployer/v1/rollouts/support/pause", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
    assert "may have taken the request" in answer.json()["error"]["message"]


async def test_a_body_has_a_limit() -> None:
    upstream = Upstream()
    async with console(upstream) as http:
        answer = await http.post("/deployer/v1/rollouts/support/pause", content=b" " * (BODY_BYTES + 1))
    assert (answer.status_code, upstream.asked) == (413, [])


async def test_stream_is_passed_on_and_one_that_breaks_off_ends_with_the_reason() -> None:
    async def events() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        raise httpx.RemoteProtocolError("peer closed")

    kind = {"content-type": "text/event-stream", "x-ratchet-policy": "support@3", "x-internal": "secret"}
    async with console(Upstream(lambda _: httpx.Response(200, headers=kind, content=events())), "gateway") as http:
        answer = await http.post("/gateway/v1/chat/completions", json={"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-ratchet-policy"] == "support@3"
    assert "x-internal" not in answer.headers
    first, _, rest = answer.text.partition("\n\n")
    assert first == "data: 1"
    assert "the gateway does not answer" in rest
    assert rest.strip().startswith('data: {"error":')
