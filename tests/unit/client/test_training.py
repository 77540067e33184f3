"""The servers that a client asks for training over HTTP, and the requests that each of them gets."""

from __future__ import annotations

import httpx
import msgspec
import pytest
from pydantic import SecretStr

from ratchet.client.training import Listener, ask_over_http, request_of
from ratchet.core.contract import TrainingRequest
from ratchet.core.errors import Rejected, Unavailable
from tests.support.messages import AT

COORDINATOR = Listener("the coordinator", "http://ann:secret@coordinator:8081/")
GATEWAY = Listener("the gateway", "http://gateway:8080", SecretStr("key-of-the-gateway"))


def request(**hyperparameters: object) -> TrainingRequest:
    return request_of(
        role="support",
        algorithm="sft",
        requester="client:a",
        fresh_id="job-1",
        now=AT,
        hyperparameters=hyperparameters,
    )


async def asked(*statuses: int | None) -> list[httpx.Request]:
    """The requests that were made, of listeners that answer with a status, or not at all."""
    made: list[httpx.Request] = []

    def answer(one: httpx.Request) -> httpx.Response:
        made.append(one)
        status = statuses[len(made) - 1]
        if status is None:
            raise httpx.ConnectError("refused", request=one)
        return httpx.Response(status, text="no data")

    await ask_over_http([COORDINATOR, GATEWAY], request(), httpx.MockTransport(answer))
    return made


async def test_the_gateways_key_is_for_the_gateway_alone() -> None:
    first, second = await asked(None, 202)
    assert (first.url.host, "key-of-the-gateway" in str(first.headers.raw)) == ("coordinator", False)
    assert (second.url.host, second.headers["authorization"]) == ("gateway", "Bearer key-of-the-gateway")
    assert [one.url.path for one in (first, second)] == ["/v1/jobs"] * 2
    assert msgspec.json.decode(second.content)["training_job_id"] == "job-1"


async def test_first_server_that_takes_or_refuses_a_request_is_the_last_asked() -> None:
    assert len(await asked(201)) == 1
    with pytest.raises(Rejected, match="no data"):
        await asked(422)


async def test_the_reasons_name_servers_and_addresses_without_credentials() -> None:
    with pytest.raises(Unavailable) as raised:
        await asked(None, 401)
    assert "the coordinator does not answer at http://coordinator:8081/ (" in str(raised.value)
    assert "the gateway answered 401" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "key-of-the-gateway" not in str(raised.value)


def test_a_misspelt_or_impossible_hyperparameter_is_refused() -> None:
    with pytest.raises(Rejected, match="no such hyperparameter: learning_rat"):
        request(learning_rat=1e-5)
    with pytest.raises(Rejected, match="hyperparameters: "):
        request(learning_rate="fast")
