"""The deployer's gates on vLLM itself: what they compare on each replica, what they refuse, and whose fault it is."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from ratchet.canary_deployer.app import manifest_of
from ratchet.canary_deployer.domain.rollout import FAILED, PASSED, GateResult
from ratchet.canary_deployer.gates.probe import ProbeGate
from ratchet.canary_deployer.gates.warmup import WarmupGate
from ratchet.canary_deployer.http_engines import HttpEngines
from ratchet.canary_deployer.replicas import ReplicaChecks
from ratchet.canary_deployer.unloading import Unloader
from ratchet.core.contract.policy_manifest import FLOAT32
from ratchet.core.contract.state import PolicyVersion, Route, ServedPolicy
from ratchet.core.errors import Unavailable
from ratchet.core.rules.arms import policy_name
from ratchet.core.service.engine_list import EngineSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import Policy
from tests.support.canary_world import policy
from tests.support.vllm_process import PROCESSED, ROLE, RunningVllm


def registered(stored: Policy, version: int = 2, **changes: Any) -> PolicyVersion:
    name = policy_name(ROLE, version, stored.digest)
    return policy(version, name=name, digest=stored.digest, uri=stored.uri, kind=stored.manifest.kind, **changes)


@asynccontextmanager
async def engines(replicas: list[RunningVllm], logprobs_mode: str | None = None) -> AsyncIterator[HttpEngines]:
    urls = tuple(replica.url for replica in replicas)
    settings = EngineSettings.model_validate(
        {"name": "small", "kind": "vllm", "urls": urls, "roles": ["*"], "logprobs_mode": logprobs_mode}
    )
    async with HttpEngines([settings], 120) as made:
        yield made


async def probed(replicas: list[RunningVllm], candidate: Policy, logprobs_mode: str | None = None) -> GateResult:
    """The candidate's probe, beside a stable policy."""
    stable = replicas[0].publish(dtype=FLOAT32, algorithm="stable")
    async with engines(replicas, logprobs_mode) as made:
        gate = ProbeGate(ReplicaChecks(made, time.monotonic), partial(manifest_of, Objects(replicas[0].shared)))
        return await gate.check(registered(candidate), registered(stable, 1))


async def test_right_adapter_passes_on_both_replicas_and_each_reports_its_kind(
    replicas: list[RunningVllm],
) -> None:
    result = await probed(replicas, replicas[0].publish(dtype=FLOAT32))
    assert result.outcome == PASSED, result.reason
    assert [figures["logprobs_mode"] for figures in result.evidence["replicas"].values()] == [
        replica.logprobs_mode for replica in replicas
    ]
    for figures in result.evidence["replicas"].values():
        assert figures["worst"] < 1e-4
        assert (figures["plays"], figures["not_checked"]) == (3, [])
    assert result.reason.startswith("its log-probabilities on the probe match on 2 of 2 replicas: ")


async def test_a_replica_with_raw_log_probabilities_is_named_and_the_gate_waits(replicas: list[RunningVllm]) -> None:
    raw = next(replica for replica in replicas if replica.logprobs_mode != PROCESSED)
    with pytest.raises(Unavailable) as caught:
        await probed(replicas, raw.publish(dtype=FLOAT32), PROCESSED)
    assert str(caught.value).startswith(f"small at {raw.url}: at temperature 2 log-probabilities are raw")


async def test_the_probe_of_another_adapter_fails_with_the_numbers(replicas: list[RunningVllm]) -> None:
    probe = replicas[0].published.adapter.manifest.probe
    assert probe is not None
    other = msgspec.structs.replace(probe, logprobs=[value - 0.01 for value in probe.logprobs])
    result = await probed(replicas, replicas[0].publish(dtype=FLOAT32, probe=other))
    assert result.outcome == FAILED
    for replica in replicas:
        assert (
            f"small at {replica.url}: log-probabilities on the probe differ by 0.01 nats in the mean" in result.reason
        )


async def test_a_policy_of_another_base_fails_in_the_plugins_words(replicas: list[RunningVllm]) -> None:
    files = [
        msgspec.structs.replace(file, uri=f"{file.uri[:-8]}deadbeef")
        for file in replicas[0].published.adapter.manifest.files
    ]
    for changes, words in (
        ({"base_model": "another", "base_digest": None}, "it was trained on another, and this vLLM serves"),
        ({"files": files}, "lacks a file"),
    ):
        result = await probed(replicas, replicas[0].publish(**changes))
        assert result.outcome == FAILED
        assert words in result.reason


async def test_a_policy_that_the_store_holds_and_vllm_does_not_find_waits(replicas: list[RunningVllm]) -> None:
    """As without the plugin: the name of a policy whose digest is no manifest's."""
    stored = replicas[0].publish(dtype=FLOAT32)
    async with engines(replicas) as made:
        gate = ProbeGate(ReplicaChecks(made, time.monotonic), partial(manifest_of, Objects(replicas[0].shared)))
        unknown = msgspec.structs.replace(registered(stored), name=f"{ROLE}@2-00000000")
        with pytest.raises(Unavailable, match="does it run with Ratchet's plugin"):
            await gate.check(unknown, None)


async def test_both_replicas_warm_up(replicas: list[RunningVllm]) -> None:
    stored = replicas[0].publish(dtype=FLOAT32)
    async with engines(replicas) as made:
        gate = WarmupGate(ReplicaChecks(made, time.monotonic), ["where is my order"], None)
        result = await gate.check(registered(stored), None)
    assert result.outcome == PASSED
    assert len(result.evidence["replicas"]) == 2


class Registry:
    """One ended policy beside the one that serves."""

    def __init__(self, stable: PolicyVersion, ended: PolicyVersion) -> None:
        self._stable, self._ended = stable, ended

    async def roles(self) -> list[str]:
        return [ROLE]

    async def route(self, role: str) -> Route:
        one = self._stable
        return Route(role=role, stable=ServedPolicy(version=one.version, name=one.name, digest=one.digest))

    async def versions(self, role: str) -> list[PolicyVersion]:
        return [self._stable, self._ended]


async def test_ended_policy_leaves_both_replicas_and_answers_again_on_demand(
    replicas: list[RunningVllm],
) -> None:
    stable = registered(replicas[0].publish(algorithm="kept"), 1, stage="stable")
    ended = registered(replicas[0].publish(algorithm="ended"), 2, stage="rolled_back")
    for replica in replicas:
        assert {replica.ask(one.name, max_tokens=1).status_code for one in (stable, ended)} == {200}
    async with engines(replicas) as made:
        await Unloader(made, Registry(stable, ended), 0, time.monotonic).sweep()
    for replica in replicas:
        assert ended.name not in replica.listed()
        assert {"base", stable.name} <= set(replica.listed())
        assert replica.ask(ended.name, max_tokens=1).status_code == 200
