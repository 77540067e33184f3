"""Which policy answers a call: arms that trajectories keep, fallbacks, and leases of canaries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ratchet.core.contract import PolicyClaim, Start
from ratchet.core.contract.gateway_notes import ArmNote
from ratchet.core.contract.state import Route, ServedPolicy
from ratchet.core.rules.arms import MIXED, PINNED, STABLE, Assignment, arm_of, version_0

ARM_BYTES = 1024
"""Cost of an arm, measured and rounded up."""
PROCESS_BYTES = 384
"""Cost of the turns that another process counts, measured and rounded up."""
ENDERS = 8
"""So many keys of a trajectory's calls are remembered."""
PROCESSES = 256
"""Most processes whose turns are counted beside those of this one: as many as answer one trajectory, and restarts."""
AS_SENT = 0
"""The version of each role that changes nothing of its calls: upstreams answer it."""
LEASE_S = 20.0
"""A canary weight lapses after this long without an observed renewal. The deployer renews every 5 s."""


@dataclass(slots=True)
class Arm:
    """One trajectory in one role."""

    trajectory_id: str
    role: str
    assignment: Assignment | None = None
    """The policy that its first call met."""
    mixed: bool = False
    """Its policy changed in flight."""
    own_turns: int = 0
    """Turns of this process that are published, or on their way to the broker."""
    turns_elsewhere: dict[str, int] = field(default_factory=dict[str, int])
    """The same of each other process, by its id."""
    recorded: int = 0
    """How many of them this process has recorded."""
    recorded_elsewhere: dict[str, int] = field(default_factory=dict[str, int])
    ended: bool = False
    """Its agent has ended it."""
    has_outcome: bool = False
    """An end gave an outcome, which stands whatever a later end gives."""
    fetched: bool = False
    """Its agent asked for the policy's bundle, and composes its prompts itself."""
    unrecorded: bool = False
    """Nothing of it is recorded, from now on and for good."""
    enders: list[str] = field(default_factory=list[str])
    """Ids of the keys that have called and may end it, up to `ENDERS`."""

    @property
    def turns(self) -> int:
        """Turns that are published, or on their way to the broker, as far as this process knows."""
        return self.own_turns + sum(self.turns_elsewhere.values()) if self.turns_elsewhere else self.own_turns

    def called_by(self, *key_ids: str) -> None:
        """Keys that may end it have called."""
        self.enders += [key_id for key_id in key_ids if key_id not in self.enders][: ENDERS - len(self.enders)]

    def may_be_ended_by(self, key_id: str) -> bool:
        """Whether a key decides how it went: one that called, where any did that may; of more than are known, any."""
        return not self.enders or len(self.enders) >= ENDERS or key_id in self.enders

    def unrecorded_elsewhere(self) -> dict[str, int]:
        """The processes with calls that they have not recorded, and how many they will have recorded then."""
        recorded, turns = self.recorded_elsewhere, self.turns_elsewhere
        return {process: number for process, number in turns.items() if recorded.get(process, 0) < number}

    def has_recorded(self, numbers: Mapping[str, int]) -> bool:
        """Whether other processes have recorded so many of their calls, by their notes."""
        return all(self.recorded_elsewhere.get(process, 0) >= number for process, number in numbers.items())

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return ARM_BYTES + PROCESS_BYTES * len(self.turns_elsewhere)

    def note(self) -> ArmNote:
        """What other processes need to know of it."""
        first = self.assignment
        return ArmNote(
            trajectory_id=self.trajectory_id,
            role=self.role,
            turns=self.own_turns,
            policy=first.policy if first else None,
            arm=first.arm if first else None,
            weight=first.weight if first else 0.0,
            mixed=self.mixed,
            ended=self.ended,
            has_outcome=self.has_outcome,
            fetched=self.fetched,
            unrecorded=self.unrecorded,
            enders=self.enders[:],
        )

    def learn_recorded(self, process: str, number: int) -> None:
        """Another process has recorded so many of its calls."""
        if process in self.turns_elsewhere:
            self.recorded_elsewhere[process] = max(number, self.recorded_elsewhere.get(process, 0))

    def expect_no_more_records(self) -> None:
        """Those that are missing will not come: their process may be gone."""
        self.recorded_elsewhere |= self.turns_elsewhere

    def learn(self, process: str, note: ArmNote) -> None:
        """Take over what another process knows. Notes may come again, and in any order.

        Two processes that drew another policy for the same trajectory have changed its policy in flight.
        """
        known = self.turns_elsewhere
        if note.turns > known.get(process, 0) and (process in known or len(known) < PROCESSES):
            known[process] = note.turns
        self.ended, self.has_outcome = self.ended or note.ended, self.has_outcome or note.has_outcome
        self.fetched = self.fetched or note.fetched
        self.unrecorded = self.unrecorded or note.unrecorded
        self.called_by(*note.enders)
        theirs = Assignment(note.arm, note.weight, note.policy) if note.policy and note.arm else None
        if self.assignment is None or (note.mixed and not self.mixed and theirs is not None):
            self.assignment = theirs
        elif theirs is not None and theirs.policy != self.assignment.policy:
            self.mixed = True
        self.mixed = self.mixed or note.mixed


