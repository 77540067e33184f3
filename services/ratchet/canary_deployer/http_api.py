"""The control API: what rollouts and policies there are, and what operators can do about them.

With `"dry_run": true` in its body a POST answers as it would, with the rollout as it would be, and changes nothing. It
stands in the body, where a field that is not known is refused: a misspelt one must not act.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from fastapi import FastAPI

from ratchet.canary_deployer.controllers import Deployments
from ratchet.canary_deployer.domain.audit import Audit, audit_chain
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.summary import summary
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.contract import ModelRollout, decode
from ratchet.contract.http.rollouts import (
    ActIn,
    AuditOut,
    DecisionOut,
    PoliciesOut,
    PromoteIn,
    RolePoliciesOut,
    RolloutOut,
    RolloutsOut,
    StartIn,
)
from ratchet.errors import BadRequest, NotFound
from ratchet.rules.arms import ROLE
from ratchet.service.control_api import ControlApi
from ratchet.service.openapi import member_words

ERRORS: Mapping[int, str] = {
    503: "The broker is away, or a record cannot be read. To an order also from a deployer that does not lead, or only"
    " begins to: the message names the one that leads.",
}
UNKNOWN: Mapping[int, str] = {404: "There is no such role, policy or rollout."}
ORDERS: Mapping[int, str] = {
    400: "The body is not what this order takes, or one of the headers that are checked comes twice.",
    **UNKNOWN,
    409: "Not in the state in which the rollout is; the message names what is possible.",
}


class Decisions(Protocol):
    """The log of decisions."""

    async def of(self, role: str) -> Sequence[ModelRollout]:
        """All that are kept about a role, in order. Raises `Unavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is written down: policies, and how they came to serve."""

    policies: KvPolicies
    decisions: Decisions


class Api:
    """The handlers; they decide nothing."""

    def __init__(self, deployments: Deployments, ledger: Ledger, rules: Rules) -> None:
        self._deployments = deployments
        self._policies = ledger.policies
        self._decisions = ledger.decisions
        self._rules = rules

    def app(self) -> FastAPI:
        """The ASGI application."""
        api = ControlApi(
            "Ratchet canary deployer",
            "What rollouts and policies there are, and what operators can do about them. Every error is an ErrorOut.",
            ERRORS,
        )
        role = "/v1/rollouts/{role}"
        api.route("GET", "/v1/rollouts", self.rollouts, tag="rollouts")
        api.route("GET", role, self.rollout, tag="rollouts", errors=UNKNOWN)
        api.route("GET", f"{role}/audit", self.audit, tag="rollouts", errors=UNKNOWN)
        api.route("GET", "/v1/policies", self.all_policies, tag="policies")
        api.route("GET", "/v1/policies/{role}", self.policies, tag="policies", errors=UNKNOWN)
        api.route("POST", f"{role}/start", self.start, tag="rollouts", errors=ORDERS)
        for act in Act:
            api.route("POST", f"{role}/{act}", self._act(act), tag="rollouts", errors=ORDERS)
        return api.app

    async def rollouts(self) -> RolloutsOut:
        """Every role's newest rollout."""
        found = [(role, await self._deployments.current(role)) for role in await self._deployments.roles()]
        return RolloutsOut(rollouts=[self._shown(role, rollout) for role, rollout in found if rollout is not None])

    async def rollout(self, role: str) -> RolloutOut:
        """One role's newest rollout."""
        found = await self._deployments.current(_checked(role))
        if found is None:
            raise NotFound(f"there was no rollout of {role} yet")
        return self._shown(role, found)

    async def audit(self, role: str) -> AuditOut:
        """Every decision about a role that the stream still has, held against its hash chain."""
        route = await self._policies.route(_checked(role))
        if route is None:
            raise NotFound(f"no such role: {role}")
        untold = await self._untold(role)
        return _audit(role, audit_chain(await self._decisions.of(role), route.audit_hash, untold))

    async def _untold(self, role: str) -> ModelRollout | None:
        """The decision that the route knows already and the log does not yet.

        Read after the route and before the log: whatever is announced in between is in the log then.
        """
        rollout = await self._deployments.current(role)
        waiting = [one for one in rollout.outbox if one.topic == ModelRollout.TOPIC] if rollout else []
        return decode(waiting[-1].body.encode(), ModelRollout) if waiting else None

    async def all_policies(self) -> PoliciesOut:
        """Every role's route and policies."""
        return PoliciesOut(roles=[await self._role(role) for role in await self._policies.roles()])

    async def policies(self, role: str) -> RolePoliciesOut:
        """One role's route and policies."""
        if _checked(role) not in await self._policies.roles():
            raise NotFound(f"no such role: {role}")
        return await self._role(role)

    async def start(self, role: str, body: StartIn) -> RolloutOut:
        """Roll out a version, or approve the one that waits. Strategy immediate takes override."""
        order = _order(body, body.override, body.strategy)
        controller = await self._deployments.controller(_checked(role))
        policy = await self._policies.version(role, body.version)
        start = controller.would_start if body.dry_run else controller.start
        return self._shown(role, await start(policy, order))

    def _act(self, act: Act) -> Callable[..., Awaitable[RolloutOut]]:
        """The handler of one act."""

        async def taken(role: str, body: ActIn) -> RolloutOut:
            order = _order(body, isinstance(body, PromoteIn) and body.override)
            controller = await self._deployments.controller(_checked(role))
            take = controller.would_act if body.dry_run else controller.act
            return self._shown(role, await take(act, order))

        async def promoted(role: str, body: PromoteIn) -> RolloutOut:
            return await taken(role, body)

        handler = promoted if act is Act.PROMOTE else taken
        handler.__name__, handler.__doc__ = str(act), member_words(Act)[act.name]
        return handler

    async def _role(self, role: str) -> RolePoliciesOut:
        route = await self._policies.route(role)
        return RolePoliciesOut(role=role, route=route, policies=await self._policies.versions(role))

    def _shown(self, role: str, rollout: Rollout) -> RolloutOut:
        return summary(rollout, self._rules, self._deployments.fault(role))


def _audit(role: str, found: Audit) -> AuditOut:
    first = found.first
    return AuditOut(
        role=role,
        decisions=found.decisions,
        whole=found.problem is None,
        problem=found.problem,
        since=first.timestamp if first else None,
        complete=first is None or first.previous_hash is None,
        first_break=msgspec.convert(found.broken, DecisionOut, from_attributes=True) if found.broken else None,
    )


def _checked(role: str) -> str:
    """The role in the path. Raises `NotFound` for what is no name of a role, without asking the broker."""
    if ROLE.fullmatch(role) is None:
        raise NotFound(f"no such role: {role}")
    return role


def _order(body: ActIn, override: bool, strategy: str | None = None) -> Order:
    """Who orders it and why. Raises `BadRequest` when either says nothing."""
    if not (body.actor.strip() and body.reason.strip()):
        raise BadRequest("bad request: actor and reason must say something", param="actor")
    return Order(body.actor, body.reason, override, strategy)
