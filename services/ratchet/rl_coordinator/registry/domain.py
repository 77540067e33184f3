"""The policies of a role: which one serves, which one a job starts from, and which data a lineage has learned from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from ratchet.core.contract.http.models import ModelOut
from ratchet.core.contract.state import PolicyVersion, Route, registry_stage
from ratchet.core.errors import Rejected

STABLE_NAMES = frozenset({"stable", "current stable"})
"""Values of `base_model` that mean: continue from the policy that serves the role when the job starts."""


def continues_stable(base_model: str) -> bool:
    """Whether `base_model` stands for the role's stable policy."""
    return base_model.strip().lower() in STABLE_NAMES


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """The model that a worker loads, and the name of the registered policy that it is, if it is one."""

    base_model: str
    parent: str | None


@dataclass(frozen=True, slots=True)
class Policies:
    """The versions of a role, and where its traffic goes."""

    route: Route | None
    versions: Mapping[int, PolicyVersion]

    @property
    def stable(self) -> PolicyVersion | None:
        """The policy that serves the role."""
        if self.route is None or self.route.stable is None:
            return None
        return self.versions.get(self.route.stable.version)

    def starting_point(self, base_model: str) -> StartingPoint:
        """What `base_model` means at this moment. Raises `Rejected` for the stable policy of a role that has none."""
        stable = self.stable
        if not continues_stable(base_model):
            registered = next((policy for policy in self.versions.values() if policy.uri == base_model), None)
            return StartingPoint(base_model, registered.name if registered else None)
        if stable is None or not stable.uri:  # version 0: calls as agents send them
            raise Rejected(
                "the role has no stable policy yet: name a base_model (a model manifest's uri, a name or path)"
            )
        return StartingPoint(stable.uri, stable.name)

    def ancestry(self, version: int | None) -> Iterator[PolicyVersion]:
        """The policy `version` and its ancestors, newest first; ends at a parent that is not registered."""
        seen: set[int] = set()
        while version is not None and version in self.versions and version not in seen:
            seen.add(version)
            policy = self.versions[version]
            yield policy
            version = policy.parent

    def generations(self, name: str | None) -> dict[int, int]:
        """By version: how many generations of policies lie between it and the policy `name`, which is trained.

        Parent and child are one generation apart; so are a policy and a candidate that was trained from it and refused.
        Versions without a common ancestor are not in it, and none is where `name` is not registered.
        """
        trained = next((version for version, policy in self.versions.items() if policy.name == name), None)
        line = {policy.version: steps for steps, policy in enumerate(self.ancestry(trained))}
        away: dict[int, int] = {}
        for version in self.versions:
            for steps, policy in enumerate(self.ancestry(version)):
                if policy.version in line:
                    away[version] = line[policy.version] + steps
                    break
        return away

    def consumed_snapshots(self) -> list[str]:
        """Digests of the snapshots that the stable policy and its ancestors learned from.

        A candidate that was refused, rolled back or superseded is not among them: only the policy that serves, and
        those that it was trained from, hold on to their data, whatever stage they are in.
        """
        line = self.ancestry(self.stable.version if self.stable else None)
        return [policy.dataset_digest for policy in line if policy.dataset_digest]

    def models(self) -> list[ModelOut]:
        """All versions, oldest first, as the API shows them."""
        return [self.model(version) for version in sorted(self.versions)]

    def model(self, version: int) -> ModelOut:
        """A version as the API shows it: with the stage that follows from the route."""
        policy = self.versions[version]
        members = {
            **msgspec.structs.asdict(policy),
            "stage": registry_stage(policy, self.route),
            "status": policy.status,
            "state": policy.stage,
            "event_id": policy.cause.event_id if policy.cause else None,
        }
        return msgspec.convert(members, ModelOut)
