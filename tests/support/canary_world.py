"""A role with two policies, its gateway and its judge, in memory: the surroundings of a rollout controller."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import START, FakeBus, FakeClock
from ratchet.canary_deployer.bundle_registry import BundleRegistry
from ratchet.canary_deployer.controller import RolloutController
from ratchet.canary_deployer.domain.announcements import Announcer
from ratchet.canary_deployer.domain.rollout import PASSED, GateResult, Rollout
from ratchet.canary_deployer.domain.rules import Rules, Stage
from ratchet.canary_deployer.domain.trajectories import Batch, Chunk, Event, call_of, opinion_of, score_of, started_of
from ratchet.canary_deployer.kv_bundles import KvBundles
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.nats_events import STREAMS, Behind, EvidenceLost, Places, Read
from ratchet.canary_deployer.operator_acts import OperatorActs
from ratchet.canary_deployer.role_context import RoleContext
from ratchet.core.contract import Feedback, ModelRollout, PolicyClaim, Reward, Start, Turn, named_id
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.reward import RewardComponent, RewardMetadata
from ratchet.core.contract.state import BUNDLES, POLICIES, ROLLOUT_CHUNKS, ROLLOUTS, PolicyVersion, Route, ServedPolicy
from ratchet.core.errors import RatchetError, Unavailable
from ratchet.core.rules.arms import arm_of
from ratchet.core.service.audit import AuditLog
from ratchet.core.service.leadership import NotLeading
from ratchet.core.stores.policies import BlobStore
from tests.support.fake_bus import fake_bus
from tests.support.messages import turn

ROLE = "support"


def policy(version: int, **changes: Any) -> PolicyVersion:
    """A registered policy; its digest follows from its version."""
    digest = f"{version:x}" * 64
    plain: dict[str, Any] = {
        "role": ROLE,
        "version": version,
        "name": f"{ROLE}@{version}-{digest[:8]}",
        "digest": digest[:64],
        "uri": f"s3://ratchet/policies/{digest[:64]}.json",
        "kind": "adapter",
        "base_model": "s3://ratchet/policies/base.json",
        "created_at": START,
        "stage": "registered",
        "training_job_id": named_id("job", version),
        "training_samples": 100,
    }
    return PolicyVersion(**(plain | changes))


def served(version: int) -> ServedPolicy:
    """The part of `policy(version)` that a route carries."""
    one = policy(version)
    return ServedPolicy(version=version, name=one.name, digest=one.digest)


def starts_in(started: Mapping[str, int]) -> Callable[[], Awaitable[Mapping[str, int]]]:
    """So many trajectories have started in these roles."""

    async def started_roles() -> Mapping[str, int]:
        return started

    return started_roles


def bundle_registry(
    bus: FakeBus,
    policies: KvPolicies,
    objects: BlobStore,
    on_registered: Callable[[str], None],
    lead: FakeLead | None = None,
    started_roles: Callable[[], Awaitable[Mapping[str, int]]] | None = None,
) -> BundleRegistry:
    """Bundles on a fake bus. `started_roles`: no trajectory has started anywhere, unless it is given."""
    return BundleRegistry(
        policies=policies,
        bundles=KvBundles(Bucket(bus, BUNDLES, Bundle), objects),
        lead=lead or FakeLead(),
        publish=bus.publish_all,
        announcer=Announcer("http://127.0.0.1:8080"),
        on_registered=on_registered,
        started_roles=started_roles or starts_in({}),
        now=bus.now,
    )


def quick_rules(**changes: Any) -> Rules:
    """Three stages that last a minute and ten trajectories each."""
    plain: dict[str, Any] = {
        "stages": (Stage(0.1, 60, 5), Stage(0.25, 60, 5), Stage(0.5, 60, 10)),
        "soak_s": 30.0,
        "deadline_s": 3600.0,
        "horizon_s": 300.0,
        "margin": 0.1,
        "lead_s": 0.0,
    }
    return Rules(**(plain | changes))


def reward_of(trajectory_id: str, *, success: bool, total: float | None = None, **changes: Any) -> Reward:
    """The first reward of a trajectory."""
    completion = RewardComponent(score=1.0 if success else 0.0, weight=0.4, source="automated")
    plain: dict[str, Any] = {
        "reward_id": named_id("reward", trajectory_id, changes.get("revision", 0)),
        "trajectory_id": trajectory_id,
        "session_id": "session",
        "timestamp": START,
        "reward_components": {"task_completion": completion},
        "total_reward": (0.85 if success else 0.0) if total is None else total,
        "reward_type": "sparse",
        "metadata": RewardMetadata(evaluator="test", evaluation_method="automated"),
        "role": ROLE,
    }
    return Reward(**(plain | changes))


def complaint_of(trajectory_id: str) -> Feedback:
    """A thumb down of a trajectory's user."""
    return Feedback(
        feedback_id=named_id("feedback", trajectory_id),
        trajectory_id=trajectory_id,
        kind="thumbs",
        value=False,
        at=START,
        role=ROLE,
    )


