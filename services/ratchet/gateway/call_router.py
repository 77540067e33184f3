"""Which policy and which engine answer a call: by the model's name, the trajectory's arm, and after a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from ratchet.contract import PolicyClaim, Start
from ratchet.contract.state import PolicyVersion
from ratchet.errors import NotFound
from ratchet.gateway import metrics
from ratchet.gateway.domain.routing import Arm, assign, fall_back, fall_back_upstream, pin, start_of
from ratchet.gateway.engines.base import Engine, Upstream
from ratchet.gateway.kv_routes import Routes
from ratchet.rules.arms import Assignment, ModelName, variant_of

OTHER_ROLES = "other"
"""Label of the roles that no route and no upstream names."""


class CallRouter:
    """Chooses among the policies' engine and the upstreams, in their order."""

    def __init__(
        self,
        routes: Routes,
        policies: Engine,
        upstreams: Sequence[Upstream],
        *,
        announce: Callable[[Start], None],
        is_blind: Callable[[], bool],
        now: Callable[[], datetime],
    ) -> None:
        """`announce`: takes each drawn arm's start; `is_blind`: whether nothing could observe a canary now."""
        self._routes = routes
        self._upstreams = upstreams
        self._announce = announce
        self._is_blind = is_blind
        self._now = now
        self.policies = policies

    def model_names(self) -> list[str]:
        """Roles, and the versions that serve, as agents may name them."""
        names: list[str] = []
        for role in self._routes.roles():
            route = self._routes.get_route(role)
            served = [route.stable, route.canary.policy if route.canary else None] if route else []
            names += [role, *(f"{role}@{policy.version}" for policy in served if policy)]
        return [*names, *(role for role in self._upstream_roles() if role not in names)]

    async def resolve(self, model: ModelName) -> tuple[ModelName, PolicyVersion | None]:
        """The model that a name stands for, with its version if the agent named one. Changes nothing.

        `<role>_<algorithm>` stands for the newest version of the role that the algorithm trained, unless a role of that
        name has a route. Raises `NotFound` when no engine can answer, `Unavailable` when a lookup fails.
        """
        route, variant = self._routes.get_route(model.role), variant_of(model.role)
        if model.version is not None:
            version = await self._routes.version(model.role, model.version)
            if model.digest not in {None, version.digest[:8]}:
                raise NotFound(f"{model.role}@{model.version} has another digest; its full name is {version.name}")
            return model, version
        if route is None and variant is not None and self._routes.get_route(variant[0]) is not None:
            role, algorithm = variant
            newest = self._routes.newest(role, algorithm)
            if newest is None:
                raise NotFound(f"{role} has no usable version that {algorithm} trained; ask for {role}, or train one")
            return ModelName(role, newest.version), newest
        served = route is not None and route.stable is not None
        if not served and not any(upstream.policy_for(model.role) for upstream in self._upstreams):
            raise _unserved(model.role)
        return model, None

    def assign(self, arm: Arm, version: PolicyVersion | None) -> tuple[Engine, Assignment]:
        """Who answers the trajectory's call: the named version, else its arm's policy, else an upstream.

        Announces an arm that it draws, before the gateway asks any engine. Raises `NotFound`.
        """
        if version is not None:
            return self.policies, pin(version, arm)
        route, is_first = self._routes.get_route(arm.role), arm.assignment is None
        if route is not None:
            lapsed = self._routes.has_lapsed(arm.role) or self._is_blind()
            metrics.LAPSED.labels(arm.role).set(lapsed)
            assignment = assign(route, arm, lapsed=lapsed)
            if assignment is not None:
                if is_first:
                    self._announce(start_of(route, arm, assignment, lapsed=lapsed, at=self._now()))
                return self.policies, assignment
        upstream = _first_upstream(self._upstreams, arm, None)
        if upstream is None:
            raise _unserved(arm.role)
        return upstream

    def fall_back(
        self, arm: Arm, engine: Engine, failed: Assignment, *, unreachable: bool
    ) -> tuple[Engine, Assignment] | None:
        """Who answers after `engine` has failed: stable after another policy, unless the engine is `unreachable`, then
        the upstreams after `engine`. None when no one is left."""
        if engine is self.policies and not unreachable:
            stable = fall_back(self._routes.get_route(arm.role), arm, failed)
            if stable is not None:
                return self.policies, stable
        position = next((n for n, upstream in enumerate(self._upstreams) if upstream is engine), -1)
        return _first_upstream(self._upstreams[position + 1 :], arm, failed)

    def label(self, policy: PolicyClaim) -> str:
        """The role as metrics name it: agents choose the roles that a `*` serves, and each name would cost memory."""
        role = policy.role
        known = policy.digest or self._routes.get_route(role) is not None or role in self._upstream_roles()
        return role if known else OTHER_ROLES

    def _upstream_roles(self) -> list[str]:
        """Roles that the upstreams name."""
        return sorted({role for upstream in self._upstreams for role in upstream.roles})


def _first_upstream(
    upstreams: Sequence[Upstream], arm: Arm, failed: Assignment | None
) -> tuple[Upstream, Assignment] | None:
    for upstream in upstreams:
        model = upstream.policy_for(arm.role)
        assignment = fall_back_upstream(model, arm, failed) if model else None
        if assignment is not None:
            return upstream, assignment
    return None


def _unserved(role: str) -> NotFound:
    return NotFound(
        f"no policy serves the role {role!r}: ask for a model that GET /v1/models lists, or train a first policy for it"
    )
