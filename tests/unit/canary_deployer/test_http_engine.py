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


async def test_a_policy_is_loaded_by_its_immutable_name_and_uri() -> None:
    sent: list[httpx.Request] = []
    loaded = await engine({"/v1/models": models(), "/v1/load_lora_adapter": httpx.Response(200)}, sent).load(policy(2))
    assert not loaded.compared
    assert sent[1].read() == b'{"lora_name":"%b","lora_path":"%b"}' % (NAME.encode(), policy(2).uri.encode())


async def test_the_answer_to_a_load_and_the_list_of_models_show_whether_the_probe_was_compared() -> None:
    answer = httpx.Response(200, json={"lora_name": NAME, "probe": "matched"})
    assert (await engine({"/v1/models": models(), "/v1/load_lora_adapter": answer}).load(policy(2))).compared
    resident = httpx.Response(200, json={"data": [{"id": NAME, "probe": "matched"}]})
    assert (await engine({"/v1/models": resident}).load(policy(2))).compared
    text = httpx.Response(200, text="Success: LoRA adapter added")
    assert not (await engine({"/v1/models": models(), "/v1/load_lora_adapter": text}).load(policy(2))).compared


async def test_a_resident_policy_is_not_loaded_again() -> None:
    sent: list[httpx.Request] = []
    await engine({"/v1/models": models(NAME)}, sent).load(policy(2))
    assert [request.url.path for request in sent] == ["/v1/models"]


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (httpx.Response(422, json={"error": {"message": "sha256 differs"}}), "422: sha256 differs"),
        (httpx.Response(400, json={"detail": "no such base"}), "400: no such base"),
        (httpx.Response(500, text="broken"), "500: broken"),
    ],
)
async def test_a_refusal_is_one_line(answer: httpx.Response, line: str) -> None:
    with pytest.raises(Rejected) as caught:
        await engine({"/v1/models": models(), "/v1/load_lora_adapter": answer}).load(policy(2))
    assert str(caught.value) == line


async def test_an_outage_is_reported_without_the_engines_words() -> None:
    """They are logged, and what an engine says may quote a prompt or a key."""
    busy = httpx.Response(429, json={"error": {"message": "too long: the prompt itself"}})
    with pytest.raises(Unavailable, match=r"^the engine answered 429$"):
        await engine({"/v1/models": models(NAME), "/v1/chat/completions": busy}).ask(policy(2), "x")


async def test_an_outage_is_unavailable_and_no_refusal() -> None:
    with pytest.raises(Unavailable, match="answered 503"):
        await engine({"/v1/models": httpx.Response(503)}).load(policy(2))

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    client = AsyncApiClient(engine_peer("http://engine", None), httpx.MockTransport(gone))
    with pytest.raises(Unavailable, match="does not answer at http://engine"):
        await HttpEngine(client, 5).load(policy(2))


async def test_log_probabilities_of_an_answer() -> None:
    content = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": None}]
    body = {"choices": [{"logprobs": {"content": content}}]}
    answer = await engine({"/v1/chat/completions": httpx.Response(200, json=body)}).ask(policy(2), "hello")
    assert list(answer.logprobs) == [-0.5, None]


async def test_an_answer_without_log_probabilities_is_refused() -> None:
    body = {"choices": [{"logprobs": None}]}
    with pytest.raises(Rejected, match="no log-probabilities"):
        await engine({"/v1/chat/completions": httpx.Response(200, json=body)}).ask(policy(2), "hello")
