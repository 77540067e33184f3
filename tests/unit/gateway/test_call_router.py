"""Which model answers where a policy does not say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ratchet.core.contract import named_id
from ratchet.gateway.call_router import CallRouter
from ratchet.gateway.domain.routing import Arm
from ratchet.gateway.engines.openai import OpenAiEngine
from ratchet.gateway.kv_bundles import Bundles
from ratchet.gateway.kv_routes import Routes
from tests.support.gateway_alone import Server
from tests.support.gateway_scene import ROLE, version
from tests.support.messages import AT


def routed(folder: Path) -> CallRouter:
    never: Any = asyncio.Event().wait
    routes = Routes(never, folder, lease_s=20.0, monotonic=lambda: 0.0, bundles=Bundles(lambda: None, folder))
    upstreams = [OpenAiEngine(Server(), "provider", {"*": "*"})]
    return CallRouter(
        routes,
        lambda role: upstreams[0],
        upstreams,
        announce=lambda start: None,
        is_blind=lambda: False,
        now=lambda: AT,
    )


async def test_an_evaluation_changes_no_model_that_answers_for_a_role(tmp_path: Path) -> None:
    router, as_sent = routed(tmp_path), version(0)
    for model, pinned in (("agents-model", False), ("reflector", True)):
        router.assign(Arm(named_id(model), ROLE), None, model, subject_ref=lambda: None, pinned=pinned)
    assert router.serving(ROLE, as_sent, f"{ROLE}@0").served.name == "provider:agents-model"
