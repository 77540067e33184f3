"""A person's text goes through every way in of a real stack, is erased, and is in no file of its state afterwards."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from pydantic import SecretStr

from ratchet import AsyncClient
from ratchet.bus.testing import eventually
from ratchet.client import ClientSettings
from ratchet.core.contract import Preference, Trajectory, named_id
from ratchet.core.rules.texts import user_ref
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.erased import KEYS
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from tests.support.bodies import text_of
from tests.support.broker_with_users import admin_seed
from tests.support.command_lines import ratchet
from tests.support.fake_engine import FakeProvider, providing
from tests.support.running import connected

pytestmark = pytest.mark.slow

ONLY = ("trajectory_collector", "reward_computer", "rl_coordinator", "gateway")
KEY, USER_KEY = "provider-key", "a-key-of-the-installation"
PROBE, OTHER = "zwetschgenknoedel", "apfelstrudel"
PERSON, ANOTHER = "mia", "mia-2"


def files_with(directory: Path, text: str) -> list[str]:
    """Every file of a state that has a text in it, as it is, as base64 or packed."""
    inner = [base64.b64encode(bytes(shift) + text.encode())[4:-4] for shift in range(3)]
    needles = [text.encode(), *inner]
    return [
        str(path.relative_to(directory))
        for path in sorted(directory.rglob("*"))
        if path.is_file() and any(needle in content for content in unpacked(path) for needle in needles)
    ]


def unpacked(path: Path) -> Iterator[bytes]:
    """A file's bytes, and those of every frame of zstd in them."""
    try:
        content = path.read_bytes()
    except OSError:  # gone meanwhile
        return
    yield content
    place = content.find(b"\x28\xb5\x2f\xfd")
    while place >= 0:
        with suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(content[place:])
        place = content.find(b"\x28\xb5\x2f\xfd", place + 1)


