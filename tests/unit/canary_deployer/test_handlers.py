"""Completed jobs become versions, once each, whatever is delivered again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.message import Cause
from ratchet.bus.received import Received
from ratchet.bus.testing import START, FakeBus
from ratchet.canary_deployer.domain.announcements import Announcer
from ratchet.canary_deployer.handlers import Handlers
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.core.contract import Alert, ModelDeployed, TrainingRequest, TrainingStatus, named_id
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.state import JOBS, POLICIES, Job, PolicyVersion, Route
from ratchet.core.contract.training import Artifacts, Dataset, Hyperparameters, TrainingConfig
from ratchet.core.errors import DigestMismatch, NotFound, ObjectsUnavailable, Unavailable
from ratchet.core.stores.policies import encode_manifest
from tests.support.canary_world import FakeLead, bundle_registry
from tests.support.fake_bus import fake_bus

JOB = named_id("job", "one")
DIGEST = "ab" * 32
MANIFEST = PolicyManifest(
    kind="adapter",
    base_model="s3://ratchet/policies/base.json",
    files=[],
    role="support",
    created_at=START,
    training_samples=64,
    final_reward=0.7,
    algorithm="rloo",
    metrics={"loss": 0.5},
)


@dataclass
class FakeObjects:
    """One manifest, or a fault."""

    fault: Exception | None = None
    manifest: PolicyManifest = MANIFEST

    def get(self, uri: str, sha256: str | None = None) -> bytes:
        if self.fault is not None:
            raise self.fault
        return encode_manifest(self.manifest)


@dataclass
class Registrar:
    """The handlers on a fake bus."""

    objects: FakeObjects = field(default_factory=FakeObjects)
    bus: FakeBus = field(default_factory=fake_bus)
    called: list[str] = field(default_factory=list)
    engines: dict[str, str] = field(default_factory=lambda: {"support": "vllm", "planner": "engine_local"})
    """The kind of each role's engine."""

    def __post_init__(self) -> None:
        self.policies = KvPolicies(
            Bucket(self.bus, POLICIES, Route), Bucket(self.bus, POLICIES, PolicyVersion), FakeLead()
        )
        self.handlers = Handlers(
            policies=self.policies,
            jobs=Bucket(self.bus, JOBS, Job),
            objects=self.objects,
            engine_kind_of=self.engines.get,
            on_registered=self.called.append,
            announcer=Announcer("http://127.0.0.1:8080"),
            bundles=bundle_registry(self.bus, self.policies, self.objects, self.called.append),
            now=lambda: START,
        )

    async def deliver(self, one: TrainingStatus) -> list[Any]:
        received = Received(one, one.subject, "RL_TRAINING", 1, 1, one.event_id, START, one.event_id)
        events = await self.handlers.on_training_status(received)
        await self.bus.publish_all(events)
        return list(events)


def status(job: str = JOB, **changes: object) -> TrainingStatus:
    artifacts = Artifacts(final_checkpoint=f"s3://ratchet/policies/{DIGEST}.json", digest=DIGEST, kind="adapter")
    plain = {"training_job_id": job, "timestamp": START, "status": "completed", "role": "support"}
    return TrainingStatus(**(plain | {"artifacts": artifacts} | changes))


def job(**changes: object) -> Job:
    dataset = Dataset(source="s3", sample_size=1)
    config = TrainingConfig(
        algorithm="rloo", base_model="s3://b/m.json", dataset=dataset, hyperparameters=Hyperparameters()
    )
    request = TrainingRequest(
        training_job_id=JOB, timestamp=START, requester="ann", trigger_reason="manual", training_config=config
    )
    plain = {
        "training_job_id": JOB,
        "role": "support",
        "algorithm": "rloo",
        "state": "completed",
        "priority": "normal",
        "created_at": START,
        "updated_at": START,
        "request": request,
        "attempt": 1,
        "parent": "support@4-12345678",
    }
    return Job(**(plain | changes))


async def test_a_completed_job_becomes_the_next_version() -> None:
    registrar = Registrar()
    await Bucket(registrar.bus, POLICIES, Route).put("support", Route(role="support", next_version=5))
    await Bucket(registrar.bus, JOBS, Job).put(JOB, job())
    (event,) = await registrar.deliver(status())
    policy = await registrar.policies.version("support", 5)
    assert (policy.name, policy.stage, policy.parent) == (f"support@5-{DIGEST[:8]}", "registered", 4)
    assert (policy.base_model, policy.training_samples, policy.final_reward) == (MANIFEST.base_model, 64, 0.7)
    assert (policy.algorithm, policy.metrics, policy.status) == ("rloo", {"loss": 0.5}, "pending")
    assert policy.cause == Cause(event_id=status().event_id, correlation_id=status().event_id)
    assert (event.state, event.policy_version, event.adapter_digest) == ("registered", 5, DIGEST)
    route = await registrar.policies.route("support")
    assert route is not None
    assert route.next_version == 6
    assert registrar.called == ["support"]


async def test_the_same_job_twice_is_one_version_and_one_event() -> None:
    registrar = Registrar()
    first, again = await registrar.deliver(status()), await registrar.deliver(status(timestamp=START))
    assert [policy.version for policy in await registrar.policies.versions("support")] == [1]
    assert first == again
    assert registrar.bus.broker.duplicates == 1


