"""Every route of all five APIs has a scope: without it, or with it for another role, a request is refused before
anything else is looked at."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.bus.testing import FakeClock
from ratchet.cli.interfaces import DESCRIBED_BY, Interface, control_api
from ratchet.core.contract.http.gateway import FeedbackTaken
from ratchet.core.errors import Forbidden
from ratchet.core.rules.access import UNAUTHENTICATED, Caller, KeyScope
from ratchet.core.service.asgi import Request
from ratchet.core.service.control_api import ControlApi
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.prices import NO_PRICES
from ratchet.gateway.fetching import BundleFetcher
from ratchet.gateway.http_api import further_routes, route_finder
from ratchet.gateway.opt_outs import OptOutRoutes
from ratchet.gateway.other_calls import OtherCalls
from ratchet.gateway.quotas import Quotas
from ratchet.gateway.telemetry import Telemetry
from tests.support.callers import called_by
from tests.support.contract_files import ROOT
from tests.support.gateway_alone import alone
from tools.docs.api_pages import document

UNUSED: Any = None
"""Stands for the collaborators of routes: a request that is refused reaches none of them."""
CONTROL = {str(service): control_api(service) for service in DESCRIBED_BY}
BY_CHANGE = {
    "coordinator": KeyScope.TRAIN,
    "deployer": KeyScope.OPERATE,
    "console": KeyScope.ANNOTATE,
    "workflows": KeyScope.OPERATE,
    "analyst": KeyScope.OPERATE,
}
"""What a POST takes."""
INFER, FEEDBACK = KeyScope.INFER, KeyScope.FEEDBACK
OF_GATEWAY = {"end": FEEDBACK, "opt-": FEEDBACK, "feedback": FEEDBACK, "jobs": KeyScope.TRAIN, "status": KeyScope.VIEW}
"""By a word in the path; any other route of the gateway is about models."""


def expected(service: str, method: str, path: str) -> KeyScope | None:
    """None: any key will do."""
    if path == "/v1/session":
        return None
    if service == "workflows" and path.startswith("/v1/workflows"):  # who sees one, by its role: test_http_api.py
        return KeyScope.INFER if (method, path) == ("POST", "/v1/workflows") else None
    if path.startswith(("/v1/keys", "/v1/storage", "/v1/erasures")):
        return KeyScope.ADMIN
    if path.startswith("/v1/annotation"):
        return KeyScope.ANNOTATE
    return KeyScope.VIEW if method == "GET" else BY_CHANGE[service]


def control_routes() -> Iterator[tuple[str, str, str]]:
    for service, api in CONTROL.items():
        for operation in api.operations:
            yield service, operation.verb, operation.path


def holders(scope: KeyScope | None) -> Iterator[Caller]:
    """Callers with every other scope that does not include this one."""
    for other in KeyScope if scope is not None else ():
        held = f"{other}:*" if other in (INFER, FEEDBACK) else str(other)
        caller = Caller("key_0000000000", "test", frozenset({held}))
        if scope is not None and not caller.allows(scope):
            yield caller


@pytest.mark.parametrize(("service", "method", "path"), [*control_routes()])
async def test_control_route_refuses_a_key_without_its_scope(service: str, method: str, path: str) -> None:
    scope, concrete = expected(service, method, path), re.sub(r"\{\w+\}", "x", path)
    documented = CONTROL[service].document["paths"][path][method.lower()]["security"]
    scopes = [scope] if scope is not None else []
    assert documented == [{"bearer": scopes}, {"x-api-key": scopes}]
    for caller in [UNAUTHENTICATED, *holders(scope)]:
        transport = httpx.ASGITransport(called_by(CONTROL[service], caller))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.request(method, concrete, content=b"{")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (403, "insufficient_scope")
        assert scope is None or f"`{scope}" in error["message"]


def example(service: str, body: str) -> dict[str, Any]:
    """A body that the service takes."""
    return json.loads((ROOT / "http" / "examples" / service / f"{body}.json").read_text())


ABOUT_ALL = {
    "coordinator": (),
    "deployer": (),
    "console": (),
    "workflows": ("list_workers", "get_worker", "put_worker", "remove_worker"),  # any role's planner may choose them
    "analyst": (),
}
"""Operations, by name, that neither name a role nor keep to those of the key: it must have the scope for all."""


@pytest.mark.parametrize("service", CONTROL)
async def test_route_without_a_role_keeps_to_those_of_the_key_or_needs_all(service: str) -> None:
    about_all = [
        operation.handler.__name__
        for operation in CONTROL[service].operations
        if operation.scope not in (None, KeyScope.ADMIN)
        and not (operation.arguments.names_role or operation.arguments.roles)
        and "role" not in getattr(operation.arguments.body, "__struct_fields__", ())
    ]
    assert tuple(about_all) == ABOUT_ALL[service], "give it a parameter of the type RoleSet, and keep its answer to it"


@pytest.mark.parametrize(("service", "method", "path"), [*control_routes()])
async def test_control_route_refuses_a_key_for_another_role(service: str, method: str, path: str) -> None:
    api = CONTROL[service]
    (operation,) = (row for row in api.operations if (row.verb, row.path) == (method, path))
    scope, body = operation.scope, operation.arguments.body
    if scope in (None, KeyScope.ADMIN):
        return
    of_role = operation.arguments.names_role or "role" in getattr(body, "__struct_fields__", ())
    caller = Caller("key_0000000000", "test", frozenset({f"{scope}:billing", f"{scope}:tenant-*"}))
    transport = httpx.ASGITransport(called_by(api, caller))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for role in ("support", "tenant", "billing-2") if of_role else ():
            concrete = re.sub(r"\{\w+\}", "x", path.replace("{role}", role))
            sent = {**example(service, body.__name__), "role": role} if body and "{role}" not in path else {}
            answer = await client.request(method, concrete, params={"role": role}, json=sent if body else None)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")
            assert f"`{scope}:{role}`" in answer.json()["error"]["message"]


async def test_route_about_all_roles_refuses_a_key_for_some() -> None:
    async def everything() -> FeedbackTaken:
        """All there is."""
        return FeedbackTaken(feedback_id="x", trajectory_id="y")

    api = ControlApi("Things", "All there is.", errors={})
    api.route("GET", "/v1/everything", everything, scope=KeyScope.VIEW)
    for held, status in (("view:support", 403), ("view:*", 200), ("view", 200), ("admin", 200)):
        caller = Caller("key_0000000000", "test", frozenset({held}))
        transport = httpx.ASGITransport(called_by(api, caller))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.get("/v1/everything?role=support")  # a parameter that the route does not have
        assert answer.status_code == status


async def test_every_documented_route_of_gateway_refuses_key_without_its_scope(tmp_path: Path) -> None:
    paths = document(Interface.GATEWAY)["paths"]
    coordinator = AsyncApiClient(Peer("the coordinator", "http://127.0.0.1:1"))
    quotas = Quotas(UNUSED, FakeClock(), FakeClock().monotonic, PeerUpdates())
    async with alone(tmp_path) as here, coordinator:
        calls = here.completions.calls
        others = OtherCalls(calls.reader, calls.models, calls.router, NO_PRICES, quotas.account)
        telemetry = Telemetry(UNUSED, UNUSED, {}, "default", None, UNUSED, NO_PRICES, UNUSED)
        further = further_routes(BundleFetcher(calls, PeerUpdates()), telemetry, OptOutRoutes(UNUSED, None))
        find = route_finder(here.completions, others, here.handlers, further, coordinator, quotas)
        routes = [(path, verb.upper()) for path, verbs in paths.items() for verb in verbs]
        assert len(routes) > 8
        for path, method in routes:
            words = [scope for word, scope in OF_GATEWAY.items() if f"/{word}" in path]
            scope = KeyScope.VIEW if method == "GET" and words else (words or [INFER])[0]
            concrete = re.sub(r"\{\w+\}", "x", path.replace("{sha256}", "0" * 64))
            for caller in [UNAUTHENTICATED, *holders(scope)]:
                for place in (concrete, f"/t/x{concrete}"):
                    with pytest.raises(Forbidden, match=f"`{scope}"):
                        await find(method, place)(Request(method, place, {}, b"{", caller=caller))