class Arms:
    """The most recently used ones, in at most `limit_bytes`; the newest one stays whatever the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._arms: OrderedDict[tuple[str, str], Arm] = OrderedDict()
        self._roles: dict[str, list[str]] = {}

    def open(self, trajectory_id: str, role: str) -> Arm:
        """The trajectory in a role, new or remembered; it is now the most recently used one."""
        key = (trajectory_id, role)
        arm = self._arms.get(key)
        if arm is not None:
            self._arms.move_to_end(key)
            return arm
        arm = self._arms[key] = Arm(trajectory_id, role)
        self._roles.setdefault(trajectory_id, []).append(role)
        self._grow(arm.size)
        return arm

    def learn(self, process: str, note: ArmNote) -> None:
        """Take over what another process knows of a trajectory."""
        arm = self.open(note.trajectory_id, note.role)
        size = arm.size
        arm.learn(process, note)
        self._grow(arm.size - size)

    def learn_recorded(self, process: str, trajectory_id: str, role: str, number: int) -> Arm | None:
        """Another process has recorded so many calls of a trajectory; returns it if it is remembered."""
        arm = self._arms.get((trajectory_id, role))
        if arm is not None:
            arm.learn_recorded(process, number)
        return arm

    def of_trajectory(self, trajectory_id: str) -> list[Arm]:
        """A trajectory in all roles that this process remembers, the first one first."""
        return [self._arms[trajectory_id, role] for role in self._roles.get(trajectory_id, ())]

    def __len__(self) -> int:
        return len(self._arms)

    def _grow(self, added: int) -> None:
        self._size += added
        while self._size > self._limit and len(self._arms) > 1:
            (oldest, role), forgotten = self._arms.popitem(last=False)
            self._size -= forgotten.size
            self._roles[oldest].remove(role)
            if not self._roles[oldest]:
                del self._roles[oldest]


def assign(route: Route, arm: Arm, *, lapsed: bool = False) -> Assignment:
    """The policy for the next call of a trajectory in a role. Updates the arm.

    A trajectory keeps the policy that its first call met for as long as the route still names it, as stable, previous
    or canary. A rollback or a lapsed lease moves it to stable, for good, and marks it mixed. One that begins while the
    lease has lapsed is plainly stable: the route offered it no canary. One that begins in a role without a policy has
    version 0, which the route names once a bundle is the role's first policy.
    """
    stable = route.stable or version_0(route.role)
    if arm.assignment is None:
        drawn = None if lapsed else arm_of(route, arm.trajectory_id)
        arm.assignment = drawn or stable_by(stable)
    first = arm.assignment
    canary = route.canary.policy if route.canary else None
    routed = first.policy in {stable, route.previous, canary}
    if first.arm == PINNED or not routed or (lapsed and first.policy == canary):
        arm.mixed = True
        arm.assignment = Assignment(STABLE, first.weight, stable)
    return arm.assignment


def start_of(
    route: Route, arm: Arm, assignment: Assignment, *, lapsed: bool, at: datetime, subject_ref: str | None
) -> Start:
    """The announcement of an arm that was just drawn."""
    canary = None if lapsed else route.canary
    return Start(
        trajectory_id=arm.trajectory_id,
        timestamp=at,
        policy=claim_of(arm.role, assignment, mixed=False),
        role=arm.role,
        rollout_id=canary.rollout_id if canary else None,
        centres=canary.centres if canary else None,
        latency_scale_ms=canary.latency_scale_ms if canary else None,
        subject_ref=subject_ref,
    )


def pin(policy: ServedPolicy, arm: Arm, *, as_sent: bool = False) -> Assignment:
    """What the agent named or asked to pin; a trajectory that met another policy before becomes mixed.

    `as_sent`: an upstream's model that stands for version 0, in a role without a policy.
    """
    pinned = Assignment(PINNED, 0.0, policy)
    if arm.assignment is None:
        arm.assignment = pinned
    elif arm.assignment.policy not in (policy, version_0(arm.role) if as_sent else policy):
        arm.mixed = True
    return pinned


def fall_back(route: Route | None, arm: Arm, failed: Assignment) -> Assignment | None:
    """Stable in the place of a canary, or of a former stable that the trajectory kept, for good.

    None when stable itself failed, or an upstream after it, when the role has none, or when the agent named the
    version. The trajectory becomes mixed: from here on it counts for no arm, and no learner uses it.
    """
    if failed.arm == PINNED or route is None or route.stable is None:
        return None
    if failed.policy == route.stable or not failed.policy.digest:
        return None
    arm.mixed = True
    arm.assignment = Assignment(STABLE, failed.weight, route.stable)
    return arm.assignment


def stable_by(policy: ServedPolicy) -> Assignment:
    """What answers where no canary could: for a role without a policy, and outside every trajectory."""
    return Assignment(STABLE, 0.0, policy)


def fall_back_upstream(model: ServedPolicy, arm: Arm, failed: Assignment) -> Assignment | None:
    """Another server's model in the place of a policy that failed. None when the agent named the version that did."""
    if failed.arm == PINNED:
        return None
    arm.mixed = True
    return Assignment(failed.arm, failed.weight, model)


