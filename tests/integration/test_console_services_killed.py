"""Each service is killed while the console is used: it is named, its acts are refused in words, and it comes back."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.testing import eventually
from ratchet.core.service.settings import SharedSettings
from tests.support.consoles import NOWHERE, consoling
from tests.support.running import connected, prepared_objects, prepared_warehouse
from tests.support.service_process import service_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LONGEST_S = 60.0
"""An answer about a service that is away comes at once; a busy machine takes longer."""
ACTS: dict[str, tuple[str, dict[str, Any]]] = {
    "coordinator": ("/coordinator/v1/jobs/some/cancel", {}),
    "deployer": ("/deployer/v1/rollouts/support/rollback", {"reason": "worse"}),
    "gateway": ("/gateway/v1/feedback", {"trajectory_id": "some", "kind": "thumbs", "value": "up", "rater_id": "ann"}),
}


async def test_killed_service_is_named_and_its_acts_are_refused_meanwhile(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    prepared_objects(shared_settings)
    with ExitStack() as stack:
        async with prepared_warehouse(shared_settings), connected(shared_settings):
            services = {
                short: await asyncio.to_thread(
                    stack.enter_context,
                    service_process(short, shared_settings, tmp_path, RATCHET_ENGINE_URL=NOWHERE),
                )
                for short in ACTS
            }
            urls = {f"{short}_url": server.url for short, server in services.items()}
            health = {
                server.program.name: f"http://127.0.0.1:{server.program.health_port}" for server in services.values()
            }
            async with consoling(shared_settings, **urls, health_urls=health) as http:

                async def seen() -> tuple[set[str], dict[str, str]]:
                    loop = (await http.get("/v1/loop")).json()
                    return {*loop["unread"]}, {one["name"]: one["state"] for one in loop["services"]}

                async def all_there() -> bool:
                    unread, states = await seen()
                    return not unread and {states[name] for name in health} == {"ready"}

                await eventually(all_there, LONGEST_S)
                for short, server in services.items():
                    path, body = ACTS[short]
                    before = await http.post(path, json=body)
                    assert before.status_code != 503, before.text
                    await asyncio.to_thread(server.kill)
                    refused = await asyncio.wait_for(http.post(path, json=body), LONGEST_S)
                    assert refused.status_code == 503
                    assert f"the {short} does not answer" in refused.json()["error"]["message"]

                    async def named(short: str = short, name: str = server.program.name) -> bool:
                        unread, states = await seen()
                        expected = {short} - {"gateway"}  # the loop reads its state alone
                        return unread == expected and states[name] == "away"

                    await eventually(named, LONGEST_S)
                    await asyncio.to_thread(server.start)
                    await eventually(all_there, LONGEST_S)
                    assert (await http.post(path, json=body)).status_code == before.status_code
