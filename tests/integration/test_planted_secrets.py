"""400 planted secrets, by every way in: none stands in what the parts of a stack keep afterwards."""

from __future__ import annotations

import json
import re
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import REDACTED_BY, Sealer, unseal
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.testing import eventually
from ratchet.client import AsyncClient
from ratchet.client.settings import ClientSettings
from ratchet.core.contract import PolicyClaim, Trajectory, named_id
from ratchet.core.contract.turn import EngineInfo
from ratchet.core.rules.redaction import rules_digest
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.gateway.domain.turns import TurnHeader
from ratchet.gateway.recorder_process import SOURCE, CallJob, RecordMaker
from ratchet.trajectory_collector import app as collector_app
from ratchet.trajectory_collector.settings import Settings, Tuning
from tests.support.messages import AT, trajectory
from tests.support.running import connected, prepared_warehouse, running_app
from tests.support.secret_corpus import SIZE, Plant, corpus

pytestmark = pytest.mark.slow

STREAMS = ("RL_TRAJECTORIES", "RL_TURNS", "RL_FEEDBACK", "RL_DEADLETTERS")


def text_of(plant: Plant) -> str:
    return plant.value if isinstance(plant.value, str) else json.dumps(plant.value)


async def by_the_client(settings: ClientSettings, plants: list[Plant]) -> None:
    async with AsyncClient(agent_id="a", role="support", settings=settings) as client:
        for plant in plants:
            with client.trajectory(task_id="t", labels={"planted": plant.value}) as t:
                t.turn(observation=text_of(plant), action="ok")
                t.outcome("success", verified_by="tests")
            client.feedback(t.trajectory_id, comment=text_of(plant)[:900])
            client.preference("which?", text_of(plant), "the other", confidence=1.0)
        assert await client.flush(120)
        assert client.stats.invalid == 0


async def by_the_gateway(bus: Bus, plants: list[Plant]) -> None:
    maker = RecordMaker(Sealer(load_contracts(), SOURCE, lambda: AT, rules_digest()), 1_000_000)
    for plant in plants:
        recorded = maker.record(call(plant))
        assert recorded.record is not None
        await bus.publish_record(recorded.record)


def call(plant: Plant) -> CallJob:
    """A call whose answer has token ids, with the plant in its prompt."""
    choice = {
        "message": {"role": "assistant", "content": "noted"},
        "token_ids": [4, 5],
        "logprobs": {"content": [{"logprob": -0.1}, {"logprob": -0.2}]},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    answer = {"choices": [choice], "prompt_token_ids": [1, 2, 3], "usage": usage}
    header = TurnHeader(
        turn_id=named_id("turn", plant.label),
        trajectory_id=named_id("gateway's", plant.label),
        role="support",
        at=AT,
        policy=PolicyClaim(role="support", version=1, digest="a" * 64, arm="stable", weight=0.0),
        engine=EngineInfo(name="vllm"),
        turns=0,
        session_id=None,
    )
    request = {"model": "support", "messages": [{"role": "user", "content": text_of(plant)}]}
    bodies = {"request": msgspec.json.encode(request), "answer": msgspec.json.encode(answer)}
    return CallJob(header=header, dialect="chat", latency_ms=5.0, **bodies)


async def by_another_program(bus: Bus, plants: list[Plant]) -> None:
    for plant in plants:
        await bus.publish(trajectory(f"raw {plant.label}", labels={"planted": plant.value}))
        broken = json.dumps({"trajectory_id": 7, "planted": plant.value}).encode()
        await bus.nc.jetstream().publish(Trajectory.TOPIC, broken)


async def kept_in_streams(bus: Bus) -> tuple[str, str]:
    """Bodies and headers of all messages: those that Ratchet has published, and those of another program."""
    texts: list[str] = []
    others: list[str] = []
    for stream in STREAMS:
        async with aclosing(OrderedReader(bus, stream).to_end()) as batches:
            async for batch in batches:
                for message in batch:
                    headers = dict(message.headers or {})
                    is_ours = REDACTED_BY in headers or stream == "RL_DEADLETTERS"
                    (texts if is_ours else others).extend((json.dumps(headers), unseal(headers, message.data).decode()))
    return "\n".join(texts), "\n".join(others)


async def kept_in_tables(warehouse: Warehouse) -> str:
    tables = await warehouse.rows(
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND total_rows > 0"
    )
    rows = [await warehouse.rows(f"SELECT * FROM `{table['name']}`") for table in tables]
    return json.dumps(rows, default=str, ensure_ascii=False)


def kept_in_files(directory: Path) -> str:
    """What the client's spool and the other files of the processes hold."""
    return b"\n".join(path.read_bytes() for path in directory.rglob("*") if path.is_file()).decode(errors="replace")


def turns_with_tokens(tables: str) -> list[str]:
    """Token ids of the calls that held a secret: they would decode to it."""
    return re.findall(r"prompt_token_ids[^}]{0,80}", tables)


def surviving(plants: list[Plant], dump: str) -> list[str]:
    return [plant.label for plant in plants if any(trace in dump for trace in plant.traces)]


async def test_no_planted_secret_is_kept(
    shared_settings: SharedSettings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plants = corpus()
    tuning = replace(Tuning(), audit_interval_s=0.2)
    shared = shared_settings.model_copy(update={"data_dir": tmp_path / "data"})
    async with connected(shared) as bus, prepared_warehouse(shared) as warehouse:
        async with running_app(collector_app.build(Settings(shared=shared, linger_s=0.02), tuning=tuning)):
            await by_the_client(ClientSettings(shared=shared), plants)
            await by_the_gateway(bus, plants)
            await by_another_program(bus, plants)

            async def all_settled() -> bool:
                rows: list[dict[str, Any]] = await warehouse.rows("SELECT stream, stored, dead FROM ledger_balance")
                settled = {row["stream"]: (row["stored"], row["dead"]) for row in rows}
                number = len(plants)
                return (
                    settled.get("RL_TRAJECTORIES") == (2 * number, number)
                    and settled.get("RL_TURNS", (0, 0))[0] == number
                    and settled.get("RL_FEEDBACK", (0, 0))[0] >= number
                )

            await eventually(all_settled, deadline_s=240)
        (streams, others), tables = await kept_in_streams(bus), await kept_in_tables(warehouse)
    files = kept_in_files(tmp_path)
    logs = "\n".join(capfd.readouterr())
    kept = {"streams": streams, "tables": tables, "files": files, "logs": logs}
    assert {place: surviving(plants, dump) for place, dump in kept.items()} == {place: [] for place in kept}
    assert len(surviving(plants, others)) > SIZE - 10, "what another program published stays in its stream as it was"
    assert streams.count("[REDACTED:") > len(plants)
    assert tables.count("[REDACTED:") > len(plants)
    assert turns_with_tokens(tables) == []
