"""A provider's sentence about its refusal reaches people without what may be a key."""

from __future__ import annotations

import msgspec
import pytest
from structlog.testing import capture_logs

from ratchet.core.contract.state import ServedPolicy
from ratchet.dialects.apis import APIS
from ratchet.dialects.requests import read_fields
from ratchet.gateway.domain.refusals import QUOTED, sentence_of
from ratchet.gateway.engines.base import EngineFailed, Reply, gateway_refused
from ratchet.gateway.engines.openai import OpenAiEngine
from tests.support.gateway_alone import Server

KEYS = (
    "sk-a1b2c3d4e5f6a7b8c9d0",
    "sk-proj-abc",
    "sk-pr**********9f3a",
    "gsk_AbCdEfGh1234567890AbCdEfGh",
    "AIzaSyA1b2C3d4E5f6G7h8I9j0K1l2M3n4",
    "0f8fad5b-d9cb-469f-a165-70867728950e",
    "deadbeef00112233445566778899aabb",
)


@pytest.mark.parametrize("key", KEYS)
def test_no_form_of_a_key_is_quoted(key: str) -> None:
    for text in (f"Incorrect API key provided: {key}. Ask for another.", f'key="{key}" is wrong', f"({key})"):
        assert key not in sentence_of(text)
        assert "[REDACTED" in sentence_of(text)


def test_names_of_models_and_the_rest_stay() -> None:
    for model in ("gpt-4o-mini-2024-07-18", "ft:gpt-4.1-mini:acme::B7x2", "meta-llama/Llama-3.3-70B-Instruct"):
        text = f"The model `{model}` does not exist or you do not have access to it."
        assert sentence_of(text) == text
    assert sentence_of("a\nb\x1b[2J  c") == "a b [2J c"
    assert len(sentence_of("no " * 1000)) == QUOTED


def test_refusal_quotes_the_provider_for_its_caller_and_names_who_must_act() -> None:
    body = {"error": {"message": f"Incorrect API key provided: {KEYS[0]}", "type": "invalid_request_error"}}
    with capture_logs() as logged:
        refused = gateway_refused("provider", Reply(401, msgspec.json.encode(body)))
    assert logged == [
        {"event": "the engine refuses the gateway", "engine": "provider", "status": 401, "log_level": "error"}
    ]
    words, _, remedy = str(refused).partition("): ")
    assert words.startswith("provider refuses the gateway (401, Incorrect API key provided: [REDACTED:")
    assert remedy == "the operator must correct its key, URL or model name"
    assert str(gateway_refused("provider", Reply(404, b"<html>"))).startswith("provider refuses the gateway (404): the")


@pytest.mark.parametrize(
    ("status", "error", "lacks_model"),
    [
        (404, {"code": "model_not_found", "message": "no such model"}, True),
        (400, {"code": "model_not_found", "message": "no such model"}, True),
        (404, {"code": "DeploymentNotFound", "message": "The deployment does not exist."}, True),
        (404, {"type": "not_found_error", "message": "model: large-model"}, True),
        (404, {"message": "Not Found"}, False),
        (401, {"message": "no key for large-model"}, False),
    ],
)
async def test_a_server_without_the_model_is_no_wrong_url(
    status: int, error: dict[str, str], lacks_model: bool
) -> None:
    server = Server(refusal=Reply(status, msgspec.json.encode({"error": error})))
    server.may_answer.set()
    engine = OpenAiEngine(server, "provider", {"*": "*"})
    call = APIS["chat"].read(read_fields(b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'))
    with pytest.raises(EngineFailed) as caught:
        await engine.ask(APIS["chat"], call, ServedPolicy(version=0, name="provider:large-model", digest=""), "support")
    assert (caught.value.status, caught.value.lacks_model) == (424, lacks_model)