def started_id(at: datetime, number: int) -> str:
    """The `number`-th trajectory's UUIDv7: it started at `at`."""
    return str(uuid.UUID(int=(int(at.timestamp() * 1000) << 80) | (7 << 76) | (2 << 62) | number))


def turn_of(trajectory_id: str, arm: str, version: int, weight: float, **changes: Any) -> Turn:
    """A call of a trajectory that a policy answered."""
    claim = PolicyClaim(role=ROLE, version=version, digest=policy(version).digest, arm=arm, weight=weight)
    index = changes.pop("index", 0)
    plain: dict[str, Any] = {
        "turn_id": named_id("turn", trajectory_id, index),
        "trajectory_id": trajectory_id,
        "policy": claim,
        "role": ROLE,
    }
    return turn("any", index, **(plain | changes))


def start_of(trajectory_id: str, arm: str, version: int, weight: float, route: Route, **changes: Any) -> Start:
    """The announcement of a trajectory's arm, as a gateway makes it from a route."""
    canary = route.canary
    plain: dict[str, Any] = {
        "trajectory_id": trajectory_id,
        "timestamp": START,
        "policy": PolicyClaim(role=ROLE, version=version, digest=policy(version).digest, arm=arm, weight=weight),
        "role": ROLE,
        "rollout_id": canary.rollout_id if canary else None,
        "centres": canary.centres if canary else None,
        "latency_scale_ms": canary.latency_scale_ms if canary else None,
    }
    return Start(**(plain | changes))


@dataclass
class FakeLead:
    """Leads until a test takes the lead away."""

    term: int = 0
    leading: bool = True

    async def confirm(self) -> None:
        if not self.leading:
            raise NotLeading("another deployer leads")


@dataclass
class FakeTraffic:
    """`per_day` trajectories have started in the last day."""

    per_day: int = 0
    subjects: tuple[str | None, ...] = ()


@dataclass
class FakeHistory:
    """How long stable's outcomes took, and what its trajectories cost; a `fault` is raised by those who ask."""

    took_s: list[float] = field(default_factory=list)
    costs_usd: list[float | None] = field(default_factory=list)
    fault: RatchetError | None = None

    async def outcome_times(self, policy: PolicyVersion, within_s: float) -> list[float]:
        if self.fault is not None:
            raise self.fault
        return [seconds for seconds in self.took_s if seconds <= within_s]

    async def trajectory_costs(self, policy: PolicyVersion) -> list[float | None]:
        if self.fault is not None:
            raise self.fault
        return self.costs_usd


@dataclass
class FakeGate:
    """Answers with one outcome, and remembers the candidates that it was asked about."""

    name: str
    outcome: str = PASSED
    evidence: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        self.asked.append(candidate.name)
        return GateResult(self.name, self.outcome, f"{self.name} {self.outcome}", self.evidence)


