"""A secret is planted in every kind of request, answer and event of a whole stack: no log line may hold it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.cli.interfaces import Interface
from ratchet.core.contract import DeadLetter
from ratchet.core.rules.arms import policy_name
from ratchet.core.service.settings import SharedSettings
from ratchet.local.local_stack.plan import shared_of
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from tests.integration.test_hostile_messages import letters
from tests.support.broker_with_users import admin_seed
from tests.support.canary_traffic import finished_job
from tests.support.contract_files import CONTRACTS, example
from tests.support.engine_process import publish
from tests.support.gateway_scene import put_routes
from tests.support.planted import ID, SECRET, Asked, Echo, events, operations, requests, send, too_big
from tests.support.running import connected, http_client, prepared_objects

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SERVICES = (
    *("trajectory_collector", "reward_computer", "rl_coordinator", "engine_local", "gateway", "canary_deployer"),
    "console",
)
ENDLESS = "/v1/events"
"""The console's stream goes on for as long as its listener."""
AT_ONCE = 8
"""Connections at a time."""
TOOL = {"type": "function", "function": {"name": "look_up", "description": "looks it up", "parameters": {}}}
CHAT: dict[str, Any] = {
    "model": "support",
    "messages": [{"role": "user", "content": "where is my order"}],
    "tools": [TOOL],
    "temperature": 0.5,
    "max_tokens": 2,
    "stop": ["."],
    "user": "mia",
    "stream": False,
}
TEXT: dict[str, Any] = {"model": "support", "prompt": "where is my order", "max_tokens": 2, "temperature": 0.5}
BODIES: dict[str, list[Any]] = {
    "chat/completions": [CHAT, {**CHAT, "stream": True}, {**CHAT, "model": "other"}],
    "completions": [TEXT, {**TEXT, "model": "other", "stream": True}],
    "end": [
        {
            "role": "support",
            "outcome": {"status": "success", "verified_by": "the environment"},
            "task": {"task_id": "t", "instructions": "find my order"},
        }
    ],
    "feedback": [{"trajectory_id": ID, "role": "support", "kind": "comment", "value": "it was fine", "rater": "mia"}],
    "jobs": [{"role": "support", "algorithm": "grpo", "reason": "it is time", "hyperparameters": {"steps": 2}}],
    "unload_lora_adapter": [{"lora_name": "support@1-11111111"}],
    "judgements": [{"pair_id": "a pair", "choice": "left", "confidence": 1.0, "comment": "it was fine"}],
    "start": [{"version": 2, "actor": "an operator", "reason": "it is time", "override": True, "strategy": "auto"}],
    "promote": [{"actor": "an operator", "reason": "it is time", "override": True}],
    "{act}": [{"actor": "an operator", "reason": "it is time"}],
}
"""Bodies that routes take, by the last part of their path."""


async def test_no_log_line_holds_a_planted_secret(tmp_path: Path) -> None:
    async with Echo().running() as echo:
        settings = StackSettings(directory=tmp_path, free_ports=True, only=SERVICES, env=_environment(echo))
        async with Stack(settings) as stack:
            shared = shared_of(stack.env).model_copy(update={"nats_seed_file": admin_seed(tmp_path)})
            prepared_objects(shared)
            resident = await asyncio.to_thread(_publish, shared, tmp_path)
            async with connected(shared) as bus:
                await _plant(stack, bus, shared, resident)
                dead = await eventually(lambda: _dead(bus), 300)
    lines = logged_lines(tmp_path)
    assert {file.stem for file, _ in lines} >= {*SERVICES, "nats", "clickhouse", "s3"}
    assert len(lines) > 100
    assert [(file.name, line[:2000]) for file, line in lines if SECRET in line.lower()][:20] == []
    assert [letter.detail for letter in dead if SECRET in letter.detail.lower()][:20] == []


def logged_lines(folder: Path) -> list[tuple[Path, str]]:
    """Every line of every log, with its file."""
    files = [*(folder / "logs").iterdir(), *folder.rglob("*.log")]
    return [(file, line) for file in files for line in file.read_text(errors="replace").splitlines() or [""]]


