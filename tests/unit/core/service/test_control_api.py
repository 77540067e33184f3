"""A control API: what it reads, answers and documents follows from a handler's signature; every error has one shape."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

import httpx
import jsonschema_rs
import pytest
import pytest_asyncio
from pydantic import Field

from ratchet.core.contract.http.gateway import FeedbackTaken
from ratchet.core.contract.http.rollouts import StartIn
from ratchet.core.errors import NotFound
from ratchet.core.rules.access import ANYONE, UNAUTHENTICATED, Caller, KeyScope
from ratchet.core.service.asgi import Headers
from ratchet.core.service.authentication import Authentication
from ratchet.core.service.control_api import ControlApi
from ratchet.core.service.openapi import member_words
from tests.support.callers import called_by


async def find(name: str, limit: Annotated[int, Field(ge=1)] = 5) -> FeedbackTaken:
    """Look for one."""
    if name == "broken":
        raise ZeroDivisionError("a bug")
    if name != "known":
        raise NotFound(f"no such thing: {name}", code="no_thing")
    return FeedbackTaken(feedback_id=name, trajectory_id=str(limit))


async def make(name: str, body: StartIn) -> tuple[int, FeedbackTaken]:
    """Make one, unless it is there."""
    return 200 if name == "known" else 201, FeedbackTaken(feedback_id=name, trajectory_id=str(body.version))


def served() -> ControlApi:
    api = ControlApi("Things", "All there is.", errors={503: "Away."})
    api.route(
        "GET", "/v1/things/{name}", find, scope=KeyScope.VIEW, errors={404: "No such thing.", 422: "A wrong limit."}
    )
    answers = {201: "A new one.", 200: "It was there."}
    api.route("POST", "/v1/things/{name}", make, scope=KeyScope.OPERATE, answers=answers, errors={400: "A bad body."})
    return api


@pytest_asyncio.fixture
async def things() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(called_by(served()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://things") as client:
        yield client


START = {"version": 3, "actor": "ann", "reason": "because"}


async def test_stream_ends_before_an_event_that_its_key_opens_no_longer() -> None:
    may, closed = [ANYONE, ANYONE, ANYONE, UNAUTHENTICATED], list[bool]()

    async def identify(_: Headers) -> Caller:
        return may.pop(0)

    async def events() -> AsyncGenerator[bytes, None]:
        """News."""

        async def news() -> AsyncGenerator[bytes, None]:
            try:
                for number in range(5):
                    yield b"data: %d\n\n" % number
            finally:
                closed.append(True)

        return news()

    api = ControlApi("Things", "All there is.", errors={})
    api.stream("/v1/events", events, scope=KeyScope.VIEW, events={"thing": FeedbackTaken})
    transport = httpx.ASGITransport(Authentication(api, identify))
    async with httpx.AsyncClient(transport=transport, base_url="http://things") as client:
        answer = await client.get("/v1/events")
    assert (answer.status_code, answer.text) == (200, "data: 0\n\ndata: 1\n\n")
    assert (may, closed) == ([], [True])


async def test_an_answer_is_the_struct_with_the_status_that_its_handler_gives(things: httpx.AsyncClient) -> None:
    answer = await things.get("/v1/things/known", params={"limit": 7})
    assert (answer.status_code, answer.json()) == (
        200,
        {"feedback_id": "known", "trajectory_id": "7", "note": None},
    )
    assert answer.headers["content-type"] == "application/json"
    assert [(await things.post(f"/v1/things/{name}", json=START)).status_code for name in ("known", "new")] == [
        200,
        201,
    ]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param", "code"),
    [
        ("GET", "/v1/things/other", None, 404, None, "no_thing"),
        ("GET", "/v1/things/known?limit=0", None, 422, "limit", None),
        ("GET", "/v1/things/known?limit=x", None, 422, "limit", None),
        ("GET", "/v1/nowhere", None, 404, None, None),
        ("DELETE", "/v1/things/known", None, 405, None, None),
        ("GET", "/v1/things/broken", None, 500, None, None),
        ("POST", "/v1/things/known", b"{", 400, None, "invalid_json"),
        ("POST", "/v1/things/known", b'{"actor": "\xff"}', 400, None, "invalid_json"),
        ("POST", "/v1/things/known", b"[" * 5000, 400, None, None),
        ("POST", "/v1/things/known", b'{"version": 3, "actor": "ann"}', 400, "reason", None),
        ("POST", "/v1/things/known", b'{"version": -1, "actor": "ann", "reason": "x"}', 400, "version", None),
        ("POST", "/v1/things/known", b'{"version": 3, "actor": "ann", "reason": "x", "force": 1}', 400, "force", None),
    ],
)
async def test_every_error_has_one_shape_and_names_the_wrong_part(
    things: httpx.AsyncClient, method: str, path: str, body: bytes | None, status: int, param: str | None, code: str
) -> None:
    answer = await things.request(method, path, content=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert error["type"] == ("server_error" if status == 500 else "invalid_request_error")
    assert error["message"]
    assert "a bug" not in error["message"]


async def test_body_that_is_too_large_is_refused(things: httpx.AsyncClient) -> None:
    answer = await things.post("/v1/things/x", json={**START, "reason": "because " * 40_000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


async def test_the_answer_to_a_wrong_method_names_the_right_ones(things: httpx.AsyncClient) -> None:
    assert "GET" in (await things.delete("/v1/things/known")).headers["allow"]


def test_document_names_every_body_and_only_errors_that_can_come() -> None:
    document: Any = served().document
    operations = document["paths"]["/v1/things/{name}"]
    assert set(operations["get"]["responses"]) == {"200", "401", "403", "404", "422", "503"}
    assert set(operations["post"]["responses"]) == {"200", "201", "400", "401", "403", "415", "503"}
    shared = document["components"]["responses"]
    answers = [
        shared[one["$ref"].rsplit("/", 1)[1]] if "$ref" in one else one
        for one in operations["post"]["responses"].values()
    ]
    bodies = [one["content"]["application/json"]["schema"]["$ref"] for one in answers]
    assert {ref.rsplit("/", 1)[1] for ref in bodies} == {"FeedbackTaken", "ErrorOut"}
    assert set(document["components"]["schemas"]) == {"ErrorOut", "ErrorPart", "FeedbackTaken", "StartIn"}
    start = document["components"]["schemas"]["StartIn"]
    assert start["properties"]["override"]["description"] == member_words(StartIn)["override"]
    assert jsonschema_rs.Draft202012Validator(start).is_valid(START)
    assert not jsonschema_rs.Draft202012Validator(start).is_valid({**START, "force": True})


def test_a_class_keeps_the_words_of_its_base() -> None:
    assert member_words(StartIn)["dry_run"].startswith("Answer with the rollout as the act would leave it")
