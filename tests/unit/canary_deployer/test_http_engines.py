"""What engines answer, read rightly: refusals are about the policy, everything else is a fault of the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ratchet.canary_deployer.http_engines import CONNECT_S, PRESENT_S, HttpReplica
from ratchet.canary_deployer.replicas import ReplicaFailed, ReplicaUnreachable
from ratchet.core.errors import RatchetError, Rejected, Unavailable
from tests.support.canary_world import policy
from tests.support.scoring_engine import Fleet, ScoringEngine, refused

NAME = policy(2).name
PAGE = "<html><body>502 Bad Gateway: sk-secret</body></html>"
KEY = "sk-secret-of-the-engine"


def replica(answer: Response | Exception | None = None, **settings: Any) -> HttpReplica:
    engine = ScoringEngine()
    fleet = Fleet({"a": engine})
    if isinstance(answer, Exception):
        fleet.failing["a"] = answer
    elif answer is not None:
        engine.answers = lambda *_: answer
    return fleet.served(**settings).replicas("support")[0]


async def failure(one: HttpReplica) -> RatchetError:
    with pytest.raises(RatchetError) as caught:
        await one.score(NAME, [1, 2, 3], 0)
    return caught.value


@pytest.mark.parametrize(
    ("answer", "kind", "line"),
    [
        (refused(400, "rank 64 is above 32"), Rejected, "rank 64 is above 32"),
        (refused(424, "its base differs"), Rejected, "its base differs"),
        (refused(422, "sha256\nof x  differs"), Rejected, "sha256 of x differs"),
        (refused(400, "x" * 9000), Rejected, "x" * 500),
        (refused(400, ""), Rejected, "it answers 400 without a reason"),
        (
            refused(400, f"LoRA adapter '{NAME}' was found but could not be loaded."),
            Unavailable,
            f"small at http://a found {NAME} and could not load it; its log says why: is it out of memory?",
        ),
        (
            refused(404, "The model `x` does not exist."),
            Unavailable,
            f"small at http://a does not find {NAME} (404): does it run with Ratchet's plugin, on the same object "
            "store? (docs/guides/vllm.md)",
        ),
        (
            refused(401, KEY),
            Unavailable,
            "small at http://a refuses the deployer's key (401): set RATCHET_ENGINE_API_KEY to the engine's key",
        ),
        (refused(429, "too many"), Unavailable, "small at http://a cannot answer now (429): too many"),
        (refused(503, f"{KEY} no\nroom"), Unavailable, "small at http://a cannot answer now (503): *** no room"),
        (PlainTextResponse(PAGE, 503), Unavailable, "small at http://a cannot answer now (503): without a reason"),
        (refused(500, KEY), ReplicaFailed, f"small at http://a answers 500 for {NAME}; its log says why"),
        (PlainTextResponse(PAGE, 502), ReplicaFailed, f"small at http://a answers 502 for {NAME}; its log says why"),
        (
            PlainTextResponse(PAGE, 400),
            Unavailable,
            "small at http://a answers 400, and not as an engine: does a proxy answer in its place?",
        ),
        (
            Response(status_code=302, headers={"location": "http://elsewhere"}),
            Unavailable,
            "small at http://a answers 302, and not as an engine: does a proxy answer in its place?",
        ),
    ],
)
async def test_each_status_is_one_line_for_people(answer: Response, kind: type[RatchetError], line: str) -> None:
    error = await failure(replica(answer, api_key=KEY))
    assert (type(error), str(error)) == (kind, line)


@pytest.mark.parametrize(
    "answer",
    [
        PlainTextResponse(PAGE),
        PlainTextResponse('{"choices": ['),
        JSONResponse([]),
        JSONResponse({"choices": 7}),
        JSONResponse({"choices": []}),
        JSONResponse({"choices": [{}, {}]}),
        JSONResponse({"choices": [{"prompt_logprobs": "none"}]}),
        JSONResponse({"choices": [{"prompt_logprobs": [None, {"x": {"logprob": -1}}, None]}]}),
        JSONResponse({"choices": [{"prompt_logprobs": [None, {"2": {"logprob": "low"}}, None]}]}),
        JSONResponse({"choices": [{"prompt_logprobs": [None]}]}),
        JSONResponse({"choices": [{"prompt_logprobs": [None] * 4000}]}),
        Response(b"\xff\xfe", media_type="application/json"),
    ],
)
async def test_answer_that_is_no_engines_is_a_fault_and_nothing_of_it_is_quoted(answer: Response) -> None:
    error = await failure(replica(answer))
    assert isinstance(error, Unavailable)
    assert str(error).startswith(("the answer of small at http://a is none of an engine", "small at http://a gives "))
    assert "sk-secret" not in str(error)


@pytest.mark.parametrize(
    ("fault", "ended"),
    [
        (httpx.ReadError("reset"), True),
        (httpx.RemoteProtocolError("closed"), True),
        (httpx.ReadTimeout("late"), False),
    ],
)
async def test_connection_ended_within_an_answer_breaks_and_a_wait_otherwise(fault: Exception, ended: bool) -> None:
    error = await failure(replica(fault))
    assert isinstance(error, ReplicaFailed)
    assert error.ended is ended
    assert str(error).startswith(f"small at http://a does not finish an answer for {NAME}")


async def test_a_wait_ends_at_its_deadline() -> None:
    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.Event().wait()
            raise AssertionError

    one = replica()
    slow = HttpReplica(one._engine, "http://a", 0.05, Silent())
    error = await failure(slow)
    assert isinstance(error, ReplicaFailed)
    assert not error.ended


async def test_a_replica_that_refuses_connections_is_away() -> None:
    fleet = Fleet({"a": ScoringEngine()}, away={"a"})
    (one,) = fleet.served().replicas("support")
    for ask in (one.models(), one.score(NAME, [1, 2], 0), one.ask(NAME, "hello")):
        with pytest.raises(
            ReplicaUnreachable, match=r"^small at http://a does not answer at http://a \(All connection"
        ):
            await ask
    for status in (502, 504):
        with pytest.raises(ReplicaUnreachable, match=f"answers {status}"):
            await replica(PlainTextResponse(PAGE, status)).models()


async def test_a_replica_that_takes_connections_and_does_not_answer_is_there() -> None:
    """It is slow or hung, and gets traffic as soon as it answers: it may not be passed over."""

    class Failing(httpx.AsyncBaseTransport):
        def __init__(self, error: Exception) -> None:
            self.error = error

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise self.error

    def failing(error: Exception) -> HttpReplica:
        return HttpReplica(replica()._engine, "http://a", 5, Failing(error))

    for error in (httpx.ReadTimeout("late"), TimeoutError(), httpx.ReadError("reset"), httpx.RemoteProtocolError("x")):
        with pytest.raises(Unavailable, match="but accepts connections: repair it, or end it") as caught:
            await failing(error).models()
        assert not isinstance(caught.value, ReplicaUnreachable)
    with pytest.raises(ReplicaUnreachable):
        await failing(httpx.ConnectTimeout("no machine")).models()
    with pytest.raises(Unavailable) as caught:
        await replica(refused(503, "loading")).models()
    assert not isinstance(caught.value, ReplicaUnreachable)


async def test_a_machine_that_takes_no_connection_shows_before_the_answer_is_due() -> None:
    deadlines: list[float] = []

    def noted(request: httpx.Request) -> httpx.Response:
        deadlines.append(request.extensions["timeout"]["connect"])
        return httpx.Response(200, json={"data": []})

    await HttpReplica(replica()._engine, "http://a", 5, httpx.MockTransport(noted)).models()
    assert deadlines == [CONNECT_S]
    assert CONNECT_S < PRESENT_S


async def test_the_key_is_sent_and_never_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALL_KEY", KEY)
    engine = ScoringEngine(key=KEY)
    (one,) = Fleet({"a": engine}).served(api_key_env="SMALL_KEY").replicas("support")
    assert await one.models() == []
    engine.answers = lambda *_: refused(400, f"Bearer {KEY} may not do this")
    assert str(await failure(one)) == "Bearer *** may not do this"
    engine.answers = lambda *_: refused(403, f"Bearer {KEY}")
    assert "set SMALL_KEY to the engine's key" in str(await failure(one))


async def test_engine_that_scores_no_prompts_or_names_no_candidates_gives_none() -> None:
    assert await replica(JSONResponse({"choices": [{"text": "x"}]})).score(NAME, [1, 2, 3], 5) is None
    few = ScoringEngine(max_logprobs=0)
    (one,) = Fleet({"a": few}).served().replicas("support")
    scored = await one.score(NAME, [1, 2, 3], 5)
    assert scored is not None
    assert [len(token.candidates) for token in scored] == [0, 0]
    texts = {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": [{"a": -1.0, "token_id:x": -2.0}]}
    assert not await replica(JSONResponse({"choices": [{"logprobs": texts}]})).candidates(NAME, [1, 2], 2.0, 5)
    texts = {"top_logprobs": [{f"token_id:{'9' * 5000}": -1.0, "token_id:7": -2.0}]}
    named = await replica(JSONResponse({"choices": [{"logprobs": texts}]})).candidates(NAME, [1, 2], 2.0, 5)
    assert named == {7: -2.0}


async def test_an_answer_of_a_chat_has_its_log_probabilities() -> None:
    content = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": None}]
    body = {"choices": [{"logprobs": {"content": content}}]}
    assert list(await replica(JSONResponse(body)).ask(NAME, "hello")) == [-0.5, None]
    with pytest.raises(Unavailable, match="none of an engine that gives log-probabilities"):
        await replica(JSONResponse({"choices": [{"logprobs": None}]})).ask(NAME, "hello")