def _environment(echo: str) -> dict[str, str]:
    upstream = {"name": "provider", "base_url": f"{echo}/v1", "models": {"*": "big"}, "timeout_s": 5}
    return {
        "RATCHET_LOG_LEVEL": "debug",
        "RATCHET_ENGINE_URL": echo,
        "RATCHET_GATEWAY_UPSTREAMS": json.dumps([upstream]),
    }


def _publish(shared: SharedSettings, folder: Path) -> str:
    """Make a policy that the engine can serve; its name."""
    return policy_name("support", 1, publish(shared, folder, "support").adapter.digest)


async def _plant(stack: Stack, bus: Bus, shared: SharedSettings, resident: str) -> None:
    await put_routes(bus, support=1)
    engine, coordinator = stack.url("engine"), stack.url("coordinator")
    async with http_client() as http:
        document = (await http.get(f"{coordinator}/openapi.json")).json()
        await eventually(lambda: _serves(http, stack.url("gateway")))
    chat = {"chat/completions": [{**CHAT, "model": resident}]}
    here = [
        (stack.url("gateway"), Interface.GATEWAY, {}),
        (engine, Interface.ENGINE, chat),
        (coordinator, document, {}),
        (stack.url("deployer"), Interface.DEPLOYER, {}),
        (stack.url("console"), Interface.CONSOLE, {}),
    ]
    for url, document, bodies in here:
        asked = _asked(operations(document), {**BODIES, **bodies})
        if url == engine:
            key = {"authorization": f"Bearer {stack.env['RATCHET_ENGINE_API_KEY']}"}
            asked = [replace(request, headers={**key, **request.headers}) for request in asked]
        await _send_all(url, asked)
    await _publish_events(bus)
    for number in (2, 3):
        await bus.publish(await asyncio.to_thread(finished_job, prepared_objects(shared), number))
    await eventually(lambda: _all_read(bus), 120)


def _asked(listed: Sequence[tuple[str, str]], bodies: dict[str, list[Any]]) -> list[Asked]:
    asked: list[Asked] = []
    listed = [(method, path) for method, path in listed if path != ENDLESS]
    for method, path in listed:
        known = next((bodies[end] for end in sorted(bodies, key=len, reverse=True) if path.endswith(end)), [])
        asked += requests(method, path, known if method == "POST" else [])
    method, path = next((method, path) for method, path in listed if method == "POST")
    return [*asked, too_big(method, path)]


async def _send_all(url: str, asked: Sequence[Asked]) -> None:
    """Every request is answered, or its connection closed: the service still answers the last one."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(request: Asked) -> bytes:
        async with room:
            return await send(url, request)

    answers = await asyncio.gather(*(one(request) for request in asked))
    statuses = {answer.split(b" ", 2)[1] for answer in answers if answer.startswith(b"HTTP/")}
    assert statuses >= {b"200", b"400", b"404", b"415"}, f"{url} answered {sorted(statuses)}"


async def _publish_events(bus: Bus) -> None:
    for topic in CONTRACTS.topics.values():
        subject = CONTRACTS.subjects(topic.name)[0].replace("*", "support")
        for body in events(example(topic.schema)) if topic.schema else ():
            headers = {"ce-id": str(uuid4()), "traceparent": SECRET, "ce-time": SECRET, "x-said": SECRET}
            await bus.nc.publish(subject, body, headers=headers)
        await bus.nc.publish(subject, SECRET.encode(), headers={"ce-id": SECRET, "content-encoding": SECRET})
        await bus.nc.flush()


async def _serves(http: httpx.AsyncClient, url: str) -> bool:
    return any(model["id"] == "support" for model in (await http.get(f"{url}/v1/models")).json()["data"])


async def _all_read(bus: Bus) -> bool:
    """Whether every consumer of the broker was sent all that is stored for it."""
    jetstream = bus.nc.jetstream()
    readers = [reader for name in CONTRACTS.streams for reader in await jetstream.consumers_info(name)]
    return bool(readers) and not any(reader.num_pending for reader in readers)


async def _dead(bus: Bus) -> list[DeadLetter] | None:
    """The dead letters, once there are many: consumers were sent all events, and may be at work on them."""
    dead = [letter for name in CONTRACTS.streams for letter in await letters(bus, name)]
    return dead if len(dead) > 100 else None
