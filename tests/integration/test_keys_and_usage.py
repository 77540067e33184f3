"""A key as people make and revoke it, and what its calls cost: from the commands through every service and back."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from ratchet.bus.testing import eventually
from ratchet.core.service.settings import SharedSettings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.command_lines import ratchet
from tests.support.coordinator import coordinating
from tests.support.gateway_scene import ROLE, ask, scene
from tests.support.running import connected, prepared_objects, prepared_warehouse, running_app
from tests.support.servers import Broker, variables

HI: list[Any] = [{"role": "user", "content": "hi"}]
PRICE = {"prompt": 250_000.0, "completion": 500_000.0}
"""US dollars for a million tokens: dear, so that a few tokens cost a visible amount."""


class Commands:
    """`ratchet` as a person with a key types it, at a system that is only known by its addresses."""

    def __init__(self, shared: SharedSettings, coordinator: str, folder: Path) -> None:
        self._env = {**variables(shared), "RATCHET_COORDINATOR_URL": coordinator}
        self._folder = folder

    async def run(self, *words: str, key: str | None = None) -> subprocess.CompletedProcess[str]:
        env = self._env | ({"RATCHET_API_KEY": key} if key else {})
        return await asyncio.to_thread(ratchet, *words, "--dir", str(self._folder), **env)

    async def answer(self, *words: str, key: str | None = None) -> Any:
        """What a command prints as JSON."""
        done = await self.run(*words, "--json", key=key)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    async def created(self, *words: str, key: str | None = None) -> tuple[str, str]:
        """The id of a new key, and the key; once the coordinator knows `key`."""
        made = await eventually(lambda: self._once_known("keys", "create", *words, "--json", key=key))
        return made["about"]["key_id"], made["key"]

    async def _once_known(self, *words: str, key: str | None) -> Any:
        done = await self.run(*words, key=key)
        assert done.returncode == 0 or "does not know it" in done.stderr, done.stderr
        return json.loads(done.stdout) if done.returncode == 0 else None


@pytest.mark.slow
async def test_a_keys_calls_and_their_cost_are_followed_until_it_is_revoked(
    shared_settings: SharedSettings, nats: Broker, tmp_path: Path
) -> None:
    prepared_objects(shared_settings)
    collector = CollectorSettings(shared=shared_settings, linger_s=0.02)
    async with (
        prepared_warehouse(shared_settings),
        connected(shared_settings) as bus,
        coordinating(shared_settings, bus) as workshop,
        running_app(build_collector(collector)),
        scene(nats, tmp_path / "gateway", engine_price=PRICE) as here,
    ):
        commands = Commands(shared_settings, str(workshop.api.base_url), tmp_path / "none")
        first = await commands.run("keys", "create", "root", "--scope", "admin", "--scope", "view")
        root, (root_id, _, _) = first.stdout.strip(), first.stderr.partition(":")
        assert "refuses calls without a key (401)" in " ".join(first.stderr.split())
        agent_id, agent = await commands.created(
            "agents", "--scope", f"infer:{ROLE}", "--expires", "90d", "--usd-per-day", "1000", key=root
        )
        spent = [await _spend(here.client(api_key=agent)) for _ in range(2)]
        assert min(spent) > 0

        async def counted() -> Any:
            groups = (await commands.answer("stats", "--by", "key", "--role", ROLE, key=root))["groups"]
            return groups if groups and groups[0]["calls"] == len(spent) else None

        (used,) = await eventually(counted)
        assert (used["names"], used["errors"], used["unpriced"]) == ([agent_id], 0, 0)
        assert used["cost_usd"] == pytest.approx(sum(spent))
        (version,) = (await commands.answer("stats", "--by", "policy", key=root))["groups"]
        assert (version["names"], version["calls"]) == ([f"{ROLE}@1"], len(spent))

        listed = (await commands.answer("keys", "list", key=root))["keys"]
        assert {one["key_id"]: one["state"] for one in listed} == {root_id: "usable", agent_id: "usable"}
        assert agent not in str(listed)
        assert (await commands.run("keys", "list", key=agent)).returncode != 0
        revoked = await commands.answer("keys", "revoke", agent_id, key=root)
        assert (revoked["key_id"], revoked["state"]) == (agent_id, "revoked")
        await eventually(lambda: _is_refused(here.client(api_key=agent)))
        lines = (await commands.run("keys", "list", key=root)).stdout
        assert "revoked" in lines


async def _spend(client: openai.AsyncOpenAI) -> float:
    """What one call costs by the usage that its answer has; once the gateway knows the key."""

    async def answered() -> Any:
        try:
            return (await ask(client, HI)).parse()
        except openai.AuthenticationError:
            return None

    usage = (await eventually(answered)).usage
    return (usage.prompt_tokens * PRICE["prompt"] + usage.completion_tokens * PRICE["completion"]) / 1e6


async def _is_refused(client: openai.AsyncOpenAI) -> bool:
    try:
        await ask(client, HI)
    except openai.AuthenticationError:
        return True
    return False
