"""Opting out at real gateways on a real broker: all of them heed it, and a canary is not affected."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.bus.testing import eventually
from ratchet.core.contract import Start, Turn
from ratchet.core.contract.erasure import TRAJECTORY, USER, Erasure
from ratchet.core.rules.texts import user_ref
from ratchet.core.service.audit import Act
from ratchet.rl_coordinator.opt_outs import opt_outs
from tests.integration.test_gateway_starts import HI, offered
from tests.support.gateway_scene import ROLE, ask, scene
from tests.support.running import http_client, running
from tests.support.servers import Broker
from tests.support.several_gateways import Several, several

KEY = "key of users"
OFF = {"x-ratchet-record": "off"}


async def call(
    here: Several, at: int, trajectory: str, headers: Mapping[str, str] | None = None, **options: Any
) -> Any:
    named = {"x-ratchet-trajectory": trajectory, **(headers or {})}
    return (await here.ask(HI, at=at, extra_headers=named, **options)).headers


async def opt(here: Several, at: int, path: str, **body: str) -> None:
    async with http_client() as http:
        assert (await http.post(f"{here.scenes[at].url}/v1/{path}", json=body)).status_code == 202


async def test_what_one_gateway_switched_off_the_others_record_neither(nats: Broker, tmp_path: Path) -> None:
    async with several(nats, tmp_path, 2) as here:
        await here.meet()
        off, on = str(uuid.uuid4()), str(uuid.uuid4())
        assert (await call(here, 0, off, OFF))["x-ratchet-record"] == "off"
        assert (await call(here, 1, off))["x-ratchet-record"] == "off"
        await call(here, 1, on)
        turns, starts = await here.scenes[0].published(Turn, 1), await here.scenes[0].published(Start, 1)
        assert [message.trajectory_id for message in (*turns, *starts)] == [on, on]


async def test_person_who_opts_out_at_one_gateway_is_so_at_the_other(nats: Broker, tmp_path: Path) -> None:
    erasures: list[Erasure] = []
    acts: list[Act] = []

    async def note(erasure: Erasure) -> None:
        erasures.append(erasure)

    async with several(nats, tmp_path, 2, user_key=KEY) as here, running(opt_outs(here.bus, note, acts.append)):
        trajectory = str(uuid.uuid4())
        await call(here, 1, trajectory, user="mia")
        await here.scenes[1].published(Turn, 1)
        await opt(here, 0, "opt-outs", user="mia")

        async def is_heeded() -> bool:
            return "x-ratchet-record" in await call(here, 1, str(uuid.uuid4()), user="mia")

        await eventually(is_heeded)
        assert "x-ratchet-record" not in await call(here, 1, str(uuid.uuid4()), user="miam")
        assert (await call(here, 1, trajectory, user="mia"))["x-ratchet-record"] == "off"

        async def asked() -> bool:
            expected = {(USER, user_ref(KEY, "mia"), None), (TRAJECTORY, trajectory, ROLE)}
            return {(erasure.kind, erasure.ref, erasure.role) for erasure in erasures} >= expected

        await eventually(asked)
        await opt(here, 1, "opt-ins", user="mia")

        async def is_recorded() -> bool:
            return "x-ratchet-turn" in await call(here, 0, str(uuid.uuid4()), user="mia")

        await eventually(is_recorded)
        assert (await call(here, 0, trajectory, user="mia"))["x-ratchet-record"] == "off"


async def test_unrecorded_calls_get_stable_under_a_canary_and_count_nowhere(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        await offered(here, 1.0)
        for number, headers in enumerate([OFF, OFF, {}]):
            named = {"x-ratchet-trajectory": str(uuid.UUID(int=number)), **headers}
            answer = await ask(here.client(), HI, extra_headers=named)
            assert answer.headers["x-ratchet-arm"] == ("stable" if headers else "canary")
        (turn,), (start,) = await here.published(Turn, 1), await here.published(Start, 1)
        assert turn.trajectory_id == start.trajectory_id == str(uuid.UUID(int=2))
