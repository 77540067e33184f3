"""Which data a policy has already learned from: its own snapshot and those of all its ancestors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ratchet.messages.state import PolicyVersion


def ancestry(version: int | None, policies: Mapping[int, PolicyVersion]) -> Iterator[PolicyVersion]:
    """The policy `version` and its ancestors, newest first; ends where a parent is unknown."""
    seen: set[int] = set()
    while version is not None and version in policies and version not in seen:
        seen.add(version)
        policy = policies[version]
        yield policy
        version = policy.parent


def consumed_snapshots(version: int | None, policies: Mapping[int, PolicyVersion]) -> list[str]:
    """Digests of the snapshots in the lineage. Candidates that were refused or rolled back are on no such line."""
    return [policy.dataset_digest for policy in ancestry(version, policies) if policy.dataset_digest]