@dataclass
class FakeEvents:
    """Reads the fake bus from a place on."""

    bus: FakeBus
    places: Places
    source: FakeSource

    async def next(self, wait_s: float) -> Read:
        starts, turns, feedback, rewards = stored = [
            self.bus.stored(stream, after)
            for stream, after in zip(STREAMS, msgspec.structs.astuple(self.places)[:4], strict=True)
        ]
        events: list[Event] = []
        events += [started_of(start.message, start.time.timestamp()) for start in starts]
        events += [
            call_of(one.message.header_summary, one.time.timestamp()) for one in turns if isinstance(one.message, Turn)
        ]
        opinions = [
            opinion_of(one.message, one.time.timestamp()) for one in feedback if isinstance(one.message, Feedback)
        ]
        events += filter(None, opinions)
        events += [score_of(reward.message, reward.time.timestamp()) for reward in rewards]
        places = zip(msgspec.structs.astuple(self.places), stored, strict=False)
        self.places = Places(*(before + len(messages) for before, messages in places))
        return Read(Batch(events, self.bus.now().timestamp()), self.places, self.source.behind)

    async def close(self) -> None:
        return None


@dataclass
class FakeSource:
    """Places and events of the fake bus, and a count of starts and a late service that a test sets."""

    bus: FakeBus
    traffic: FakeTraffic
    behind: Behind | None = None

    async def newest_places(self) -> Places:
        return Places(*[(await self.bus.extent(stream)).last for stream in STREAMS])

    async def open(self, role: str, places: Places) -> FakeEvents:
        if places.start_seq > (await self.bus.extent("RL_STARTS")).last:
            raise EvidenceLost("RL_STARTS was made anew")
        return FakeEvents(self.bus, places, self)

    async def recent_starts(self, role: str, now: datetime) -> tuple[int, float]:
        return self.traffic.per_day, 86400.0

    async def recent_subjects(self, role: str, now: datetime) -> list[str | None]:
        return list(self.traffic.subjects)


