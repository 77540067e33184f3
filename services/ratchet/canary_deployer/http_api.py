"""The control API: what rollouts and policies there are, and what operators can do about them.

    GET  /v1/rollouts                      every role's newest rollout
    GET  /v1/rollouts/{role}               one of them; 404 when there was none
    GET  /v1/rollouts/{role}/audit         whether the role's log of decisions is whole, and where it is not
    GET  /v1/policies                      every role's route and policies
    GET  /v1/policies/{role}               one role's
    POST /v1/rollouts/{role}/approve       {"actor", "reason"}: start the canary of what waits
    POST /v1/rollouts/{role}/pause         {"actor", "reason"}: freeze the stage; a rollback is still possible
    POST /v1/rollouts/{role}/resume        {"actor", "reason"}: go on, with a new deadline; or unpark the queue
    POST /v1/rollouts/{role}/promote       {"actor", "reason", "override"}: stable now; undecided: only with override
    POST /v1/rollouts/{role}/rollback      {"actor", "reason"}: end the canary at once; `abort` is its older name
    POST /v1/rollouts/{role}/revert        {"actor", "reason"}: undo the last promotion, whatever runs; parks the queue
    POST /v1/rollouts/{role}/start         {"version", "actor", "reason", "override", "strategy"}: roll out or approve
                                           this version; strategy is canary, blue_green, auto, or, with override,
                                           immediate

With `"dry_run": true` in its body a POST answers as it would, with the rollout as it would be, and changes nothing. It
stands in the body, where a field that is not known is refused: a misspelt one must not act.

Every error is an `ErrorOut`: 400 for a bad body, 404 for an unknown role or policy, 409 in the wrong state,
503 while the broker is away, for a POST to a standby, with the address of the deployer that leads, and in the moment in
which one begins to lead. `actor` has at most 200 characters and `reason` 10,000.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ratchet.canary_deployer.controllers import Deployments
from ratchet.canary_deployer.domain.audit import Audit, audited
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
from ratchet.service.control_api import answer_errors

T = TypeVar("T")


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

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/rollouts", self.rollouts),
            Route("/v1/rollouts/{role}", self.rollout),
            Route("/v1/rollouts/{role}/audit", self.audit),
            Route("/v1/policies", self.all_policies),
            Route("/v1/policies/{role}", self.policies),
            Route("/v1/rollouts/{role}/start", self.start, methods=["POST"]),
            *(Route(f"/v1/rollouts/{{role}}/{act}", self._act(act), methods=["POST"]) for act in Act),
        ]
        app = Starlette(routes=routes)
        answer_errors(app)
        return app

    async def rollouts(self, _: Request) -> Response:
        """Every role's newest rollout."""
        found = [(role, await self._deployments.current(role)) for role in await self._deployments.roles()]
        return _json(
            RolloutsOut(rollouts=[self._shown(role, rollout) for role, rollout in found if rollout is not None])
        )

    async def rollout(self, request: Request) -> Response:
        """One role's newest rollout."""
        role = _named_role(request)
        found = await self._deployments.current(role)
        if found is None:
            raise NotFound(f"there was no rollout of {role} yet")
        return _json(self._shown(role, found))

    async def audit(self, request: Request) -> Response:
        """Every decision about a role that the stream still has, held against its hash chain."""
        role = _named_role(request)
        route = await self._policies.route(role)
        if route is None:
            raise NotFound(f"no such role: {role}")
        untold = await self._untold(role)
        found = audited(await self._decisions.of(role), route.audit_hash, untold)
        return _json(_audit(role, found))

    async def _untold(self, role: str) -> ModelRollout | None:
        """The decision that the route knows already and the log does not yet.

        Read after the route and before the log: whatever is announced in between is in the log then.
        """
        rollout = await self._deployments.current(role)
        waiting = [one for one in rollout.outbox if one.topic == ModelRollout.TOPIC] if rollout else []
        return decode(waiting[-1].body.encode(), ModelRollout) if waiting else None

    async def all_policies(self, _: Request) -> Response:
        """Every role's route and policies."""
        return _json(PoliciesOut(roles=[await self._role(role) for role in await self._policies.roles()]))

    async def policies(self, request: Request) -> Response:
        """One role's route and policies."""
        role = _named_role(request)
        if role not in await self._policies.roles():
            raise NotFound(f"no such role: {role}")
        return _json(await self._role(role))

    async def start(self, request: Request) -> Response:
        """Roll out a version, or approve the one that waits."""
        wanted = await _body(request, StartIn)
        role = _named_role(request)
        driver = await self._deployments.driver(role)
        policy = await self._policies.version(role, wanted.version)
        order = Order(wanted.actor, wanted.reason, wanted.override, wanted.strategy)
        start = driver.would_start if wanted.dry_run else driver.start
        return _json(self._shown(role, await start(policy, order)))

    def _act(self, act: Act) -> Callable[[Request], Awaitable[Response]]:
        async def taken(request: Request) -> Response:
            wanted = await _body(request, PromoteIn if act is Act.PROMOTE else ActIn)
            role = _named_role(request)
            driver = await self._deployments.driver(role)
            order = Order(wanted.actor, wanted.reason, isinstance(wanted, PromoteIn) and wanted.override)
            take = driver.would_act if wanted.dry_run else driver.act
            return _json(self._shown(role, await take(act, order)))

        return taken

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


def _named_role(request: Request) -> str:
    """The role in the path. Raises `NotFound` for what is no name of a role, without asking the broker."""
    role: str = request.path_params["role"]
    if ROLE.fullmatch(role) is None:
        raise NotFound(f"no such role: {role}")
    return role


async def _body(request: Request, kind: type[T]) -> T:
    """The request's body as `kind`, with a named actor. Raises `BadRequest`."""
    try:
        wanted = msgspec.json.decode(await request.body(), type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"bad request: {error}") from error
    if isinstance(wanted, ActIn) and not (wanted.actor.strip() and wanted.reason.strip()):
        raise BadRequest("bad request: actor and reason must say something")
    return wanted


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
