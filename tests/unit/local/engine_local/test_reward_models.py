"""Reward models score conversations as the trainer reads them, and only those that were named by their digest."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.bus.message import JsonObject
from ratchet.core.contract.policy_manifest import REWARD_MODEL
from ratchet.core.rules.engines import POLICY_REFUSED
from ratchet.core.service.asgi import JsonApi
from ratchet.local.engine_local.reward_models import MOST_WAITING, RewardModels
from tests.support.blobs import MemoryBlobs
from tests.support.reward_models import AT, CHAT, publish_reward_model, reward_of
from tests.support.tiny_models import publish_tiny_model

TOOLS: list[JsonObject] = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def models(blobs: MemoryBlobs, tmp_path: Path) -> Iterator[RewardModels]:
    made = RewardModels(blobs, tmp_path / "models", lambda: AT)
    yield made
    made.close()


async def classified(models: RewardModels, **body: Any) -> httpx.Response:
    app: Any = JsonApi(lambda _method, _path: models.classify, 1_000_000)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as http:
        return await http.post("/classify", json=body)


@pytest.mark.parametrize("adapter", [True, False])
@pytest.mark.parametrize("tools", [[], TOOLS])
async def test_score_is_the_models_own_as_a_share(
    blobs: MemoryBlobs,
    models: RewardModels,
    tiny_directory: Path,
    tmp_path: Path,
    *,
    adapter: bool,
    tools: list[JsonObject],
) -> None:
    policy, model = publish_reward_model(blobs, tiny_directory, tmp_path / "rm", adapter=adapter)
    answer = (await classified(models, model=policy.digest, messages=CHAT, tools=tools)).json()
    expected = 1 / (1 + math.exp(-reward_of(model, tiny_directory, CHAT, tools or None)))
    (scored,) = answer["data"]
    assert scored["probs"] == [pytest.approx(expected, abs=1e-5)]
    assert (answer["object"], answer["model"], scored["num_classes"]) == ("list", policy.digest, 1)
    assert answer["usage"]["prompt_tokens"] > 10


async def test_policies_and_unknown_digests_are_no_reward_models(
    blobs: MemoryBlobs, models: RewardModels, tiny_directory: Path
) -> None:
    policy = publish_tiny_model(blobs, tiny_directory, "helpdesk", AT)
    refused = await classified(models, model=policy.digest, messages=CHAT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (POLICY_REFUSED, "policy_refused")
    for name in ("0" * 64, "helpdesk@1-1a2b3c4d", policy.digest[:8]):
        unknown = await classified(models, model=name, messages=CHAT)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


async def test_reward_model_of_another_tokenizer_is_refused(
    blobs: MemoryBlobs, models: RewardModels, tiny_directory: Path, tmp_path: Path
) -> None:
    policy, _ = publish_reward_model(blobs, tiny_directory, tmp_path / "rm", adapter=True, tokenizer_digest="0" * 64)
    refused = await classified(models, model=policy.digest, messages=CHAT)
    assert refused.status_code == POLICY_REFUSED
    assert "another tokenizer" in refused.json()["error"]["message"]


async def test_damaged_reward_model_is_refused(
    blobs: MemoryBlobs, models: RewardModels, tiny_directory: Path, tmp_path: Path
) -> None:
    policy, _ = publish_reward_model(blobs, tiny_directory, tmp_path / "rm", adapter=True)
    weights = next(file for file in policy.manifest.files if file.name.endswith(".safetensors"))
    blobs.blobs[weights.uri] = b"damaged"
    refused = await classified(models, model=policy.digest, messages=CHAT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (POLICY_REFUSED, "digest_mismatch")
    assert policy.manifest.kind == REWARD_MODEL


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "messages"),
        (CHAT[:1], "no assistant message"),
        ([CHAT[0], {"role": "assistant", "content": "where is my order K47 " * 2000}], "and the model reads 4096"),
    ],
)
async def test_conversation_that_cannot_be_read_whole_is_refused(
    blobs: MemoryBlobs,
    models: RewardModels,
    tiny_directory: Path,
    tmp_path: Path,
    messages: list[JsonObject],
    reason: str,
) -> None:
    policy, _ = publish_reward_model(blobs, tiny_directory, tmp_path / "rm", adapter=False)
    refused = await classified(models, model=policy.digest, messages=messages)
    assert refused.status_code == 400
    assert reason in refused.json()["error"]["message"]


class HangingBlobs(MemoryBlobs):
    """A store that answers once it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def find(self, prefix: str) -> list[str]:
        assert self.released.wait(60)
        return super().find(prefix)


async def test_what_finds_too_many_waiting_is_refused_for_now(tmp_path: Path) -> None:
    blobs = HangingBlobs()
    models = RewardModels(blobs, tmp_path, lambda: AT)
    asking = [asyncio.create_task(classified(models, model="0" * 64, messages=CHAT)) for _ in range(MOST_WAITING + 1)]
    try:
        (refused,), waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        assert refused.result().status_code == 429
    finally:
        blobs.released.set()
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {404}
    models.close()