def claim_of(role: str, assignment: Assignment, *, mixed: bool) -> PolicyClaim:
    """The policy of a turn, as the turn names it."""
    policy = assignment.policy
    arm = MIXED if mixed else assignment.arm
    return PolicyClaim(role=role, version=policy.version, digest=policy.digest, arm=arm, weight=assignment.weight)


@dataclass(frozen=True, slots=True)
class Lease:
    """The newest renewal that this process has seen, and when (monotonic seconds)."""

    rollout_id: str
    renewal: int
    seen_at: float
    grown: bool
    """False while this process knows only the first value that it read: that one may have been there for long."""


def observe(lease: Lease | None, route: Route, now_s: float, *, first: bool = False) -> Lease | None:
    """The lease after reading `route`, for the first time or again: only growth counts as a sign of life.

    A canary that the previous read did not show has grown from nothing. The first read may show one that a dead
    deployer left behind, and each start of a gateway would serve it for a lease longer.
    """
    if route.canary is None:
        return None
    same = lease is not None and lease.rollout_id == route.canary.rollout_id
    if same and lease is not None and route.canary.lease <= lease.renewal:
        return lease
    return Lease(route.canary.rollout_id, route.canary.lease, now_s, grown=not first)


def has_lapsed(lease: Lease | None, route: Route, now_s: float, lease_s: float = LEASE_S) -> bool:
    """Whether the gateway may not serve the route's canary. Without a canary nothing lapses."""
    if route.canary is None:
        return False
    return lease is None or not lease.grown or is_overdue(lease, now_s, lease_s)


def is_overdue(lease: Lease, now_s: float, lease_s: float = LEASE_S) -> bool:
    """Whether this process should have seen a renewal by now."""
    return now_s - lease.seen_at > lease_s


def without_canary(route: Route) -> Route:
    """The route as the gateway keeps it on disk: a canary weight does not outlive the process that saw its lease."""
    return Route(
        role=route.role,
        stable=route.stable,
        previous=route.previous,
        next_version=route.next_version,
        audit_hash=route.audit_hash,
    )
