"""Which policy and which engine answer a call: by the trajectory's arm, and after a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from ratchet.core.contract import Start
from ratchet.core.contract.bundle import BundleModel
from ratchet.core.contract.state import PolicyVersion, Route, ServedPolicy
from ratchet.core.rules.arms import PINNED, Assignment, served
from ratchet.core.rules.bundles import NO_UPSTREAM
from ratchet.dialects.bundles import Applier
from ratchet.gateway import metrics
from ratchet.gateway.domain.routing import (
    AS_SENT,
    Arm,
    assign,
    fall_back,
    fall_back_upstream,
    pin,
    stable_by,
    start_of,
)
from ratchet.gateway.engines.base import Engine, EngineFailed, NotServed, PolicyUnfit, Upstream
from ratchet.gateway.engines.policies import NoEngine
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.models import Pinned, unserved


class Choice(NamedTuple):
    """Who answers a call, and by which policy."""

    engine: Engine
    assignment: Assignment
    served: ServedPolicy
    """The policy as the engine knows it: of a bundle, the adapter or the upstream's model."""
    asked: str
    """The model that the agent asked for, for upstreams that have it answer."""
    bundle: Applier | None = None
    """What the policy changes of the call."""


@dataclass(slots=True)
class CallRouter:
    """Chooses among the policies' engines and the upstreams, in their order."""

    routes: Routes
    engine_of: Callable[[str], Engine]
    """The engine of a role's policies."""
    upstreams: Sequence[Upstream]
    announce: Callable[[Start], None]
    """Takes each drawn arm's start."""
    is_blind: Callable[[], bool]
    """Whether nothing could observe a canary now."""
    now: Callable[[], datetime]
    _asked: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """By role: the model that answered its agents last, where they asked for another name than the role's. No
        evaluation changes it: a search asks its reflector, too."""

    async def prepare(self, role: str, version: Pinned | None) -> None:
        """Have at hand what the policies that may answer a role's call change of it; `version`: the one it names."""
        named = [served(version)] if isinstance(version, PolicyVersion) else []
        await self.routes.bundles.prepare([*self.routes.policies_of(role), *named])

    def assign(
        self,
        arm: Arm,
        version: Pinned | None,
        asked: str,
        *,
        subject_ref: Callable[[], str | None],
        pinned: bool = False,
    ) -> Choice:
        """Who answers the trajectory's call: what it names, else its arm's policy, else an upstream.

        `asked`: the model as the agent named it, in `model`. `pinned`: who serves it now, as if the agent had named
        that version. `subject_ref`: the hash of whose trajectory it is.

        Announces an arm that it draws, before the gateway asks any engine, unless nothing of the trajectory is
        recorded: it begins with stable then, for no statistic would show what a canary does to it. Raises `NotFound`.
        """
        is_evaluation = version is not None or pinned
        asked = self._requested_model(arm.role, asked)
        if is_evaluation:
            choice = self.serving(arm.role, version, asked)
            policy = choice.assignment.policy
            return choice._replace(assignment=pin(policy, arm, as_sent=version is None and not policy.digest))
        route, is_first = self.routes.get_route(arm.role) or Route(role=arm.role), arm.assignment is None
        by_upstream = self._upstream(arm.role, asked) if route.stable is None else None
        lapsed = self.routes.has_lapsed(arm.role) or self.is_blind()
        metrics.series(metrics.LAPSED, arm.role).set(lapsed)
        assignment = assign(route, arm, lapsed=lapsed or (is_first and arm.unrecorded))
        if is_first and not arm.unrecorded:
            self.announce(start_of(route, arm, assignment, lapsed=lapsed, at=self.now(), subject_ref=subject_ref()))
        return by_upstream or self._choice(arm.role, assignment, asked)

    def serving(self, role: str, version: Pinned | None, asked: str) -> Choice:
        """Who answers for a role outside every trajectory: the named version or model, else stable, else an upstream.

        `asked`: the model as the agent named it, in `model`. Raises `NotFound`.
        """
        if isinstance(version, BundleModel):
            for upstream, model in self._models_of(version, AS_SENT):
                return Choice(upstream, stable_by(model), model, asked)
            raise unserved(asked, role)
        asked = self._requested_model(role, asked)
        route = self.routes.get_route(role)
        policy = served(version) if version is not None else route.stable if route is not None else None
        return self._upstream(role, asked) if policy is None else self._choice(role, stable_by(policy), asked)

    def note_answer(self, role: str, choice: Choice) -> None:
        """A call was answered: the model that it asked for is one that there is."""
        if choice.assignment.arm != PINNED and _names_model(role, choice.asked):
            self._asked[role] = choice.asked

    def serves_policies(self, engine: Engine) -> bool:
        """Whether an engine serves Ratchet's own policies."""
        return all(engine is not upstream for upstream in self.upstreams)

    def takes_no_tools(self, engine: Engine, role: str, policy: ServedPolicy) -> bool:
        """Whether the deployer has seen that the chat template of a policy shows it no tools."""
        return self.serves_policies(engine) and self.routes.takes_tools(role, policy.version) is False

    def upstreams_for(self, role: str, asked: str) -> list[tuple[Upstream, ServedPolicy]]:
        """The upstreams that map a role, or every one, each with its model."""
        served = [(upstream, upstream.policy_for(role, asked)) for upstream in self.upstreams]
        return [(upstream, model) for upstream, model in served if model is not None]

    def fall_back(self, arm: Arm, failed: Choice, failure: EngineFailed) -> Choice | None:
        """Who answers after a failure: stable after another policy, unless the engine that it shares is unreachable,
        then the upstreams after the one that failed, by the bundle of the policy in whose place they answer: none
        without it. None when no one is left."""
        stable = fall_back(self.routes.get_route(arm.role), arm, failed.assignment)
        if stable is not None:
            choice = self._choice(arm.role, stable, failed.asked)
            if not failure.unreachable or choice.engine is not failed.engine:
                return choice
            failed = choice  # in whose place an upstream answers
        is_unread = failed.assignment.policy.bundle and failed.bundle is None
        if is_unread or isinstance(failure, PolicyUnfit):
            return None
        position = next((n for n, upstream in enumerate(self.upstreams) if upstream is failed.engine), -1)
        for upstream in self.upstreams[position + 1 :]:
            model = upstream.policy_for(arm.role, failed.asked)
            assignment = fall_back_upstream(model, arm, failed.assignment) if model else None
            if model is not None and assignment is not None:
                return Choice(upstream, assignment, model, failed.asked, failed.bundle)
        return None

    def _choice(self, role: str, assignment: Assignment, asked: str) -> Choice:
        """Who answers by a policy. One that nothing can answer for gets an engine that says why."""
        policy = assignment.policy
        if policy.version != AS_SENT and not policy.bundle:
            return Choice(self.engine_of(role), assignment, policy, asked)
        bundle = self.routes.bundles.find(policy.digest) if policy.bundle else None
        if policy.bundle and (bundle is None or bundle.bundle.planner is not None):
            return Choice(NoEngine(_unanswered(policy, bundle)), assignment, policy, asked, bundle)
        model = bundle.bundle.model if bundle is not None else None
        if model is not None and model.digest is not None:
            known = ServedPolicy(version=policy.version, name=model.name, digest=model.digest)
            return Choice(self.engine_of(role), assignment, known, asked, bundle)
        if model is None:
            candidates = self.upstreams_for(role, asked)
            why = f"no upstream answers for {role}"
            if _names_version(role, asked) and candidates and candidates[0][1].name.endswith(f":{asked}"):
                why = f"which model answers for {role} is not known: no agent has got an answer since the gateway began"
                return Choice(NoEngine(NotServed(503, why, code="engine_unavailable")), assignment, policy, asked)
        else:
            candidates = self._models_of(model, policy.version)
            why = f"{policy.name} asks the upstream {model.upstream}, which RATCHET_GATEWAY_UPSTREAMS does not name"
        if not candidates:
            return Choice(NoEngine(PolicyUnfit(502, why, code=NO_UPSTREAM)), assignment, policy, asked, bundle)
        return Choice(candidates[0][0], assignment, candidates[0][1], asked, bundle)

    def _models_of(self, model: BundleModel, version: int) -> list[tuple[Upstream, ServedPolicy]]:
        """The upstream that a model names, and the model as turns name it; empty where there is none of this name."""
        known = ServedPolicy(version=version, name=f"{model.upstream}:{model.name}", digest="")
        return [(upstream, known) for upstream in self.upstreams if upstream.info.name == model.upstream]

    def _requested_model(self, role: str, asked: str) -> str:
        """The model for upstreams that have the asked one answer.

        A call that names the role or a version of it names no model: it gets the one that answered the role's agents
        last, so that a version can be tried as it would serve.
        """
        return asked if _names_model(role, asked) else self._asked.get(role, asked)

    def _upstream(self, role: str, asked: str) -> Choice:
        """The first one that maps a role without a policy. Raises `NotFound`."""
        for upstream, model in self.upstreams_for(role, asked):
            return Choice(upstream, stable_by(model), model, asked)
        raise unserved(asked, role)


def _unanswered(policy: ServedPolicy, bundle: Applier | None) -> EngineFailed:
    """Why no call is answered by a bundle that was not read, or plans workflows."""
    if bundle is None:
        return NotServed(503, f"the gateway has not read the bundle of {policy.name}", code="engine_unavailable")
    why = f"{policy.name} plans workflows and answers no calls: POST /v1/workflows of the workflow service runs one"
    return PolicyUnfit(400, why, code="policy_unfit")


def _names_model(role: str, asked: str) -> bool:
    return asked != role and not _names_version(role, asked)


def _names_version(role: str, asked: str) -> bool:
    return asked.startswith(f"{role}@")
