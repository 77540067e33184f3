"""The pages over HTTP: what is kept, packed and refused, and the headers that keep a page to itself."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from ratchet.console.pages import MISSING, SECURITY, Pages, Site, read_pages
from tests.support.callers import called_by

SCRIPT = "assets/app-AB12CD34.js"


def site(folder: Path) -> httpx.AsyncClient:
    async def nothing(*_: object) -> None: ...

    app = Site(Pages(read_pages(folder)), called_by(nothing), {})
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8084")


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>Ratchet</title>")
    (tmp_path / SCRIPT).write_text("const x = 1;\n" * 200)
    (tmp_path / "favicon.svg").write_text("<svg/>")
    (tmp_path / "secret.pem").write_text("not a kind of file that pages have")
    return tmp_path


async def test_the_first_page_is_never_kept_and_a_hashed_file_for_ever(built: Path) -> None:
    async with site(built) as http:
        index, script, icon = [await http.get(path) for path in ("/", f"/{SCRIPT}", "/favicon.svg")]
    assert (index.status_code, index.headers["cache-control"]) == (200, "no-store")
    assert index.text == "<!doctype html><title>Ratchet</title>"
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert icon.headers["cache-control"] == "no-cache"


async def test_a_file_is_packed_for_those_who_unpack_it(built: Path) -> None:
    async with site(built) as http:
        packed = await http.get(f"/{SCRIPT}", headers={"accept-encoding": "br;q=1, gzip;q=.8"})
        plain = await http.get(f"/{SCRIPT}", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) == int(plain.headers["content-length"])
    assert packed.text == plain.text == "const x = 1;\n" * 200
    assert packed.headers["vary"] == "accept-encoding"


async def test_an_unchanged_file_is_not_sent_again_and_head_has_no_body(built: Path) -> None:
    async with site(built) as http:
        tag = (await http.get("/favicon.svg")).headers["etag"]
        again = await http.get("/favicon.svg", headers={"if-none-match": f"W/{tag}"})
        head = await http.head("/favicon.svg")
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "6")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/rollouts", 404),
        ("GET", "/secret.pem", 404),
        ("GET", "/assets/", 404),
        ("GET", "/assets/../index.html", 200),  # the client resolves it itself
        ("GET", "/assets/%2e%2e/index.html", 404),
        ("GET", "/..%2f..%2fetc/passwd", 404),
        ("POST", "/", 405),
        ("GET", "/health", 200),
    ],
)
async def test_only_the_bundles_files_are_pages(built: Path, method: str, path: str, status: int) -> None:
    async with site(built) as http:
        answer = await http.request(method, path)
    assert answer.status_code == status
    if status == 404:
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_every_answer_has_the_headers_that_keep_a_page_to_itself(built: Path) -> None:
    async with site(built) as http:
        answers = [await http.get(path) for path in ("/", f"/{SCRIPT}", "/nothing", "/health")]
    for answer in answers:
        assert {name: answer.headers[name.decode()].encode() for name, _ in SECURITY} == dict(SECURITY)
    policy = answers[0].headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy


async def test_pages_that_were_never_built_are_one_clear_line(tmp_path: Path) -> None:
    async with site(tmp_path / "static") as http:
        answer = await http.get("/")
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, MISSING)
