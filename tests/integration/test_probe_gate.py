"""The probe gate against the local engine as a process: it scores prompts as vLLM does, behind a key."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from ratchet.canary_deployer.app import manifest_of
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, PASSED
from ratchet.canary_deployer.gates.probe import ProbeGate
from ratchet.canary_deployer.gates.takes_tools import TakesToolsGate
from ratchet.canary_deployer.gates.warmup import WarmupGate
from ratchet.canary_deployer.http_engines import HttpEngines
from ratchet.canary_deployer.replicas import ReplicaChecks
from ratchet.core.contract.policy_manifest import FLOAT32, PolicyManifest
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


@pytest.fixture
async def checks(engine: RunningServer) -> AsyncIterator[ReplicaChecks]:
    settings = EngineSettings.model_validate(
        {"name": "small", "kind": "engine_local", "urls": [engine.url], "roles": ["*"], "api_key": KEY}
    )
    async with HttpEngines([settings], 60) as engines:
        yield ReplicaChecks(engines, time.monotonic)


async def read_manifest(objects: Objects, policy: PolicyVersion) -> PolicyManifest:
    """That of the store, in the number format of the engine."""
    return msgspec.structs.replace(await manifest_of(objects, policy), dtype=FLOAT32)


async def test_probe_gate_checks_everything_about_the_right_adapter(
    checks: ReplicaChecks, published: Published, shared: SharedSettings
) -> None:
    adapter, model = registered(published.adapter, 2), registered(published.model, 1)
    result = await ProbeGate(checks, partial(read_manifest, Objects(shared))).check(adapter, model)
    warm = await WarmupGate(checks, ["hello"], None).check(adapter, model)
    assert (result.outcome, warm.outcome) == (PASSED, PASSED)
    (figures,) = result.evidence["replicas"].values()
    assert (figures["tokens"], figures["logprobs_mode"], figures["not_checked"]) == (4, "processed_logprobs", [])
    assert figures["worst"] < 1e-4
    assert KEY not in str(result) + str(warm)


async def test_probe_gate_refuses_another_base_in_the_engines_words(
    checks: ReplicaChecks, engine: RunningServer, published: Published, shared: SharedSettings
) -> None:
    wrong = publish_policy(Objects(shared), msgspec.structs.replace(published.adapter.manifest, base_digest="0" * 64))
    gate = ProbeGate(checks, partial(read_manifest, Objects(shared)))
    result = await gate.check(registered(wrong, 3), registered(published.model, 1))
    assert result.outcome == FAILED
    assert result.reason.startswith(f"the engine cannot serve it: small at {engine.url}: ")
    assert "0000000000000000" in result.reason


async def test_takes_tools_gate_sees_a_template_that_drops_them(
    checks: ReplicaChecks, published: Published, shared: SharedSettings, tmp_path: Path
) -> None:
    directory = shutil.copytree(published.directory, tmp_path / "no-tools")
    (directory / "chat_template.jinja").write_text(template_source("smollm2"))
    silent = registered(publish_tiny_model(Objects(shared), directory, ROLE, AT), 4)
    adapter, model = registered(published.adapter, 2), registered(published.model, 1)
    gate = TakesToolsGate(checks)
    assert (await gate.check(adapter, model)).outcome == PASSED
    result = await gate.check(silent, model)
    assert (result.outcome, result.evidence["takes_tools"]) == (NEEDS_APPROVAL, False)


async def test_probe_gate_waits_for_an_engine_that_restarts(
    checks: ReplicaChecks, engine: RunningServer, published: Published, shared: SharedSettings
) -> None:
    adapter, model = registered(published.adapter, 2), registered(published.model, 1)
    gate = ProbeGate(checks, partial(read_manifest, Objects(shared)))
    await asyncio.to_thread(engine.kill)
    with pytest.raises(Unavailable, match="no replica answers: small at http"):
        await gate.check(adapter, model)
    await asyncio.to_thread(engine.start)
    assert (await gate.check(adapter, model)).outcome == PASSED