async def rows_with(warehouse: Warehouse, text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for table in KEYS:
        rows = await warehouse.rows(
            f"SELECT count() AS n FROM {table} WHERE position(body, {{text:String}}) > 0", {"text": text}
        )
        counts[table] = int(rows[0]["n"])
    return {table: number for table, number in counts.items() if number}


def shared_of(stack: Stack, directory: Path) -> SharedSettings:
    env = stack.env
    return SharedSettings(
        nats_url=env["RATCHET_NATS_URL"],
        nats_seed_file=admin_seed(directory),
        clickhouse_url=env["RATCHET_CLICKHOUSE_URL"],
        clickhouse_database=env["RATCHET_CLICKHOUSE_DATABASE"],
        s3_endpoint=env["RATCHET_S3_ENDPOINT"],
        s3_secret_key=env["RATCHET_S3_SECRET_KEY"],
        data_dir=directory.parent / "agent",
    )


async def plant(stack: Stack, shared: SharedSettings, person: str, text: str) -> None:
    """All ways in: the gateway, a client, opinions, a pair, a large body, and a message that nothing can read."""
    question = {"model": "helper", "user": person, "messages": [{"role": "user", "content": f"{text} {person}"}]}
    run = named_id("run", person)
    async with httpx.AsyncClient(base_url=stack.url("gateway"), timeout=30) as http:
        answer = await http.post("/v1/chat/completions", json=question, headers={"x-ratchet-trajectory": run})
        assert answer.status_code == 200, answer.text
        ended = await http.post(
            f"/v1/trajectories/{run}/end", json={"role": "helper", "outcome": {"status": "success"}}
        )
        assert ended.status_code == 202, ended.text
    settings = ClientSettings(shared=shared, gateway_url=stack.url("gateway"), user_key=SecretStr(USER_KEY))
    async with AsyncClient(agent_id="agent", role="helper", settings=settings) as client:
        ids: list[str] = []
        for size in (10, 1_500_000):
            with client.trajectory(task_id="t", instructions=text, model="m", user_id=person) as recorded:
                recorded.turn(observation=f"{text} {text_of(size, len(person))}", action=f"{text}!")
                recorded.outcome("success", verified_by="tests")
                ids.append(recorded.trajectory_id)
        assert await client.flush(30)
    async with connected(shared) as bus:
        await bus.publish(
            Preference(
                preference_id=named_id("pair", person),
                prompt=text,
                chosen="yes",
                rejected=text,
                source="human",
                role="helper",
                chosen_trajectory_id=ids[0],
            )
        )
        broken = {"trajectory_id": ids[0], "role": "helper", "turns": text}
        await bus.nc.jetstream().publish(f"{Trajectory.TOPIC}.helper", json.dumps(broken).encode())


async def shown(*words: str, directory: Path) -> Any:
    """The answer of a command, once what it asks is there again."""

    async def answered() -> str | None:
        done = await asyncio.to_thread(ratchet, *words, "--json", "--dir", str(directory))
        return done.stdout if done.returncode == 0 else None

    return json.loads(await eventually(answered, 600))


@pytest.mark.timeout(1500)
async def test_erased_text_is_in_no_file_of_the_state(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    async with providing(FakeProvider(key=KEY)) as url:
        upstream = {"name": "p", "base_url": url, "api_key_env": "PROVIDER_KEY", "models": {"*": "big-model"}}
        env = {
            "PROVIDER_KEY": KEY,
            "RATCHET_GATEWAY_UPSTREAMS": json.dumps([upstream]),
            "RATCHET_GATEWAY_ROLES": json.dumps(["helper"]),
            "RATCHET_GATEWAY_USER_KEY": USER_KEY,
        }
        async with Stack(StackSettings(directory=directory, free_ports=True, only=ONLY, env=env)) as stack:
            shared = shared_of(stack, directory)
            warehouse, objects = await Warehouse.connect(shared), Objects(shared)
            await plant(stack, shared, PERSON, PROBE)
            await plant(stack, shared, ANOTHER, OTHER)

            async def stored() -> bool:
                rows = [await rows_with(warehouse, text) for text in (PROBE, OTHER)]
                return all((row.get("trajectories"), row.get("preferences")) == (3, 1) for row in rows)

            await eventually(stored, 120)
            kept = await rows_with(warehouse, OTHER)
            before = files_with(directory, PROBE)
            assert any("RL_TURNS" in name for name in before)
            assert any("RL_DEADLETTERS" in name for name in before)
            assert any("clickhouse" in name for name in before)
            assert len(await asyncio.to_thread(objects.list, "bodies/")) == 2
            for table in KEYS:  # the engine keeps what it has replaced for eight minutes
                await warehouse.command(f"ALTER TABLE {table} MODIFY SETTING old_parts_lifetime = 1")

            ref = user_ref(USER_KEY, PERSON)
            assert ref is not None
            planned = await shown("erase", "--user", ref, "--dry-run", directory=directory)
            assert planned["ids"] >= 3
            asked = await shown("erase", "--user", ref, directory=directory)
            for name in ("trajectory_collector", "nats", "trajectory_collector", "clickhouse"):  # in the middle
                await asyncio.sleep(1.5)
                await stack.kill(name)
            waiting = ("erase", "--receipt", str(tmp_path / "receipt.json"), "--wait", "--timeout", "30")
            (tmp_path / "receipt.json").write_text(json.dumps(asked["receipt"]))
            done = await shown(*waiting, directory=directory)
            assert done["erasure"]["erasure_id"] == asked["erasure"]["erasure_id"]
            assert await rows_with(warehouse, PROBE) == {}
            assert await rows_with(warehouse, OTHER) == kept
            assert len(await asyncio.to_thread(objects.list, "bodies/")) == 1

            async def nowhere() -> bool:
                return not await asyncio.to_thread(files_with, directory, PROBE)

            await eventually(nowhere, 400)
            assert files_with(directory, OTHER)
            await plant(stack, shared, ANOTHER, OTHER)

            async def whole() -> bool:
                status = await asyncio.to_thread(ratchet, "status", "--json", "--dir", str(directory))
                ledger = json.loads(status.stdout)["ledger"] if status.returncode == 0 else []
                return bool(ledger) and all(row["missing"] == row["lost"] == 0 for row in ledger)

            await eventually(whole, 120)
            await warehouse.close()
        assert files_with(directory, PROBE) == []