class CanaryWorld:
    """Everything around a controller. `restart` is what a kill leaves: the bus, and a new controller."""

    def __init__(self, rules: Rules | None = None, strategy: str = "canary") -> None:
        self.clock = FakeClock()
        self.bus = fake_bus(self.clock)
        self.rules = rules or quick_rules()
        self.strategy = strategy
        self.gates = {name: FakeGate(name) for name in ("probe", "warmup", "heldout_tasks", "approval")}
        self.gates["probe"].evidence = {"replicas": {"small at http://a": {}}}
        self.replicas = {"small at http://a"}
        """Those that answer."""
        self.lead = FakeLead()
        self.policies = KvPolicies(
            Bucket(self.bus, POLICIES, Route), Bucket(self.bus, POLICIES, PolicyVersion), self.lead
        )
        self.traffic = FakeTraffic()
        self.history = FakeHistory()
        self.longest_tick_s = math.inf
        """Tests let minutes pass between two looks."""
        self.random = random.Random(7)
        self.played = 0
        self.controller = self.new_controller()

    @property
    def operators(self) -> OperatorActs:
        """Takes operators' orders."""
        return self.controller.operators

    def new_controller(self, **changes: Any) -> RolloutController:
        """A controller that has read nothing yet."""
        return RolloutController(self.context(**changes))

    def context(self, **changes: Any) -> RoleContext:
        """The fakes, or what a test puts in their place."""
        plain: dict[str, Any] = {
            "policies": self.policies,
            "rollouts": Bucket(self.bus, ROLLOUTS, Rollout),
            "chunks": Bucket(self.bus, ROLLOUT_CHUNKS, Chunk),
            "publish": self.bus.publish_all,
            "lead": self.lead,
            "announcer": Announcer("http://127.0.0.1:8080"),
            "audit": AuditLog(self.bus, "canary_deployer"),
            "source": FakeSource(self.bus, self.traffic),
            "outcome_times": self.history.outcome_times,
            "trajectory_costs": self.history.trajectory_costs,
            "decisions_of": self.decisions_of,
            "gates": self.gates,
            "answering": self.answering,
            "weights_of": self.weights_of,
            "role": ROLE,
            "rules": self.rules.for_role(ROLE),
            "strategy": self.strategy,
            "tick_s": 0.01,
            "now": self.clock,
            "monotonic": self.clock.monotonic,
            "longest_tick_s": self.longest_tick_s,
        }
        return RoleContext(**(plain | changes))

    async def decisions_of(self, role: str) -> list[ModelRollout]:
        return [decision for decision in self.bus.published(ModelRollout) if decision.role == role]

    async def weights_of(self, policy: PolicyVersion) -> PolicyVersion | None:
        """Adapters are held by the engine, bundles answered upstream."""
        return policy if policy.kind == "adapter" else None

    async def answering(self, role: str) -> set[str]:
        """The replicas that answer. Raises `Unavailable` without any."""
        assert role == ROLE
        if not self.replicas:
            raise Unavailable("no replica answers")
        return set(self.replicas)

    def restart(self) -> None:
        """The process died and a new one begins."""
        self.bus.faults.at = None
        self.controller = self.new_controller()

    async def with_policies(self, *versions: int) -> CanaryWorld:
        """Register policies; the first one is stable already."""
        first, *others = versions
        bucket = Bucket(self.bus, POLICIES, PolicyVersion)
        await bucket.put(f"{ROLE}.{first}", policy(first, stage="stable"))
        for version in others:
            await bucket.put(f"{ROLE}.{version}", policy(version))
        route = Route(role=ROLE, stable=served(first), next_version=max(versions) + 1)
        await Bucket(self.bus, POLICIES, Route).put(ROLE, route)
        return self

    async def rollout(self) -> Rollout:
        """The record as it is stored."""
        entry = await Bucket(self.bus, ROLLOUTS, Rollout).get(ROLE)
        assert entry is not None
        return entry.value

    async def route(self) -> Route:
        route = await self.policies.route(ROLE)
        assert route is not None
        return route

    async def stage_of(self, version: int) -> str:
        return (await self.policies.version(ROLE, version)).stage

    async def until(self, *states: str, steps: int = 12) -> Rollout:
        """Step until the stored rollout is in one of `states`."""
        for _ in range(steps):
            entry = await Bucket(self.bus, ROLLOUTS, Rollout).get(ROLE)
            if entry is not None and entry.value.state in states and not entry.value.outbox:
                return entry.value
            await self.controller.step()
        raise AssertionError(f"not {states} after {steps} steps: {(await self.rollout()).state}")

    async def play(
        self,
        count: int,
        stable_success: float,
        canary_success: float,
        *,
        rewarded: bool = True,
        costs_usd: tuple[float, float] | None = None,
        complaints: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Trajectories as gateway and judge would publish them now, and one step of the controller."""
        route = await self.route()
        messages: list[Any] = []
        for _ in range(count):
            self.played += 1
            trajectory_id = started_id(self.clock(), self.played)
            given = arm_of(route, trajectory_id)
            assert given is not None
            success = self.random.random() < (canary_success if given.arm == "canary" else stable_success)
            messages.append(start_of(trajectory_id, given.arm, given.policy.version, given.weight, route))
            cost_usd = None if costs_usd is None else costs_usd[given.arm == "canary"]
            messages.append(turn_of(trajectory_id, given.arm, given.policy.version, given.weight, cost_usd=cost_usd))
            if rewarded:
                messages.append(reward_of(trajectory_id, success=success))
            if self.random.random() < complaints[given.arm == "canary"]:
                messages.append(complaint_of(trajectory_id))
        self.bus.arrive(messages)
        await self.controller.step()

    async def play_to_the_end(self, stable: float, canary: float, rounds: int = 60) -> str:
        """Play trajectories, a minute per round, until the rollout has ended; returns its state."""
        for _ in range(rounds):
            rollout = await self.rollout()
            if not rollout.active:
                return rollout.state
            self.clock.advance(61)
            await self.play(40, stable, canary)
        raise AssertionError((await self.rollout()).reason)

    async def register_next(self) -> tuple[PolicyVersion, bool]:
        """Register one more policy as the deployer does, under the version that is next; and whether it was new."""

        async def known(_: object) -> None:
            return None

        async def build(version: int) -> PolicyVersion:
            return policy(version)

        return await self.policies.register(ROLE, known, build)

    async def register(self, version: int) -> None:
        """Register one more candidate."""
        await Bucket(self.bus, POLICIES, PolicyVersion).put(f"{ROLE}.{version}", policy(version))
        self.controller.wake()
