"""Which policy and which engine answer a call: by the trajectory's arm, and after a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from ratchet.core.contract import Start
from ratchet.core.contract.state import PolicyVersion, ServedPolicy
from ratchet.core.rules.arms import Assignment
from ratchet.gateway import metrics
from ratchet.gateway.domain.routing import Arm, assign, fall_back, fall_back_upstream, pin, start_of
from ratchet.gateway.engines.base import Engine, EngineFailed, Upstream
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.models import unserved


class CallRouter:
    """Chooses among the policies' engines and the upstreams, in their order."""

    def __init__(
        self,
        routes: Routes,
        engine_of: Callable[[str], Engine],
        upstreams: Sequence[Upstream],
        *,
        announce: Callable[[Start], None],
        is_blind: Callable[[], bool],
        now: Callable[[], datetime],
    ) -> None:
        """`engine_of`: the engine of a role's policies; `announce`: takes each drawn arm's start; `is_blind`: whether
        nothing could observe a canary now."""
        self._routes = routes
        self._upstreams = upstreams
        self._announce = announce
        self._is_blind = is_blind
        self._now = now
        self._engine_of = engine_of

    def assign(
        self,
        arm: Arm,
        version: PolicyVersion | None,
        asked: str,
        *,
        subject_ref: Callable[[], str | None],
        pinned: bool = False,
    ) -> tuple[Engine, Assignment]:
        """Who answers the trajectory's call: the named version, else its arm's policy, else an upstream.

        `asked`: the model as the agent named it. `pinned`: who serves it now, as if the agent had named that version.
        `subject_ref`: the hash of whose trajectory it is.

        Announces an arm that it draws, before the gateway asks any engine. Raises `NotFound`.
        """
        if version is not None or pinned:
            engine, served = self.serving(arm.role, version, asked)
            return engine, pin(served, arm)
        route, is_first = self._routes.get_route(arm.role), arm.assignment is None
        if route is not None:
            lapsed = self._routes.has_lapsed(arm.role) or self._is_blind()
            metrics.LAPSED.labels(arm.role).set(lapsed)
            assignment = assign(route, arm, lapsed=lapsed)
            if assignment is not None:
                if is_first:
                    start = start_of(route, arm, assignment, lapsed=lapsed, at=self._now(), subject_ref=subject_ref())
                    self._announce(start)
                return self._engine_of(arm.role), assignment
        upstream = _first_upstream(self._upstreams, arm, asked, None)
        if upstream is None:
            raise unserved(asked, arm.role)
        return upstream

    def serving(self, role: str, version: PolicyVersion | None, asked: str) -> tuple[Engine, ServedPolicy]:
        """Who answers for a role outside every trajectory: the named version, else stable, else an upstream.

        `asked`: the model as the agent named it. Raises `NotFound`.
        """
        if version is not None:
            served = ServedPolicy(version=version.version, name=version.name, digest=version.digest)
            return self._engine_of(role), served
        route = self._routes.get_route(role)
        if route is not None and route.stable is not None:
            return self._engine_of(role), route.stable
        others = self.upstreams_for(role, asked)
        if not others:
            raise unserved(asked, role)
        return others[0]

    def serves_policies(self, engine: Engine) -> bool:
        """Whether an engine serves Ratchet's own policies."""
        return all(engine is not upstream for upstream in self._upstreams)

    def takes_no_tools(self, engine: Engine, role: str, policy: ServedPolicy) -> bool:
        """Whether the deployer has seen that the chat template of a policy shows it no tools."""
        return self.serves_policies(engine) and self._routes.takes_tools(role, policy.version) is False

    def upstreams_for(self, role: str, asked: str) -> list[tuple[Upstream, ServedPolicy]]:
        """The upstreams that map a role, or every one, each with its model."""
        served = [(upstream, upstream.policy_for(role, asked)) for upstream in self._upstreams]
        return [(upstream, model) for upstream, model in served if model is not None]

    def fall_back(
        self, arm: Arm, engine: Engine, failed: Assignment, asked: str, failure: EngineFailed
    ) -> tuple[Engine, Assignment] | None:
        """Who answers after `engine` has failed: stable after another policy, unless the engine is unreachable, then
        the upstreams after `engine`. None when no one is left."""
        if self.serves_policies(engine) and not failure.unreachable:
            stable = fall_back(self._routes.get_route(arm.role), arm, failed)
            if stable is not None:
                return self._engine_of(arm.role), stable
        position = next((n for n, upstream in enumerate(self._upstreams) if upstream is engine), -1)
        return _first_upstream(self._upstreams[position + 1 :], arm, asked, failed)


def _first_upstream(
    upstreams: Sequence[Upstream], arm: Arm, asked: str, failed: Assignment | None
) -> tuple[Upstream, Assignment] | None:
    for upstream in upstreams:
        model = upstream.policy_for(arm.role, asked)
        assignment = fall_back_upstream(model, arm, failed) if model else None
        if assignment is not None:
            return upstream, assignment
    return None
