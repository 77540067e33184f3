"""The public litellm client through the gateway: plain, streamed, pinned, its own errors, going away."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # when it is imported, litellm would fetch its price list

import litellm

from ratchet.bus.testing import eventually
from ratchet.core.contract import Turn
from tests.support.gateway_scene import ROLE, Scene, scene
from tests.support.servers import Broker

# These warnings are about litellm's own use of pydantic.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::pydantic.PydanticDeprecatedSince20", "ignore::pydantic.PydanticDeprecatedSince211"
    ),
]

HI: list[Any] = [{"role": "user", "content": "where is it?"}]


@asynccontextmanager
async def asking(nats: Broker, folder: Path, **options: Any) -> AsyncIterator[tuple[Scene, dict[str, Any]]]:
    """A gateway, and the options of every litellm call."""
    async with scene(nats, folder, **options) as here:
        options = {"model": f"openai/{ROLE}", "api_base": f"{here.url}/v1", "api_key": "none", "max_retries": 0}
        yield here, options


async def test_calls_and_streams_become_turns(nats: Broker, tmp_path: Path) -> None:
    trajectory = str(uuid.uuid4())
    async with asking(nats, tmp_path) as (here, options):
        options["api_base"] = f"{here.url}/t/{trajectory}/v1"
        plain = await litellm.acompletion(messages=HI, **options)
        assert plain.choices[0].message.content == here.engine.answer
        talk = [*HI, plain.choices[0].message.model_dump(), {"role": "user", "content": "thanks"}]
        stream = await litellm.acompletion(
            messages=talk, stream=True, stream_options={"include_usage": True}, **options
        )
        chunks = [chunk async for chunk in stream]
        built = litellm.stream_chunk_builder(chunks, messages=talk)
        assert built.choices[0].message.content == here.engine.answer
        assert built.usage.completion_tokens == len(here.engine.answer)
        first, second = await here.published(Turn, 2)
        assert (first.trajectory_id, second.trajectory_id) == (trajectory, trajectory)
        assert second.parent_turn_id == first.turn_id
        assert (first.trainable.ok, second.trainable.ok) == (True, True)


async def test_a_version_is_pinned_by_the_extra_body(nats: Broker, tmp_path: Path) -> None:
    async with asking(nats, tmp_path) as (here, options):
        await litellm.acompletion(messages=HI, extra_body={"adapter_id": f"{ROLE}@2"}, **options)
        (turn,) = await here.published(Turn, 1)
        assert (turn.policy.version, turn.policy.arm) == (2, "pinned")


async def test_errors_are_litellms_own(nats: Broker, tmp_path: Path) -> None:
    async with asking(nats, tmp_path, api_keys=["good-0123456789ab"]) as (here, options):
        with pytest.raises(litellm.AuthenticationError):
            await litellm.acompletion(messages=HI, **options)
        options["api_key"] = "good-0123456789ab"
        with pytest.raises(litellm.NotFoundError):
            await litellm.acompletion(messages=HI, **{**options, "model": "openai/nobody"})
        here.engine.broken = True
        with pytest.raises(litellm.BadGatewayError):
            await litellm.acompletion(messages=HI, stream=True, **options)


async def test_going_away_in_mid_stream_ends_the_engines_call(nats: Broker, tmp_path: Path) -> None:
    async with asking(nats, tmp_path, keep_alive_s=0.02) as (here, options):
        here.engine.at_work.clear()
        stream = await litellm.acompletion(messages=HI, stream=True, **options)
        reading = asyncio.create_task(anext(aiter(stream)))

        async def asked() -> bool:
            return bool(here.engine.asked)

        async def left() -> bool:
            return here.engine.left == 1

        await eventually(asked)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stream.completion_stream.close()
        await eventually(left)
        (turn,) = await here.published(Turn, 1)
        assert turn.trainable.reason == "cancelled"
        here.engine.at_work.set()
