"""A key for some roles: what is stored of another role changes none of the answers that it gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.cli.interfaces import Interface, control_api
from ratchet.console.pairs import PairKey
from ratchet.core.contract import Turn
from ratchet.core.service.settings import SharedSettings
from tests.support.callers import made
from tests.support.console_data import store
from tests.support.consoles import consoling
from tests.support.coordinator import ROLE, Workshop, coordinating, played, tid
from tests.support.preferences import preferred
from tests.support.rewards import feedback
from tests.support.running import connected, prepared_objects, prepared_warehouse
from tests.support.training import promote, registered

FACTS = [*played("secret", 0.9), *played("other", 0.1), feedback(1, "secret", role=ROLE), preferred("secret")]
CALL = next(fact for fact in FACTS if isinstance(fact, Turn)).turn_id
STREAMS = {"/v1/events"}
"""See `tests/unit/console/test_visible.py`."""
CHANGING = frozenset({"at", "since", "until", "unread", "services"})
"""Members of answers that other things change as well."""
REQUEST = {"algorithm": "rloo", "base_model": "org/model", "role": ROLE}
SPAN = {"since": "2026-01-01T00:00:00Z", "until": "2026-12-31T00:00:00Z", "every": "week"}


def asked_of(service: Interface, job_id: str) -> list[str]:
    """The path of every route that keeps to the roles of a key, with ids of the role that is not the key's."""
    names = {"job_id": job_id, "trajectory_id": tid("secret"), "turn_id": quote(CALL, safe=""), "index": "0"}
    rows = [row for row in control_api(service).operations if row.verb == "GET" and row.arguments.roles]
    return [re.sub(r"{(\w+)}", lambda name: names[name[1]], row.path) for row in rows if row.path not in STREAMS]


async def answers(clients: Mapping[Interface, httpx.AsyncClient], job_id: str, headers: Mapping[str, str]) -> Any:
    """What a key reads: by service and path."""
    read: dict[tuple[str, str], Any] = {}
    for service, http in clients.items():
        for path in asked_of(service, job_id):
            span = SPAN if path == "/v1/statistics" else {}
            answer = await http.get(path, headers=headers, params=span)
            is_json = answer.headers["content-type"] == "application/json"
            body = answer.json() if is_json else answer.text
            shown = {name: body[name] for name in body if name not in CHANGING} if isinstance(body, dict) else body
            read[service, path] = answer.status_code, shown
    return read


async def plant(shared: SharedSettings, bus: Bus, there: Workshop, headers: Mapping[str, str]) -> str:
    """Something of everything, of the role `support`. Returns the id of its job."""
    async with prepared_warehouse(shared) as warehouse:
        await store(warehouse, *FACTS, at=datetime.now(UTC))
    await promote(bus, registered(1))
    asked = await there.api.post("/v1/jobs", headers=headers, json=REQUEST)
    assert asked.status_code == 201, asked.text
    await there.dispatched(asked.json()["training_job_id"])
    return asked.json()["training_job_id"]


@pytest.mark.slow
async def test_another_role_changes_nothing_that_a_key_reads(shared_settings: SharedSettings) -> None:
    prepared_objects(shared_settings)
    async with (
        prepared_warehouse(shared_settings),
        connected(shared_settings) as bus,
        coordinating(shared_settings, bus) as there,
        consoling(shared_settings, coordinator_url=str(there.api.base_url)) as http,
    ):
        clients = {Interface.COORDINATOR: there.api, Interface.CONSOLE: http}
        scopes = ("view", "train", "annotate")
        every, own, other = [
            {"authorization": f"Bearer {(await made(bus, *held))[1]}"}
            for held in (
                ["admin"],
                [f"{scope}:{ROLE}" for scope in scopes],
                [f"{scope}:{roles}" for scope in scopes for roles in ("billing", "tenant-*")],
            )
        ]

        async def known() -> bool:
            return [(await one.get("/v1/session", headers=other)).status_code for one in clients.values()] == [200, 200]

        await eventually(known)
        job_id = await plant(shared_settings, bus, there, every)
        whole, mine, seen = [await answers(clients, job_id, key) for key in (every, own, other)]
        assert {place for place in whole if whole[place] != mine[place]} <= {(Interface.CONSOLE, "/v1/loop")}
        ids = (tid("secret"), CALL, job_id)
        for (service, path), (status, shown) in seen.items():
            is_of_one = any(quote(name, safe="") in path for name in ids)
            assert status == (404 if is_of_one else 200), (service, path, shown)
            assert is_of_one or not [name for name in (ROLE, *ids) if name in str(shown)], (service, path, shown)
        alike = {path for service, path in seen if seen[service, path] == whole[service, path]}
        assert alike <= {"/health", "/v1/drift", "/v1/alerts", "/v1/status/dpo"}, "nothing was planted there"
        for act in ("cancel", "resume"):
            assert (await there.api.post(f"/v1/jobs/{job_id}/{act}", headers=other)).status_code == 404
        pair = {"pair_id": PairKey(ROLE, tid("other"), tid("secret")).pair_id, "choice": "left", "confidence": 1.0}
        judged = await http.post("/v1/annotation/judgements", headers=other, json=pair)
        assert judged.status_code == 404, judged.text
        taken = await there.api.post(
            "/v1/jobs", headers=other, json={**REQUEST, "role": "billing", "training_job_id": job_id}
        )
        assert (taken.status_code, ROLE in taken.text) == (409, False)
