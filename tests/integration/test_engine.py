"""The local engine as a process: policies come from a real object store, wrong ones are refused."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from ratchet.core.contract.policy_manifest import Probe
from ratchet.core.rules.arms import policy_name
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import publish_policy
from tests.support.engine_process import Published, logprobs_by_transformers, publish, running_engine
from tests.support.servers import RunningServer, s3_settings

pytestmark = pytest.mark.slow

ROLE = "helpdesk"
ASKED = [{"role": "user", "content": "where is my order K47"}]


@pytest.fixture(scope="module")
def shared(s3: RunningServer) -> SharedSettings:
    return s3_settings(s3, "engine-test")


@pytest.fixture(scope="module")
def published(shared: SharedSettings, tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish(shared, tmp_path_factory.mktemp("published"), ROLE)


@pytest.fixture(scope="module")
def engine(shared: SharedSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_engine(shared, tmp_path_factory.mktemp("engine")) as server:
        yield server


@asynccontextmanager
async def client(engine: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine.url, timeout=30) as http:
        yield http


async def ask(http: httpx.AsyncClient, model: str, **members: Any) -> httpx.Response:
    body = {"model": model, "messages": ASKED, "logprobs": True, "return_token_ids": True, "max_tokens": 8, **members}
    return await http.post("/v1/chat/completions", json=body)


async def test_both_kinds_of_policy_give_the_logprobs_that_transformers_gives(
    engine: RunningServer, published: Published
) -> None:
    async with client(engine) as http:
        for version, policy in ((1, published.model), (2, published.adapter)):
            answers = [ask(http, policy_name(ROLE, version, policy.digest), temperature=1.0) for _ in range(4)]
            for answer in await asyncio.gather(*answers):
                (choice,) = answer.json()["choices"]
                logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
                prompt, output = answer.json()["prompt_token_ids"], choice["token_ids"]
                adapted = policy is published.adapter
                expected = logprobs_by_transformers(published, prompt, output, adapted=adapted)
                assert max(abs(a - b) for a, b in zip(logprobs, expected, strict=True)) < 1e-4


async def test_policies_that_differ_from_the_published_ones_are_refused(
    engine: RunningServer, published: Published, shared: SharedSettings
) -> None:
    objects = Objects(shared)
    probe = published.adapter.manifest.probe
    assert probe is not None
    shifted = Probe(
        prompt_token_ids=probe.prompt_token_ids,
        output_token_ids=probe.output_token_ids,
        logprobs=[logprob - 0.01 for logprob in probe.logprobs],
    )
    wrong = publish_policy(objects, msgspec.structs.replace(published.adapter.manifest, probe=shifted))
    async with client(engine) as http:
        refused = await ask(http, policy_name(ROLE, 3, wrong.digest))
        assert (refused.status_code, refused.json()["error"]["code"]) == (424, "policy_refused")
        assert "differ by 0.01 nats" in refused.json()["error"]["message"]
        unknown = await ask(http, policy_name(ROLE, 4, "0" * 64))
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        foreign = await ask(http, policy_name("planner", 2, published.adapter.digest))
        assert (foreign.status_code, foreign.json()["error"]["code"]) == (424, "policy_refused")


async def test_half_written_adapter_is_refused_in_one_line_and_stable_serves_on(
    engine: RunningServer, published: Published, shared: SharedSettings
) -> None:
    manifest, objects = published.adapter.manifest, Objects(shared)
    missing = [msgspec.structs.replace(file, uri=f"{file.uri[:-8]}deadbeef") for file in manifest.files]
    cut = [
        msgspec.structs.replace(file, uri=objects.put(objects.get(file.uri)[: file.size // 2], "blobs").uri)
        for file in manifest.files
    ]
    stable = policy_name(ROLE, 1, published.model.digest)
    async with client(engine) as http:
        for files, code in ((missing, "policy_not_found"), (cut, "digest_mismatch")):
            half = publish_policy(objects, msgspec.structs.replace(manifest, files=files))
            refused = await ask(http, policy_name(ROLE, 6, half.digest))
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (424, code)
            assert "engine-test/blobs/" in error["message"]
            assert "\n" not in error["message"]
            assert (await ask(http, stable)).status_code == 200
