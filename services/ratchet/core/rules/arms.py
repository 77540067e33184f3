"""Which policy answers a trajectory: names of policies, and the choice of the arm that gateway and deployer share."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from ratchet.core.contract.bundle import NO_BUNDLE
from ratchet.core.contract.policy_manifest import BUNDLE
from ratchet.core.contract.state import READY, PolicyVersion, Route, ServedPolicy, WeightStep

STABLE, CANARY, PINNED, MIXED = "stable", "canary", "pinned", "mixed"
"""The arms of `PolicyClaim.arm`."""

ROLE = re.compile(r"[a-z0-9_-]{1,64}")
VARIANTS = ("dpo",)
"""Algorithms whose newest policy of a role answers to `<role>_<algorithm>`."""
_AS_SENT = hashlib.sha256(msgspec.json.encode(NO_BUNDLE)).hexdigest()
"""Digest of version 0 of every role."""
_MODEL = re.compile(r"(?P<role>[a-z0-9_-]{1,64})(@(?P<version>0|[1-9]\d{0,8})(-(?P<digest>[0-9a-f]{8}))?)?")


@dataclass(frozen=True, slots=True)
class ModelName:
    """The `model` of an agent's request: a role, or one version of it (a pin)."""

    role: str
    version: int | None = None
    digest: str | None = None
    """First 8 hex digits of the policy's digest, when the request gave the full name."""
    upstream: str | None = None
    """`UPSTREAM/MODEL`, when the request names a model of an upstream in the place of a policy."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The policy that answers a call and why."""

    arm: str
    weight: float
    """The canary weight with which the trajectory's draw was compared, 0..1."""
    policy: ServedPolicy


def policy_name(role: str, version: int, digest: str) -> str:
    """The immutable name of a policy in an engine: `<role>@<version>-<first 8 hex digits of its digest>`."""
    return f"{role}@{version}-{digest[:8]}"


def version_0(role: str) -> ServedPolicy:
    """Calls as agents send them: what answers for a role before it has a policy, and stable of its first bundle."""
    return ServedPolicy(version=0, name=policy_name(role, 0, _AS_SENT), digest=_AS_SENT)


def served(policy: PolicyVersion) -> ServedPolicy:
    """What a route has of a policy. Version 0 changes nothing of calls, and has no bundle to read."""
    changes_calls = policy.kind == BUNDLE and policy.version > 0
    return ServedPolicy(version=policy.version, name=policy.name, digest=policy.digest, bundle=changes_calls)


def parse_model(name: str) -> ModelName:
    """Read `helpdesk`, `helpdesk@3` or `helpdesk@3-1a2b3c4d`. Raises `ValueError` for anything else."""
    match = _MODEL.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is neither a role nor role@version")
    version = match["version"]
    return ModelName(match["role"], int(version) if version else None, match["digest"])


def variant_of(name: str) -> tuple[str, str] | None:
    """(role, algorithm) of a name like `helpdesk_dpo`; None for any other."""
    role, _, algorithm = name.rpartition("_")
    return (role, algorithm) if role and algorithm in VARIANTS else None


def newest_by(algorithm: str, versions: Iterable[PolicyVersion]) -> PolicyVersion | None:
    """The newest usable version that `algorithm` trained; None when there is no such version."""
    usable = [version for version in versions if version.algorithm == algorithm and version.status == READY]
    return max(usable, key=lambda version: version.version, default=None)


def started_at(trajectory_id: str) -> datetime | None:
    """The instant inside a UUIDv7 (RFC 9562, 5.7), to the millisecond; None for any other id.

    Also None for an instant that `datetime` cannot express: an id may hold years up to 10889.
    """
    try:
        value = uuid.UUID(trajectory_id)
        return datetime.fromtimestamp((value.int >> 80) / 1000, UTC) if value.version == 7 else None
    except (ValueError, OverflowError):
        return None


def weight_at(schedule: Sequence[WeightStep], instant: datetime) -> float:
    """The canary weight in force at `instant`: that of the latest step not after it, 0 before the first."""
    begun = [step for step in schedule if step.at <= instant]
    return max(begun, key=lambda step: step.at).weight if begun else 0.0


def draw(salt: str, trajectory_id: str) -> float:
    """The trajectory's fixed number in [0, 1) under `salt`: equal wherever it is computed."""
    digest = hashlib.blake2b(f"{salt}{trajectory_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def weight_for(schedule: Sequence[WeightStep], trajectory_id: str) -> float:
    """The canary weight that a trajectory's draw is compared with: always the same for the same rollout and id.

    For a UUIDv7 it is the weight in force at the instant in the id. Any other id holds no instant, and no process could
    remember when it came first: it takes the rollout's first weight, in every stage, or the newest where that is less:
    a canary that is suspended and kept small may have begun with nearly all traffic.
    """
    began = started_at(trajectory_id)
    if began is not None:
        return weight_at(schedule, began)
    in_order = sorted(schedule, key=lambda step: step.at)
    return min(in_order[0].weight, in_order[-1].weight) if in_order else 0.0


def arm_of(route: Route, trajectory_id: str) -> Assignment | None:
    """The arm of a trajectory; None when the role serves no policy.

    It follows from the route and the id alone: every gateway, also after a restart, gives the same answer, and a
    trajectory keeps its arm while the weight moves.
    """
    if route.stable is None:
        return None
    if route.canary is None:
        return Assignment(STABLE, 0.0, route.stable)
    weight = weight_for(route.canary.schedule, trajectory_id)
    if draw(route.canary.salt, trajectory_id) < weight:
        return Assignment(CANARY, weight, route.canary.policy)
    return Assignment(STABLE, weight, route.stable)
