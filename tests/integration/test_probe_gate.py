"""The probe gate against the local engine as a process: it scores prompts as vLLM does, behind a key."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, PASSED, GateResult
from ratchet.canary_deployer.gates.probe import ProbeGate
from ratchet.canary_deployer.gates.takes_tools import TakesToolsGate
from ratchet.canary_deployer.gates.warmup import WarmupGate
from ratchet.canary_deployer.http_engines import HttpEngines
from ratchet.canary_deployer.replicas import ReplicaChecks
from ratchet.canary_deployer.s3_manifests import S3Manifests
from ratchet.core.contract.policy_manifest import FLOAT32, PolicyManifest, Probe
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import Unavailable
from ratchet.core.rules.arms import policy_name
from ratchet.core.service.engine_list import EngineSettings
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import Policy, publish_policy
from tests.support.canary_world import policy
from tests.support.engine_process import AT, Published, publish, running_engine
from tests.support.real_templates import template_source
from tests.support.servers import RunningServer, s3_settings
from tests.support.tiny_models import publish_tiny_model

pytestmark = pytest.mark.slow

ROLE = "support"
KEY = "sk-of-the-probed-engine"


@pytest.fixture(scope="module")
def shared(s3: RunningServer) -> SharedSettings:
    return s3_settings(s3, "probe-gate-test")


@pytest.fixture(scope="module")
def published(shared: SharedSettings, tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish(shared, tmp_path_factory.mktemp("published"), ROLE)


@pytest.fixture(scope="module")
def engine(shared: SharedSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_engine(shared, tmp_path_factory.mktemp("engine"), RATCHET_ENGINE_API_KEY=KEY) as server:
        yield server


def registered(stored: Policy, version: int) -> PolicyVersion:
    name = policy_name(ROLE, version, stored.digest)
    return policy(version, name=name, digest=stored.digest, uri=stored.uri, kind=stored.manifest.kind)


@asynccontextmanager
async def checks(engine: RunningServer, key: str | None = KEY) -> AsyncIterator[ReplicaChecks]:
    settings = EngineSettings.model_validate(
        {"name": "small", "kind": "engine_local", "urls": [engine.url], "roles": ["*"], "api_key": key}
    )
    async with HttpEngines([settings], 60) as engines:
        yield ReplicaChecks(engines, time.monotonic)


class Changed:
    """The manifests of a store, in float32, with another probe for one policy."""

    def __init__(self, shared: SharedSettings, digest: str = "", probe: Probe | None = None) -> None:
        self._inner, self._digest, self._probe = S3Manifests(Objects(shared)), digest, probe

    async def read(self, policy: PolicyVersion) -> PolicyManifest:
        manifest = await self._inner.read(policy)
        probe = self._probe if policy.digest == self._digest else manifest.probe
        return msgspec.structs.replace(manifest, probe=probe, dtype=FLOAT32)


async def test_the_right_adapter_passes_and_everything_about_it_was_checked(
    engine: RunningServer, published: Published, shared: SharedSettings
) -> None:
    adapter, model = registered(published.adapter, 2), registered(published.model, 1)
    async with checks(engine) as asked:
        result = await ProbeGate(asked, Changed(shared)).check(adapter, model)
        warm = await WarmupGate(asked, ["hello"]).check(adapter, model)
    assert result.outcome == PASSED
    (figures,) = result.evidence["replicas"].values()
    assert (figures["tokens"], figures["logprobs_mode"], figures["not_checked"]) == (4, "processed_logprobs", [])
    assert figures["worst"] < 1e-4
    assert warm.outcome == PASSED
    assert KEY not in str(result) + str(warm)


async def test_a_chat_template_that_drops_tools_is_seen(
    engine: RunningServer, published: Published, shared: SharedSettings, tmp_path: Path
) -> None:
    directory = shutil.copytree(published.directory, tmp_path / "no-tools")
    template = directory / "chat_template.jinja"
    template.write_text(template_source("smollm2"))
    silent = registered(publish_tiny_model(Objects(shared), directory, ROLE, AT), 4)
    adapter, model = registered(published.adapter, 2), registered(published.model, 1)
    async with checks(engine) as asked:
        gate = TakesToolsGate(asked)
        assert (await gate.check(adapter, model)).outcome == PASSED
        result = await gate.check(silent, model)
    assert (result.outcome, result.evidence["takes_tools"]) == (NEEDS_APPROVAL, False)


async def test_a_probe_of_another_adapter_fails_while_stable_matches(
    engine: RunningServer, published: Published, shared: SharedSettings
) -> None:
    adapter, model = registered(published.adapter, 2), registered(published.model, 1)
    probe = published.adapter.manifest.probe
    assert probe is not None
    other = msgspec.structs.replace(probe, logprobs=[value - 0.5 for value in probe.logprobs])
    async with checks(engine) as asked:
        result = await ProbeGate(asked, Changed(shared, adapter.digest, other)).check(adapter, model)
    assert result.outcome == FAILED
    assert "log-probabilities on the probe differ by 0.5 nats in the mean" in result.reason


async def refusal(engine: RunningServer, shared: SharedSettings, stored: Policy, stable: Policy) -> GateResult:
    async with checks(engine) as asked:
        gate = ProbeGate(asked, S3Manifests(Objects(shared)))
        return await gate.check(registered(stored, 3), registered(stable, 1))


async def test_an_adapter_for_another_base_is_refused_in_the_engines_words(
    engine: RunningServer, published: Published, shared: SharedSettings
) -> None:
    manifest = msgspec.structs.replace(published.adapter.manifest, base_digest="0" * 64)
    wrong = publish_policy(Objects(shared), manifest)
    result = await refusal(engine, shared, wrong, published.model)
    assert result.outcome == FAILED
    assert result.reason.startswith(f"the engine cannot serve it: small at {engine.url}: ")
    assert "0000000000000000" in result.reason


async def test_a_half_written_adapter_is_refused_and_its_missing_file_named(
    engine: RunningServer, published: Published, shared: SharedSettings
) -> None:
    files = [msgspec.structs.replace(one, uri=f"{one.uri[:-8]}deadbeef") for one in published.adapter.manifest.files]
    half = publish_policy(Objects(shared), msgspec.structs.replace(published.adapter.manifest, files=files))
    result = await refusal(engine, shared, half, published.model)
    assert result.outcome == FAILED
    assert "deadbeef" in result.reason


async def test_a_wrong_key_is_the_operators_to_set(
    engine: RunningServer, published: Published, shared: SharedSettings
) -> None:
    async with checks(engine, "another-key") as asked:
        gate = ProbeGate(asked, S3Manifests(Objects(shared)))
        with pytest.raises(Unavailable, match="refuses the deployer's key") as caught:
            await gate.check(registered(published.adapter, 2), None)
    assert "another-key" not in str(caught.value)


async def test_an_engine_that_restarts_is_waited_for(
    engine: RunningServer, published: Published, shared: SharedSettings
) -> None:
    adapter, model = registered(published.adapter, 2), registered(published.model, 1)
    async with checks(engine) as asked:
        gate = ProbeGate(asked, S3Manifests(Objects(shared)))
        await asyncio.to_thread(engine.kill)
        with pytest.raises(Unavailable, match="no replica answers: small at http"):
            await gate.check(adapter, model)
        await asyncio.to_thread(engine.start)
        assert (await gate.check(adapter, model)).outcome == PASSED