async def test_a_kill_between_policy_and_counter_loses_no_version() -> None:
    registrar = Registrar()
    registrar.bus.faults.at, registrar.bus.faults.after_effect = 1, True
    with pytest.raises(Exception, match=r"after policies/support\.1"):
        await registrar.deliver(status())
    await registrar.deliver(status())
    await registrar.deliver(status(job=named_id("job", "two")))
    assert [policy.version for policy in await registrar.policies.versions("support")] == [1, 2]


def whole_model(**changes: object) -> TrainingStatus:
    artifacts = Artifacts(final_checkpoint=f"s3://ratchet/policies/{DIGEST}.json", digest=DIGEST, kind="model")
    return status(artifacts=artifacts, **changes)


async def test_whole_model_for_engine_of_adapters_is_refused_at_its_registration() -> None:
    registrar = Registrar(FakeObjects(manifest=msgspec.structs.replace(MANIFEST, kind="model")))
    registered, refused, alert = await registrar.deliver(whole_model())
    policy = await registrar.policies.version("support", 1)
    assert policy.stage == "refused"
    assert policy.reason == (
        "it is a whole model, and the engine of support (vllm) holds adapters of its one base model only: train an"
        " adapter (leave full_finetune out), or name an engine_local for the role in RATCHET_ENGINES and start the"
        " rollout of this version again"
    )
    assert [type(one) for one in (registered, refused, alert)] == [ModelDeployed, ModelDeployed, Alert]
    assert [(one.state, one.policy_version) for one in (registered, refused)] == [("registered", 1), ("aborted", 1)]
    assert refused.reason == policy.reason
    assert alert.summary == f"support@1-{DIGEST[:8]} was refused at its registration: {policy.reason}"
    again = await registrar.deliver(whole_model())
    assert [one.event_id for one in again] == [one.event_id for one in (registered, refused, alert)]
    assert registrar.bus.broker.duplicates == 3


@pytest.mark.parametrize("role", ["planner", "unserved"])
async def test_a_whole_model_for_any_other_engine_is_registered_for_the_gates(role: str) -> None:
    registrar = Registrar(FakeObjects(manifest=msgspec.structs.replace(MANIFEST, kind="model")))
    assert len(await registrar.deliver(whole_model(role=role))) == 1
    assert (await registrar.policies.version(role, 1)).stage == "registered"


async def test_an_adapter_that_its_gates_have_refused_stays_refused_by_them() -> None:
    """Its job's status may come again after that."""
    registrar = Registrar()
    await registrar.deliver(status())
    await registrar.policies.change_version(
        "support", 1, lambda known: msgspec.structs.replace(known, stage="refused", reason="probe", gate={"probe": {}})
    )
    (registered,) = await registrar.deliver(status())
    assert registered.state == "registered"


@pytest.mark.parametrize(
    "other",
    [
        status(status="running"),
        status(status="failed"),
        status(artifacts=None),
        status(offer=False),  # however long ago its job was forgotten
        status(artifacts=Artifacts(final_checkpoint="s3://b/r.json", digest=DIGEST, kind="reward_model")),
        status(artifacts=Artifacts(final_checkpoint="s3://b/r.json", kind="adapter")),
    ],
)
async def test_every_other_status_is_ignored(other: TrainingStatus) -> None:
    registrar = Registrar()
    assert await registrar.deliver(other) == []
    assert await registrar.policies.versions("support") == []


async def test_reward_model_is_no_version_of_its_role() -> None:
    """By its kind it is not registered at all; called an adapter, it has no manifest that gates would pass."""
    for kind in ("reward_model", "adapter"):
        registrar = Registrar(FakeObjects(manifest=msgspec.structs.replace(MANIFEST, kind="reward_model")))
        await Bucket(registrar.bus, JOBS, Job).put(JOB, job())
        await registrar.deliver(status(artifacts=Artifacts(final_checkpoint="s3://b/r.json", digest=DIGEST, kind=kind)))
        registered = await registrar.policies.versions("support")
        assert [policy.training_samples for policy in registered] == ([] if kind == "reward_model" else [None])


async def test_the_status_of_a_fenced_attempt_is_ignored() -> None:
    registrar = Registrar()
    await Bucket(registrar.bus, JOBS, Job).put(JOB, job(attempt=2))
    assert await registrar.deliver(status(attempt=1)) == []
    assert len(await registrar.deliver(status(attempt=2))) == 1


@pytest.mark.parametrize("fault", [NotFound("no such object"), DigestMismatch("other bytes")])
async def test_a_broken_manifest_is_registered_for_the_gates_to_refuse(fault: Exception) -> None:
    registrar = Registrar(FakeObjects(fault))
    await Bucket(registrar.bus, JOBS, Job).put(JOB, job())
    await registrar.deliver(status())
    policy = await registrar.policies.version("support", 1)
    assert (policy.base_model, policy.training_samples, policy.algorithm) == ("s3://b/m.json", None, "rloo")


async def test_an_object_store_that_is_away_is_a_reason_to_retry() -> None:
    with pytest.raises(Unavailable):
        await Registrar(FakeObjects(ObjectsUnavailable("away"))).deliver(status())


async def test_a_job_with_a_foreign_parent_has_no_parent_version() -> None:
    registrar = Registrar()
    await Bucket(registrar.bus, JOBS, Job).put(JOB, job(parent="billing@2-12345678"))
    await registrar.deliver(status())
    assert (await registrar.policies.version("support", 1)).parent is None
