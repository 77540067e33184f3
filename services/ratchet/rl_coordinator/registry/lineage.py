"""Which policy a job starts from, and which data that policy and its ancestors have already learned from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ratchet.contract.state import PolicyVersion
from ratchet.errors import Rejected
from ratchet.rl_coordinator.jobs.domain.requests import continues_stable


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """What a worker loads, and the name of the registered policy that it is, if it is one."""

    base_model: str
    parent: str | None


def starting_point(
    base_model: str, stable: PolicyVersion | None, policies: Mapping[int, PolicyVersion]
) -> StartingPoint:
    """What `base_model` means at this moment. Raises `Rejected` when it means a stable policy and there is none."""
    if not continues_stable(base_model):
        known = next((policy for policy in policies.values() if policy.uri == base_model), None)
        return StartingPoint(base_model, known.name if known else None)
    if stable is None:
        raise Rejected("the role has no stable policy yet: name a base_model (a model manifest's uri, a name or path)")
    return StartingPoint(stable.uri, stable.name)


def ancestry(version: int | None, policies: Mapping[int, PolicyVersion]) -> Iterator[PolicyVersion]:
    """The policy `version` and its ancestors, newest first; ends where a parent is unknown."""
    seen: set[int] = set()
    while version is not None and version in policies and version not in seen:
        seen.add(version)
        policy = policies[version]
        yield policy
        version = policy.parent


def consumed_snapshots(version: int | None, policies: Mapping[int, PolicyVersion]) -> list[str]:
    """Digests of the snapshots in the lineage.

    A candidate that was refused, rolled back or superseded is on no such line: whatever a stage is called, only what
    serves, and what that was trained from, holds on to its data.
    """
    return [policy.dataset_digest for policy in ancestry(version, policies) if policy.dataset_digest]
