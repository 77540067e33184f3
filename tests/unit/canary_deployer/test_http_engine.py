"""The engine's answers, read rightly: refusals are final, outages pass."""

from __future__ import annotations

import httpx
import pytest

from ratchet.canary_deployer.http_clients import HttpEngine, engine_peer
from ratchet.errors import Rejected, Unavailable
from ratchet.service.http_client import AsyncApiClient
from tests.support.canary_world import policy

NAME = policy(2).name


def engine(answers: dict[str, httpx.Response], sent: list[httpx.Request] | None = None) -> HttpEngine:
    def handle(request: httpx.Request) -> httpx.Response:
        if sent is not None:
            sent.append(request)
        return answers[request.url.path]

    client = AsyncApiClient(engine_peer("http://engine", None), httpx.MockTransport(handle))
    return HttpEngine(client, load_timeout_s=5)


def models(*names: str) -> httpx.Response:
    return httpx.Response(200, json={"data": [{"id": name} for name in names]})


async def test_a_policy_is_asked_for_by_its_immutable_name_alone() -> None:
    sent: list[httpx.Request] = []
    held = await engine({"/v1/completions": httpx.Response(200), "/v1/models": models(NAME)}, sent).resolve(policy(2))
    assert not held.compared
    assert sent[0].read() == b'{"model":"%b","prompt":[0],"max_tokens":1}' % NAME.encode()


async def test_the_list_of_models_shows_whether_the_probe_was_compared() -> None:
    for listed, compared in ((NAME, True), ("other@1-00000000", False)):
        resident = httpx.Response(200, json={"data": [{"id": listed, "probe": "matched"}]})
        answers = {"/v1/completions": httpx.Response(200), "/v1/models": resident}
        assert (await engine(answers).resolve(policy(2))).compared == compared


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (httpx.Response(424, json={"error": {"message": "sha256 differs"}}), "424: sha256 differs"),
        (httpx.Response(400, json={"detail": "no such base"}), "400: no such base"),
        (httpx.Response(500, text="broken"), "500: broken"),
    ],
)
async def test_a_refusal_is_one_line(answer: httpx.Response, line: str) -> None:
    with pytest.raises(Rejected) as caught:
        await engine({"/v1/completions": answer}).resolve(policy(2))
    assert str(caught.value) == line


async def test_an_outage_is_reported_without_the_engines_words() -> None:
    """They are logged, and what an engine says may quote a prompt or a key."""
    busy = httpx.Response(429, json={"error": {"message": "too long: the prompt itself"}})
    with pytest.raises(Unavailable, match=r"^the engine answered 429$"):
        await engine({"/v1/models": models(NAME), "/v1/chat/completions": busy}).ask(policy(2), "x")


async def test_an_outage_is_unavailable_and_no_refusal() -> None:
    with pytest.raises(Unavailable, match="answered 503"):
        await engine({"/v1/completions": httpx.Response(503)}).resolve(policy(2))

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    client = AsyncApiClient(engine_peer("http://engine", None), httpx.MockTransport(gone))
    with pytest.raises(Unavailable, match="does not answer at http://engine"):
        await HttpEngine(client, 5).resolve(policy(2))


async def test_log_probabilities_of_an_answer() -> None:
    content = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": None}]
    body = {"choices": [{"logprobs": {"content": content}}]}
    answer = await engine({"/v1/chat/completions": httpx.Response(200, json=body)}).ask(policy(2), "hello")
    assert list(answer.logprobs) == [-0.5, None]


async def test_an_answer_without_log_probabilities_is_refused() -> None:
    body = {"choices": [{"logprobs": None}]}
    with pytest.raises(Rejected, match="no log-probabilities"):
        await engine({"/v1/chat/completions": httpx.Response(200, json=body)}).ask(policy(2), "hello")
