"""Pages of other sites change nothing, whatever they send, and read nothing."""

from __future__ import annotations

import httpx
import pytest

from ratchet.core.service.asgi import Receive, Response, Scope, Send, send_response
from ratchet.core.service.same_site import SameSite, Sites, refusal

JSON = {b"content-type": b"application/json", b"content-length": b"2"}


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({**JSON, b"host": b"127.0.0.1:8083"}, None),
        ({**JSON, b"host": b"[::1]:8083"}, None),
        ({**JSON, b"host": b"localhost"}, None),
        ({**JSON, b"host": b"deployer:8083"}, None),
        ({**JSON, b"host": b"LLM.example.com"}, None),
        ({**JSON, b"content-type": b"application/json; charset=utf-8", b"host": b"10.0.0.7"}, None),
        ({b"host": b"localhost", b"content-length": b"0"}, None),
        ({b"host": b"localhost"}, None),
        ({**JSON, b"host": b"localhost:80", b"origin": b"http://localhost:80"}, None),
        ({**JSON, b"host": b"localhost:80", b"origin": b"https://llm.example.com"}, None),
        ({**JSON, b"host": b"rebound.example"}, "unknown_host"),
        ({**JSON, b"host": b"127.0.0.1.rebound.example:8083"}, "unknown_host"),
        ({**JSON, b"host": b"localhost:80", b"origin": b"https://elsewhere.example"}, "other_origin"),
        ({**JSON, b"host": b"localhost:80", b"origin": b"http://localhost:81"}, "other_origin"),
        ({**JSON, b"host": b"localhost:80", b"origin": b"null"}, "other_origin"),
        ({b"host": b"localhost", b"content-length": b"2", b"content-type": b"text/plain"}, "unsupported_media_type"),
        ({b"host": b"localhost", b"content-length": b"2"}, "unsupported_media_type"),
        ({b"host": b"localhost", b"transfer-encoding": b"chunked"}, "unsupported_media_type"),
        ({b"host": b"localhost", b"content-type": b"application/x-www-form-urlencoded"}, "unsupported_media_type"),
    ],
)
def test_only_programs_and_our_own_pages_may_change_something(headers: dict[bytes, bytes], code: str | None) -> None:
    problem = refusal(headers, frozenset({"llm.example.com"}))
    assert (problem.code if problem else None) == code


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize(
    ("host", "status"), [("evil.example", 403), ("llm.example.com", 200), ("localhost:8084", 200), ("10.0.0.7", 200)]
)
async def test_name_of_another_site_reads_nothing(method: str, host: str, status: int) -> None:
    async def secret(_: Scope, __: Receive, send: Send) -> None:
        await send_response(send, Response(200, b"secret"))

    transport = httpx.ASGITransport(SameSite(secret, Sites(hosts=("LLM.example.com",))))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8084") as http:
        assert (await http.request(method, "/", headers={"host": host})).status_code == status
