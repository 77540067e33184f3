"""The control API: rollouts and policies to read, and the orders of operators.

With `"dry_run": true` in its body a POST answers with the resulting rollout and changes nothing. `dry_run` stands in
the body, where unknown fields are refused: a misspelt one must not act.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ratchet.canary_deployer.bundle_registry import BundleRegistry
from ratchet.canary_deployer.controllers import Controllers
from ratchet.canary_deployer.domain.audit import audit_chain
from ratchet.canary_deployer.domain.operators import TAKES_TRAFFIC, Act, Order
from ratchet.canary_deployer.domain.rollout import Rollout, State
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.summary import summary, trail_of
from ratchet.canary_deployer.four_eyes import FourEyes
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.role_removal import RoleRemoval
from ratchet.core.contract import ModelRollout, decode
from ratchet.core.contract.http.rollouts import (
    ActIn,
    AuditOut,
    BundleIn,
    BundleOut,
    DecisionOut,
    PoliciesOut,
    PromoteIn,
    RemoveIn,
    RolePoliciesOut,
    RolloutOut,
    RolloutsOut,
    StartIn,
    TrailOut,
)
from ratchet.core.errors import BadRequest, NotFound, Unreadable
from ratchet.core.rules.access import Caller, KeyScope, RoleSet
from ratchet.core.rules.arms import ROLE
from ratchet.core.service.control_api import ControlApi
from ratchet.core.service.openapi import member_words

ERRORS: Mapping[int, str] = {
    503: "The broker is away, or a record cannot be read. A deployer that does not lead, or has only just begun to,"
    " refuses orders with it: the message names the one that leads.",
}
UNKNOWN: Mapping[int, str] = {404: "There is no such role, policy or rollout."}
UNREADABLE: Mapping[int, str] = {
    400: "The body does not fit this order, or one of the headers that are checked comes twice.",
}
ORDERS: Mapping[int, str] = {
    **UNREADABLE,
    **UNKNOWN,
    409: "The rollout's state does not allow this order; the message names those that it allows.",
}
TAKEN: Mapping[int, str] = {
    200: "The rollout after the order; with `dry_run`, as it would be.",
    202: "The order waits for a second person (RATCHET_FOUR_EYES): this is the rollout as it is.",
}
REMOVAL: Mapping[int, str] = {
    **UNREADABLE,
    **UNKNOWN,
    409: "Something depends on the role; the message names it.",
}
BUNDLES: Mapping[int, str] = {
    400: "The bundle could answer no call, or holds a secret: the message says where.",
}


class Api:
    """The handlers; they decide nothing."""

    def __init__(
        self,
        controllers: Controllers,
        policies: KvPolicies,
        bundles: BundleRegistry,
        removal: RoleRemoval,
        decisions_of: Callable[[str], Awaitable[Sequence[ModelRollout]]],
        rules: Rules,
    ) -> None:
        """`decisions_of`: all decisions about a role that the log still has, in order; raises `Unavailable`."""
        self._controllers = controllers
        self._policies = policies
        self._bundles = bundles
        self._removal = removal
        self._decisions_of = decisions_of
        self._rules = rules
        self.four_eyes: FourEyes | None = None
        """Where promotions and overrides take two people."""

    def app(self) -> ControlApi:
        """The ASGI application."""
        api = ControlApi(
            "Ratchet canary deployer",
            "Rollouts and policies to read, and the orders of operators. Every error is an ErrorOut.",
            ERRORS,
        )
        role = "/v1/rollouts/{role}"
        api.route("GET", "/v1/rollouts", self.rollouts, scope=KeyScope.VIEW)
        api.route("GET", role, self.rollout, scope=KeyScope.VIEW, errors=UNKNOWN)
        api.route("GET", f"{role}/trail", self.trail, scope=KeyScope.VIEW, errors=UNKNOWN)
        api.route("GET", f"{role}/audit", self.audit, scope=KeyScope.VIEW, errors=UNKNOWN)
        api.route("GET", "/v1/policies", self.all_policies, scope=KeyScope.VIEW)
        api.route("GET", "/v1/policies/{role}", self.policies, scope=KeyScope.VIEW, errors=UNKNOWN)
        bundle, bundles = "/v1/policies/{role}/{version}/bundle", "/v1/policies/{role}/bundles"
        api.route("GET", bundle, self.bundle, scope=KeyScope.VIEW, errors={**UNKNOWN, 422: "No version is so written."})
        api.route("POST", bundles, self.create_bundle, scope=KeyScope.OPERATE, errors=BUNDLES)
        remove = "/v1/policies/{role}/remove"
        api.route("POST", remove, self.remove_role, scope=KeyScope.OPERATE, errors=REMOVAL)
        api.route("POST", f"{role}/start", self.start, scope=KeyScope.OPERATE, answers=TAKEN, errors=ORDERS)
        for act in Act:
            urgent, handler = act in TAKES_TRAFFIC, self._handler_of(act)
            answers = TAKEN if act is Act.PROMOTE else None
            path = f"{role}/{act}"
            api.route("POST", path, handler, scope=KeyScope.OPERATE, answers=answers, errors=ORDERS, urgent=urgent)
        return api

    async def rollouts(self, roles: RoleSet) -> RolloutsOut:
        """Every role's newest rollout, without those whose record cannot be read."""
        shown: list[RolloutOut] = []
        for role in await self._controllers.roles():
            if role not in roles:
                continue
            with suppress(Unreadable):  # readiness names it
                rollout = await self._controllers.current(role)
                shown += [await self._summary(role, rollout)] if rollout is not None else []
        return RolloutsOut(rollouts=shown)

    async def rollout(self, role: str) -> RolloutOut:
        """One role's newest rollout."""
        return await self._summary(role, await self._newest(role))

    async def trail(self, role: str) -> TrailOut:
        """The e-values of one role's newest rollout since it began."""
        return trail_of(await self._newest(role))

    async def audit(self, role: str) -> AuditOut:
        """Every decision about a role that the stream still has, held against its hash chain."""
        route = await self._policies.route(_checked(role))
        if route is None:
            raise NotFound(f"no such role: {role}")
        # Read after the route and before the log: a decision that is published in between is in the log then.
        rollout = await self._controllers.current(role)
        pending = [event for event in rollout.outbox if event.topic == ModelRollout.TOPIC] if rollout else []
        unpublished = decode(pending[-1].body.encode(), ModelRollout) if pending else None
        audit = audit_chain(await self._decisions_of(role), route.audit_hash, unpublished)
        return AuditOut(
            role=role,
            decisions=audit.decisions,
            whole=audit.problem is None,
            problem=audit.problem,
            since=audit.first.timestamp if audit.first else None,
            complete=audit.first is None or audit.first.previous_hash is None,
            first_break=msgspec.convert(audit.broken, DecisionOut, from_attributes=True) if audit.broken else None,
        )

    async def all_policies(self, roles: RoleSet) -> PoliciesOut:
        """Every role's route and policies, without those whose route cannot be read."""
        shown: list[RolePoliciesOut] = []
        for role in await self._policies.roles():
            if role not in roles:
                continue
            with suppress(Unreadable):
                shown.append(await self._role_policies(role))
        return PoliciesOut(roles=shown)

    async def policies(self, role: str) -> RolePoliciesOut:
        """One role's route and policies."""
        if _checked(role) not in await self._policies.roles():
            raise NotFound(f"no such role: {role}")
        return await self._role_policies(role)

    async def bundle(self, role: str, version: int) -> BundleOut:
        """A policy, and what it changes of calls."""
        policy = await self._policies.version(_checked(role), version)
        return BundleOut(policy=policy, bundle=await self._bundles.bundles.bundle_of(policy), new=False)

    async def create_bundle(self, role: str, body: BundleIn, caller: Caller) -> BundleOut:
        """Register a bundle as the role's next policy; a live policy that is the same is returned instead."""
        if ROLE.fullmatch(role) is None:
            raise BadRequest(f"{role} cannot be a role's name", param="role")
        return await self._bundles.register(role, body, _actor(body, caller))

    async def remove_role(self, role: str, body: RemoveIn, caller: Caller) -> RolePoliciesOut:
        """Remove a role that no agent has called within a week, and whose bundles have no rollout."""
        return await self._removal.remove(_checked(role), _actor(body, caller), body.reason, dry_run=body.dry_run)

    async def start(self, role: str, body: StartIn, caller: Caller) -> tuple[int, RolloutOut]:
        """Roll out a version, or approve the one that waits. Strategy immediate takes override."""
        order = _order(body, caller, body.override, body.strategy)
        controller = await self._controllers.controller(_checked(role))
        policy = await self._policies.version(role, body.version)

        async def start(order: Order, dry_run: bool) -> Rollout:
            return await controller.operators.start(policy, order, dry_run=dry_run)

        what = f"start {policy.name} {body.strategy or ''} with override".replace("  ", " ")
        return await self._ordered(role, order, body.dry_run, start, what if body.override else None, caller)

    def _handler_of(self, act: Act) -> Callable[..., Awaitable[tuple[int, RolloutOut]]]:
        async def handle(role: str, body: ActIn, caller: Caller) -> tuple[int, RolloutOut]:
            order = _order(body, caller, isinstance(body, PromoteIn) and body.override)
            controller = await self._controllers.controller(_checked(role))

            async def give(order: Order, dry_run: bool) -> Rollout:
                return await controller.operators.act(act, order, dry_run=dry_run)

            if act is not Act.PROMOTE:
                return await self._ordered(role, order, body.dry_run, give, None, caller)
            meant = order.rollout_id or (await self._newest(role)).rollout_id  # the second person may see a newer one
            what = f"promote {meant}{' with override' * order.override}"
            order = dataclasses.replace(order, rollout_id=meant)
            return await self._ordered(role, order, body.dry_run, give, what, caller)

        async def handle_promote(role: str, body: PromoteIn, caller: Caller) -> tuple[int, RolloutOut]:
            return await handle(role, body, caller)

        handler = handle_promote if act is Act.PROMOTE else handle
        handler.__name__, handler.__doc__ = str(act), member_words(Act)[act.name]
        return handler

    async def _ordered(
        self,
        role: str,
        order: Order,
        dry_run: bool,
        give: Callable[[Order, bool], Awaitable[Rollout]],
        what: str | None,
        caller: Caller,
    ) -> tuple[int, RolloutOut]:
        """The rollout after an order; 202 and the rollout as it is where the order waits for a second person. `what`:
        of an order that takes two."""
        rule = self.four_eyes
        if rule is None or what is None or dry_run:
            return 200, await self._summary(role, await give(order, dry_run))
        seconded = rule.seconded(role, what, order, caller)
        if seconded is None:
            would_be = await give(order, True)
            rule.wait(role, what, order)
            return 202, await self._summary(role, await self._controllers.current(role) or would_be)
        done = await give(seconded, False)
        rule.over(role)
        return 200, await self._summary(role, done)

    async def _role_policies(self, role: str) -> RolePoliciesOut:
        route = await self._policies.route(role)
        return RolePoliciesOut(role=role, route=route, policies=await self._policies.versions(role))

    async def _newest(self, role: str) -> Rollout:
        rollout = await self._controllers.current(_checked(role))
        if rollout is None:
            raise NotFound(f"there was no rollout of {role} yet")
        return rollout

    async def _summary(self, role: str, rollout: Rollout) -> RolloutOut:
        policies = await self._policies.versions(role)
        shown = summary(rollout, self._rules, self._controllers.fault(role), self._controllers.late(role), policies)
        waits = self.four_eyes.waiting_for(role) if self.four_eyes is not None else []
        going = self._controllers.progress(role) if rollout.state is State.GATING else None
        return msgspec.structs.replace(shown, waiting_for=[*shown.waiting_for, *waits], progress=going)


def _checked(role: str) -> str:
    """The role in the path. Raises `NotFound` for what cannot be a role's name, without asking the broker."""
    if ROLE.fullmatch(role) is None:
        raise NotFound(f"no such role: {role}")
    return role


def _order(body: ActIn, caller: Caller, override: bool, strategy: str | None = None) -> Order:
    """Who orders it and why: whose key it is, for whom. Raises `BadRequest` when either is blank."""
    return Order(_actor(body, caller), body.reason, override, strategy, body.rollout_id)


def _actor(body: ActIn | BundleIn | RemoveIn, caller: Caller) -> str:
    """Who acts: whose key it is, for whom. Raises `BadRequest` where actor or reason is blank."""
    if not (body.actor.strip() and body.reason.strip()):
        raise BadRequest("bad request: actor and reason must say something", param="actor")
    return caller.actor(body.actor)


def described_api() -> ControlApi:
    """The application for its document alone: nothing stands behind its routes."""
    unused: Any = None
    return Api(unused, unused, unused, unused, unused, unused).app()
