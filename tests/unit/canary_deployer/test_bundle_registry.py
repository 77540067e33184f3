"""Bundles become versions of their role: once each, checked, beside version 0."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.received import Received
from ratchet.bus.testing import START
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.handlers import Handlers
from ratchet.canary_deployer.kv_bundles import BundleSweep
from ratchet.canary_deployer.unloading import unneeded
from ratchet.core.contract import ModelDeployed, TrainingStatus, named_id
from ratchet.core.contract.bundle import NO_BUNDLE, Bundle, BundleModel, Example, Instructions, ToolTexts
from ratchet.core.contract.http.rollouts import BundleIn, BundleOut
from ratchet.core.contract.policy_manifest import ArtifactFile, PolicyManifest
from ratchet.core.contract.state import BUNDLES, JOBS, POLICIES, Job, PolicyVersion, ServedPolicy
from ratchet.core.contract.training import Artifacts
from ratchet.core.contract.workflows import PlannerRef
from ratchet.core.errors import BadRequest, NotFound
from ratchet.core.planning.files import LINUCB, Description, PlannerFile, save_planner
from ratchet.core.planning.selectors import train_linucb
from ratchet.core.rules.arms import served
from ratchet.core.service.leadership import NotLeading
from ratchet.core.stores.policies import Policy, find_policy, publish_policy
from tests.support.blobs import MemoryBlobs
from tests.support.canary_world import ROLE, CanaryWorld, bundle_registry, policy
from tests.support.executions import execution

POLITE = Bundle(instructions=Instructions(text="Be polite."))
SMALL = BundleModel(name="small", upstream="openai")
SECRET = "sk-a1b2c3d4e5f6a7b8c9d0"


def reply(text: str, **changes: Any) -> Bundle:
    return Bundle(instructions=Instructions(text=text), **changes)


class RegistryWorld:
    """The registry of a world, whose role has no policy yet."""

    def __init__(self) -> None:
        self.world = CanaryWorld()
        self.blobs = MemoryBlobs()
        self.woken: list[str] = []
        self.registry = bundle_registry(
            self.world.bus, self.world.policies, self.blobs, self.woken.append, self.world.lead
        )

    async def register(self, bundle: Bundle, *, dry_run: bool = False, key: str | None = None) -> BundleOut:
        asked = BundleIn(bundle=bundle, actor="ann", reason="a better prompt", idempotency_key=key, dry_run=dry_run)
        return await self.registry.register(ROLE, asked, "ann")

    async def serve(self, version: int) -> None:
        """Make a version stable."""
        policy = await self.world.policies.version(ROLE, version)
        await self.world.policies.change_route(
            ROLE, lambda route: msgspec.structs.replace(route, stable=served(policy))
        )
        await self.world.policies.change_version(
            ROLE, version, lambda known: msgspec.structs.replace(known, stage="stable")
        )

    async def versions(self) -> list[int]:
        return [policy.version for policy in await self.world.policies.versions(ROLE)]

    def weights(self, number: int) -> Policy:
        """A trained adapter in the object store."""
        return publish_policy(
            self.blobs,
            PolicyManifest(
                kind="adapter", base_model="s3://b/base.json", files=[], role=ROLE, created_at=START, attempt=number
            ),
        )

    async def train(self, made: Policy, number: int = 1) -> PolicyVersion:
        """Deliver the completed job of a policy; returns the version that it became."""
        status = TrainingStatus(
            training_job_id=named_id("job", number),
            timestamp=START,
            status="completed",
            role=ROLE,
            artifacts=Artifacts(final_checkpoint=made.uri, digest=made.digest, kind=made.manifest.kind),
        )
        handlers = Handlers(
            policies=self.world.policies,
            jobs=Bucket(self.world.bus, JOBS, Job),
            objects=self.blobs,
            engine_kind_of=lambda _: "vllm",
            on_registered=self.woken.append,
            announcer=self.registry.announcer,
            bundles=self.registry,
            now=lambda: START,
        )
        received = Received(status, status.subject, "RL_TRAINING", number, 1, status.event_id, START, status.event_id)
        await self.world.bus.publish_all(await handlers.on_training_status(received))
        return (await self.world.policies.versions(ROLE))[-1]


async def test_the_first_bundle_is_a_candidate_beside_version_0() -> None:
    scene = RegistryWorld()
    made = await scene.register(POLITE)
    zero, one = await scene.world.policies.versions(ROLE)
    assert (zero.version, zero.stage, zero.kind, zero.uri) == (0, "stable", "bundle", "")
    assert (one, made.new) == (made.policy, True)
    assert (one.version, one.stage, one.kind, one.base_model) == (1, "registered", "bundle", "")
    route = await scene.world.route()
    assert route.stable == ServedPolicy(version=0, name=zero.name, digest=zero.digest)
    assert (route.next_version, scene.woken) == (2, [ROLE])
    rollout = await scene.world.until("running")
    assert (rollout.stable, rollout.candidate) == (route.stable, served(one))
    assert rollout.candidate.bundle


async def test_a_bundle_is_in_bucket_and_object_store_under_its_digest() -> None:
    scene = RegistryWorld()
    policy = (await scene.register(POLITE)).policy
    entry = await Bucket(scene.world.bus, BUNDLES, Bundle).get(policy.digest)
    assert entry is not None
    assert entry.value == POLITE
    stored = find_policy_manifest(scene, policy)
    assert (stored.kind, stored.bundle, stored.role) == ("bundle", POLITE, ROLE)
    (registered,) = scene.world.bus.published(ModelDeployed)
    assert (registered.policy_version, registered.adapter_digest, registered.state) == (1, policy.digest, "registered")
    assert registered.reason == "ann: a better prompt"


def find_policy_manifest(scene: RegistryWorld, policy: PolicyVersion) -> PolicyManifest:
    return msgspec.json.decode(scene.blobs.get(policy.uri, policy.digest), type=PolicyManifest)


async def test_the_same_bundle_again_is_the_same_version() -> None:
    scene = RegistryWorld()
    first, again = await scene.register(POLITE), await scene.register(POLITE)
    assert (again.policy, again.new) == (first.policy, False)
    assert await scene.versions() == [0, 1]


async def test_two_people_at_once_make_one_version() -> None:
    scene = RegistryWorld()
    both = await asyncio.gather(*(scene.register(POLITE) for _ in range(4)))
    assert [made.new for made in both].count(True) == 1
    assert {made.policy.name for made in both} == {both[0].policy.name}
    assert await scene.versions() == [0, 1]


async def test_a_version_taken_meanwhile_is_looked_at_before_the_next() -> None:
    scene, looks = RegistryWorld(), list[int]()

    async def known(versions: Sequence[PolicyVersion]) -> None:
        looks.append(len(versions))
        if len(looks) == 1:
            await scene.world.policies.create(policy(1))

    async def build(version: int) -> PolicyVersion:
        return policy(version)

    made, new = await scene.world.policies.register(ROLE, known, build)
    assert (made.version, new, looks) == (2, True, [0, 1])


async def test_a_bundle_whose_policy_has_ended_is_a_new_version() -> None:
    scene = RegistryWorld()
    await scene.register(POLITE)
    await scene.world.policies.change_version(ROLE, 1, lambda known: msgspec.structs.replace(known, stage="refused"))
    made = await scene.register(POLITE)
    assert (made.policy.version, made.new) == (2, True)


async def test_one_key_is_one_version_whatever_became_of_it() -> None:
    scene = RegistryWorld()
    both = await asyncio.gather(*(scene.register(POLITE, key="plan-1") for _ in range(2)))
    await scene.world.policies.change_version(ROLE, 1, lambda known: msgspec.structs.replace(known, stage="refused"))
    again = [await scene.register(reply("Another text."), key="plan-1", dry_run=dry_run) for dry_run in (True, False)]
    assert {made.policy.version for made in both} == {1}
    assert [(made.policy.version, made.new, made.bundle) for made in again] == [(1, False, POLITE)] * 2
    assert (await scene.register(POLITE, key="plan-2")).policy.version == 2


async def test_a_dry_run_answers_and_writes_nothing() -> None:
    scene = RegistryWorld()
    made = await scene.register(POLITE, dry_run=True)
    assert (made.policy.version, made.new, made.bundle) == (1, True, POLITE)
    assert (await scene.versions(), scene.blobs.blobs, scene.woken) == ([], {}, [])


async def test_a_deployer_that_does_not_lead_registers_nothing() -> None:
    scene = RegistryWorld()
    scene.world.lead.leading = False
    with pytest.raises(NotLeading):
        await scene.register(POLITE)
    assert (await scene.versions(), scene.woken) == ([], [])


@pytest.mark.parametrize(
    ("bundle", "place"),
    [
        (reply(f"The key is {SECRET}."), "instructions.text"),
        (Bundle(tools={"find": ToolTexts(parameters={"key": f"such as {SECRET}"})}), "tools.find.parameters.key"),
        (
            Bundle(
                examples=(Example(role="user", content=SECRET), Example(role="assistant", content="no")),
            ),
            "examples.0.content",
        ),
        (Bundle(response_format={"type": "x", "hint": [SECRET]}), "response_format.hint.0"),
    ],
)
async def test_a_secret_is_refused_by_its_place_alone(bundle: Bundle, place: str) -> None:
    scene = RegistryWorld()
    with pytest.raises(BadRequest) as refused:
        await scene.register(bundle)
    assert str(refused.value) == f"{place} holds what looks like a secret (api key): take it out"
    assert SECRET not in str(refused.value)
    assert await scene.versions() == []


async def test_an_address_for_customers_is_no_secret() -> None:
    made = await RegistryWorld().register(reply("Write to help@example.com, or call +49 30 1234 5678 90."))
    assert made.new


@pytest.mark.parametrize(
    "bundle",
    [
        NO_BUNDLE,
        reply("{{instructons}}"),
        reply("Hello {{variables.name}}"),
        reply("x" * 10_000_000),
        Bundle(model=BundleModel(name="support@7-0a0a0a0a", digest="0a" * 32)),
        Bundle(model=BundleModel(name="planner@7-0a0a0a0a", digest="0a" * 32)),
        Bundle(model=BundleModel(name="any name", digest="0a" * 32)),
    ],
)
async def test_what_could_answer_no_call_is_a_bad_request(bundle: Bundle) -> None:
    scene = RegistryWorld()
    with pytest.raises(BadRequest):
        await scene.register(bundle)
    assert await scene.versions() == []


async def test_stables_weights_answer_for_a_bundle_without_a_model() -> None:
    scene = RegistryWorld()
    adapter = await scene.train(scene.weights(1))
    await scene.serve(1)
    made = await scene.register(POLITE)
    assert made.bundle.model == BundleModel(name=adapter.name, digest=adapter.digest)
    assert (made.policy.base_model, made.policy.parent) == (adapter.name, adapter.version)
    weights = await scene.registry.bundles.weights_of(made.policy)
    assert weights is not None
    assert (weights.name, weights.digest, weights.uri, weights.kind) == (
        *(adapter.name, adapter.digest, adapter.uri),
        "adapter",
    )


async def test_stables_upstream_answers_for_a_bundle_without_a_model() -> None:
    scene = RegistryWorld()
    await scene.register(Bundle(model=SMALL))
    await scene.serve(1)
    made = await scene.register(POLITE)
    assert (made.bundle.model, made.policy.base_model) == (SMALL, "openai/small")
    assert await scene.registry.bundles.weights_of(made.policy) is None


async def test_weights_for_a_role_with_a_bundle_keep_its_instructions() -> None:
    scene = RegistryWorld()
    await scene.register(POLITE)
    await scene.serve(1)
    adapter = scene.weights(1)
    policy = await scene.train(adapter)
    assert (policy.version, policy.kind, policy.base_model) == (2, "bundle", f"{ROLE}@2-{adapter.digest[:8]}")
    bundle = await scene.registry.bundles.bundle_of(policy)
    assert bundle.instructions == POLITE.instructions
    assert bundle.model == BundleModel(name=policy.base_model, digest=adapter.digest)
    assert find_policy(scene.blobs, policy.base_model).digest == adapter.digest
    assert find_policy_manifest(scene, policy).bundle == bundle
    assert policy == await scene.train(adapter)


async def test_weights_for_a_role_as_agents_call_it_stay_weights() -> None:
    scene = RegistryWorld()
    await scene.register(POLITE)
    assert (await scene.train(scene.weights(1))).kind == "adapter"


async def test_a_bundle_that_a_training_made_is_registered_likewise() -> None:
    scene = RegistryWorld()
    made = publish_policy(
        scene.blobs,
        PolicyManifest(
            kind="bundle", base_model="", files=[], role=ROLE, created_at=START, bundle=POLITE, algorithm="gepa"
        ),
    )
    policy = await scene.train(made)
    assert (policy.version, policy.digest, policy.algorithm) == (1, made.digest, "gepa")
    assert await scene.registry.bundles.bundle_of(policy) == POLITE
    route = await scene.world.route()
    assert route.stable is not None
    assert route.stable.version == 0


async def test_result_of_a_search_is_answered_by_what_it_was_played_with() -> None:
    scene = RegistryWorld()
    await scene.register(Bundle(model=SMALL))
    await scene.serve(1)  # since the search began with what agents send
    file = ArtifactFile(name="candidates.jsonl", uri="s3://b/blobs/c.jsonl", sha256="c" * 64, size=1)
    made = PolicyManifest(
        kind="bundle", base_model="", files=[], role=ROLE, created_at=START, bundle=POLITE, documents=[file]
    )
    whole = find_policy_manifest(scene, await scene.train(publish_policy(scene.blobs, made)))
    assert (whole.base_model, whole.bundle, whole.documents) == ("", POLITE, [file])


async def test_a_training_that_leaked_a_secret_is_refused_at_once() -> None:
    scene = RegistryWorld()
    leaky = PolicyManifest(
        kind="bundle", base_model="", files=[], role=ROLE, created_at=START, bundle=reply(f"Use {SECRET}.")
    )
    policy = await scene.train(publish_policy(scene.blobs, leaky))
    assert (policy.stage, policy.reason) == (
        "refused",
        "instructions.text holds what looks like a secret (api key): take it out",
    )


async def test_a_bundle_without_its_bucket_entry_is_read_from_its_manifest() -> None:
    scene = RegistryWorld()
    policy = (await scene.register(POLITE)).policy
    await Bucket(scene.world.bus, BUNDLES, Bundle).delete(policy.digest)
    assert await scene.registry.bundles.bundle_of(policy) == POLITE
    with pytest.raises(NotFound):
        await scene.registry.bundles.bundle_of(
            msgspec.structs.replace(policy, digest="0" * 64, uri="s3://test/no.json")
        )


async def test_a_lost_bucket_entry_is_written_again_for_gateways() -> None:
    scene = RegistryWorld()
    policy = (await scene.register(POLITE)).policy
    bucket = Bucket(scene.world.bus, BUNDLES, Bundle)
    await bucket.delete(policy.digest)
    await scene.registry.bundles.bundle_of(policy)
    entry = await bucket.get(policy.digest)
    assert entry is not None
    assert entry.value == POLITE


async def test_bundles_that_nothing_names_leave_the_bucket_after_two_sweeps() -> None:
    scene = RegistryWorld()
    named, unnamed = (await scene.register(POLITE)).policy.digest, "f" * 64
    bucket, policies = (Bucket(scene.world.bus, name, msgspec.Raw) for name in (BUNDLES, POLICIES))
    await bucket.put(unnamed, msgspec.Raw(b"{}"))
    lost = BundleSweep(scene.registry.bundles, [])
    sweep = BundleSweep(scene.registry.bundles, [policies])
    for swept in (lost, lost, sweep):
        await swept.sweep()
        assert await bucket.keys() == sorted([named, unnamed])
    await sweep.sweep()
    assert await bucket.keys() == [named]


async def test_a_bundles_weights_are_kept_in_the_engine() -> None:
    scene = RegistryWorld()
    adapter = await scene.train(scene.weights(1))
    await scene.serve(1)
    await scene.register(POLITE)
    await scene.serve(2)
    await scene.world.policies.change_version(ROLE, 1, lambda known: msgspec.structs.replace(known, stage="archived"))
    assert unneeded(await scene.world.route(), await scene.world.policies.versions(ROLE)) == set()
    await scene.register(Bundle(model=SMALL))
    await scene.serve(3)
    await scene.world.policies.change_version(ROLE, 2, lambda known: msgspec.structs.replace(known, stage="archived"))
    assert unneeded(await scene.world.route(), await scene.world.policies.versions(ROLE)) == {adapter.name}


async def test_version_0_is_rolled_out_again_like_any_version() -> None:
    scene = RegistryWorld()
    await scene.register(POLITE)
    await scene.world.until("running")
    await scene.world.operators.act(Act.PROMOTE, Order("ann", "now", override=True))
    zero = await scene.world.policies.version(ROLE, 0)
    await scene.world.operators.start(zero, Order("ann", "it was better"))
    rollout = await scene.world.until("running")
    assert (rollout.candidate.version, rollout.candidate.bundle) == (0, False)
    assert rollout.stable is not None
    assert (rollout.stable.version, await scene.world.stage_of(0)) == (1, "canary")


async def test_a_route_goes_back_to_version_0() -> None:
    scene = RegistryWorld()
    await scene.register(POLITE)
    await scene.world.until("running")
    promoted = await scene.world.operators.act(Act.PROMOTE, Order("ann", "now", override=True))
    assert promoted.state == "promoted"
    await scene.world.until("promoted")
    back = await scene.world.operators.act(Act.REVERT, Order("ann", "back"))
    route = await scene.world.route()
    assert (back.state, back.candidate.version, route.stable) == ("reverted", 0, back.candidate)
    assert not back.candidate.bundle
    assert [await scene.world.stage_of(version) for version in (0, 1)] == ["stable", "rolled_back"]


def planner(scene: RegistryWorld, blob: bytes | None = None) -> Bundle:
    trained = train_linucb([execution(number) for number in range(4)])
    description = Description(selector=LINUCB, workers=trained.workers)
    stored = scene.blobs.put(blob or save_planner(PlannerFile(description, dict(trained.tables))), "blobs")
    return Bundle(planner=PlannerRef(uri=stored.uri, sha256=stored.sha256))


async def test_planner_is_a_candidate_beside_version_0() -> None:
    scene = RegistryWorld()
    bundle = planner(scene)
    made = await scene.register(bundle)
    assert (made.bundle, made.policy.version, made.policy.kind, made.policy.base_model) == (bundle, 1, "bundle", "")
    await scene.serve(1)
    assert (await scene.register(planner(scene))).new is False


async def test_planner_that_a_training_made_becomes_a_version() -> None:
    scene = RegistryWorld()
    bundle = planner(scene)
    manifest = PolicyManifest(
        kind="bundle", base_model="", files=[], role=ROLE, created_at=START, bundle=bundle, algorithm="planner_ppo"
    )
    policy = await scene.train(publish_policy(scene.blobs, manifest))
    assert (policy.stage, policy.version, policy.algorithm) == ("registered", 1, "planner_ppo")
    assert find_policy_manifest(scene, policy).bundle == bundle


async def test_planner_whose_file_is_damaged_or_gone_is_refused() -> None:
    scene = RegistryWorld()
    with pytest.raises(BadRequest, match="truncated or not a safetensors file"):
        await scene.register(planner(scene, b"{}"))
    gone = Bundle(planner=PlannerRef(uri=f"s3://test/blobs/{'0' * 64}", sha256="0" * 64))
    with pytest.raises(BadRequest, match="no such object"):
        await scene.register(gone)
    whole = planner(scene).planner
    assert whole is not None
    other = Bundle(planner=PlannerRef(uri=whole.uri.replace(whole.sha256, "1" * 64), sha256="1" * 64))
    scene.blobs.blobs[whole.uri.replace(whole.sha256, "1" * 64)] = scene.blobs.get(whole.uri)
    with pytest.raises(BadRequest, match="does not have sha256"):
        await scene.register(other)


async def test_calls_that_name_no_role_are_no_planners() -> None:
    scene = RegistryWorld()
    asked = BundleIn(bundle=planner(scene), actor="ann", reason="a planner", dry_run=True)
    with pytest.raises(BadRequest, match="give planners a role of their own"):
        await scene.registry.register("default", asked, "ann")


async def test_planners_and_what_answers_calls_share_no_role() -> None:
    scene = RegistryWorld()
    await scene.register(POLITE)
    await scene.serve(1)
    with pytest.raises(BadRequest, match="give planners a role of their own"):
        await scene.register(planner(scene))
    other = RegistryWorld()
    await other.register(planner(other))
    await other.serve(1)
    with pytest.raises(BadRequest, match="a planner serves the role"):
        await other.register(POLITE)
    refused = await other.train(other.weights(1))
    assert (refused.stage, refused.reason) == ("refused", f"{ROLE} is a role of planners: weights plan no workflows")


async def test_planner_has_no_other_part() -> None:
    scene = RegistryWorld()
    both = msgspec.structs.replace(planner(scene), instructions=POLITE.instructions)
    with pytest.raises(BadRequest, match="it has no other part"):
        await scene.register(both)
