"""The local engine as a process, read by public clients: streams that are left, and a prompt that is too long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # when it is imported, litellm would fetch its price list

import litellm

from ratchet.bus.testing import eventually
from ratchet.core.rules.arms import policy_name
from ratchet.core.service.settings import SharedSettings
from tests.support.engine_process import publish, running_engine
from tests.support.servers import RunningServer, s3_settings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::pydantic.PydanticDeprecatedSince20", "ignore::pydantic.PydanticDeprecatedSince211"
    ),
]
HI: list[Any] = [{"role": "user", "content": "where is my order K47"}]


@pytest.fixture(scope="module")
def engine(s3: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str]]:
    """The engine beside a store with one policy, and the policy's name."""
    shared: SharedSettings = s3_settings(s3, "engine-clients")
    scratch: Path = tmp_path_factory.mktemp("engine")
    policy = publish(shared, scratch, "support").model
    name = policy_name("support", 1, policy.digest)
    with running_engine(shared, scratch) as server:
        yield server, name


async def test_a_client_that_leaves_a_stream_ends_the_work(engine: tuple[RunningServer, str]) -> None:
    server, name = engine
    metrics = f"http://127.0.0.1:{server.program.health_port}/metrics"
    cancelled = f'ratchet_engine_requests_total{{outcome="cancelled",policy="{name}"}} 1.0'
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        # Greedy, this model repeats itself and never ends.
        stream = await client.chat.completions.create(
            model=name, messages=HI, stream=True, max_tokens=4000, temperature=0
        )
        assert (await anext(stream)).choices[0].delta.role == "assistant"
        await stream.close()
        async with httpx.AsyncClient() as http:

            async def probe() -> bool:
                lines = (await http.get(metrics)).text.splitlines()
                return cancelled in lines and "ratchet_engine_open_requests 0.0" in lines

            assert await eventually(probe)


async def test_litellm_knows_that_a_prompt_is_too_long(engine: tuple[RunningServer, str]) -> None:
    server, name = engine
    long: list[Any] = [{"role": "user", "content": "where " * 5000}]
    with pytest.raises(litellm.ContextWindowExceededError, match="maximum context length is 4096 tokens"):
        await litellm.acompletion(
            model=f"openai/{name}", messages=long, api_base=f"{server.url}/v1", api_key="none", max_retries=0
        )
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=name, messages=long)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
