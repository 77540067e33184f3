"""Who answers where a policy does not say, or cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ratchet.bus.testing import eventually
from ratchet.core.contract import Start, named_id
from ratchet.core.contract.bundle import Bundle, BundleModel, Instructions
from ratchet.core.contract.state import Route
from ratchet.core.rules.arms import Assignment
from ratchet.gateway.call_router import CallRouter
from ratchet.gateway.domain.routing import Arm
from ratchet.gateway.engines.base import EngineFailed, NotServed
from ratchet.gateway.engines.openai import OpenAiEngine
from ratchet.gateway.kv_bundles import Bundles
from ratchet.gateway.kv_routes import Routes
from tests.support.gateway_alone import Server
from tests.support.gateway_scene import ROLE, served, version
from tests.support.messages import AT


def routes_of(folder: Path) -> Routes:
    """Without a broker: what `folder` has."""
    never: Any = asyncio.Event().wait
    return Routes(never, folder, lease_s=20.0, monotonic=lambda: 0.0, bundles=Bundles(lambda: None, folder))


def routed(routes: Routes, *names: str, announce: Callable[[Start], None] = lambda start: None) -> CallRouter:
    """Upstreams that answer for all roles, one unless they are named."""
    upstreams = [OpenAiEngine(Server(), name, {"*": "*"}) for name in names or ("provider",)]
    return CallRouter(
        routes,
        lambda role: upstreams[0],
        upstreams,
        announce=announce,
        is_blind=lambda: False,
        now=lambda: AT,
    )


async def test_an_evaluation_changes_no_model_that_answers_for_a_role(tmp_path: Path) -> None:
    router, as_sent = routed(routes_of(tmp_path)), version(0)
    for model, pinned in (("agents-model", False), ("reflector", True)):
        choice = router.assign(Arm(named_id(model), ROLE), None, model, subject_ref=lambda: None, pinned=pinned)
        router.note_answer(ROLE, choice)
    assert router.serving(ROLE, as_sent, f"{ROLE}@0").served.name == "provider:agents-model"


async def test_model_of_an_upstream_answers_pinned_and_changes_nothing(tmp_path: Path) -> None:
    router, arm = routed(routes_of(tmp_path), "first", "second"), Arm(named_id("reflector"), ROLE)
    large = BundleModel(upstream="second", name="large")
    choice = router.assign(arm, large, f"{ROLE}@second/large", subject_ref=lambda: None)
    assert (choice.engine.info.name, choice.served.name) == ("second", "second:large")
    assert (choice.assignment.arm, choice.bundle) == ("pinned", None)
    away = EngineFailed(502, "nothing listens", code="engine_unavailable", unreachable=True)
    assert router.fall_back(arm, choice, away) is None
    router.note_answer(ROLE, choice)
    assert router.serving(ROLE, None, ROLE).served.name == f"first:{ROLE}"


async def test_a_role_without_a_policy_starts_its_trajectories_once(tmp_path: Path) -> None:
    starts: list[Start] = []
    router, arm = routed(routes_of(tmp_path), announce=starts.append), Arm(named_id("one"), ROLE)
    for _ in range(2):
        choice = router.assign(arm, None, "agents-model", subject_ref=lambda: "0123456789abcdef")
        assert choice.assignment.policy.name == "provider:agents-model"
    (start,) = starts
    assert (start.policy.version, start.policy.arm, start.rollout_id) == (0, "stable", None)
    assert start.subject_ref == "0123456789abcdef"


async def test_a_model_that_never_answered_is_not_tried_for_a_role(tmp_path: Path) -> None:
    router = routed(routes_of(tmp_path))
    answered = router.assign(Arm(named_id("one"), ROLE), None, "agents-model", subject_ref=lambda: None)
    router.note_answer(ROLE, answered)
    router.assign(Arm(named_id("two"), ROLE), None, "agnets-model", subject_ref=lambda: None)
    assert router.serving(ROLE, version(0), f"{ROLE}@0").served.name == "provider:agents-model"


async def test_nothing_answers_in_place_of_a_bundle_that_is_not_read(tmp_path: Path) -> None:
    unread = msgspec.structs.replace(served(2), bundle=True)
    (tmp_path / "routes.json").write_bytes(msgspec.json.encode({ROLE: Route(role=ROLE, stable=unread)}))
    routes = routes_of(tmp_path)
    running = asyncio.create_task(routes.run())
    router, arm = routed(routes), Arm(named_id("unread"), ROLE)

    async def is_restored() -> bool:
        return routes.get_route(ROLE) is not None

    await eventually(is_restored)
    choice = router.assign(arm, None, "agents-model", subject_ref=lambda: None)
    failure = NotServed(503, "the gateway has not read it", code="engine_unavailable")
    assert (choice.assignment.policy, router.fall_back(arm, choice, failure)) == (unread, None)
    await routes.stop()
    await running


async def test_an_upstream_in_stables_place_answers_by_stables_bundle(tmp_path: Path) -> None:
    stable, canary = (msgspec.structs.replace(served(number), bundle=True) for number in (1, 2))
    for policy, text in ((stable, "stable's"), (canary, "the canary's")):
        bundle = Bundle(instructions=Instructions(text=text))
        (tmp_path / f"{policy.digest}.json").write_bytes(msgspec.json.encode(bundle))
    (tmp_path / "routes.json").write_bytes(msgspec.json.encode({ROLE: Route(role=ROLE, stable=stable)}))
    routes = routes_of(tmp_path)
    running = asyncio.create_task(routes.run())
    router, arm = routed(routes, "first", "second"), Arm(named_id("away"), ROLE)

    async def is_restored() -> bool:
        return routes.get_route(ROLE) is not None

    await eventually(is_restored)
    failed = router.assign(arm, version(2), "agents-model", subject_ref=lambda: None)
    failed = failed._replace(assignment=Assignment("canary", 0.5, canary), bundle=routes.bundles.find(canary.digest))
    away = EngineFailed(502, "nothing listens", code="engine_unavailable", unreachable=True)
    following = router.fall_back(arm, failed, away)
    assert following is not None
    assert (following.engine.info.name, following.bundle) == ("second", routes.bundles.find(stable.digest))
    await routes.stop()
    await running
