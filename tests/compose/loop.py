"""One loop through the containers, from this machine: an agent's trajectories, a training, the policy's answer."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ratchet.bus.connection import Bus, Patience
from ratchet.bus.testing import eventually
from ratchet.core.errors import BusUnavailable
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.settings import SharedSettings
from ratchet.local.local_stack.ports import LOOPBACK
from tests.chaos.traffic import Traffic, agents
from tests.chaos.world import world_before
from tests.compose.engine import PATIENCE_S, Engine
from tests.support.compose import REPOSITORY

ROLE, AGENT = "support", "support-bot"
TRAJECTORIES = 120
"""Of `tickets.py`: 30 tasks, each four times."""
LESSONS = ("--set", "full_finetune=true", "--set", "learning_rate=2e-3", "--min-reward", "0.5")
ANSWER_S = 10.0
"""A broker that has not answered a user by then does not know it yet."""
USERS = ("run", "--rm", "--no-deps", "-T", "broker_users")


@dataclass(frozen=True)
class Agent:
    """An agent on this machine, with a user of its own on the broker."""

    shared: SharedSettings
    admin: Path
    """The seed file of the broker's administrator, for what the agent may not see."""

    @property
    def environment(self) -> dict[str, str]:
        """What `ratchet.Client` reads."""
        return os.environ | {
            "RATCHET_NATS_URL": self.shared.nats_url,
            "RATCHET_NATS_SEED_FILE": str(self.shared.nats_seed_file),
            "RATCHET_DATA_DIR": str(self.shared.data_dir),
        }


def operator(engine: Engine, *words: str) -> str:
    """`docker compose run --rm operator ...`."""
    return engine.compose("--profile=tools", "run", "--rm", "--no-deps", "-T", "operator", *words)


async def status(engine: Engine, rows: Mapping[str, int] = {}) -> dict[str, Any]:
    """What `ratchet status --json` shows, as soon as no part of it is missing and it has so many rows of each table."""

    async def whole() -> dict[str, Any] | None:
        try:
            report = json.loads(operator(engine, "status", "--json"))
        except RuntimeError as error:  # on a busy machine a part may answer too late for one report
            sys.stdout.write(f"{error}\n")
            return None
        return report if all(report["rows"][table] >= count for table, count in rows.items()) else None

    return await eventually(whole, PATIENCE_S)


def gateway(engine: Engine) -> str:
    """Its address on this machine."""
    return f"http://{LOOPBACK}:{engine.ports['gateway']}"


def chat(engine: Engine) -> dict[str, Any]:
    """An answer of the gateway at its port on this machine, or its refusal."""
    asked = Request(
        f"{gateway(engine)}/v1/chat/completions",
        data=json.dumps({"model": ROLE, "messages": [{"role": "user", "content": "hello"}]}).encode(),
        headers={"Authorization": f"Bearer {engine.secret('GATEWAY_API_KEY')}", "Content-Type": "application/json"},
    )
    try:
        with urlopen(asked, timeout=PATIENCE_S) as answer:
            return json.load(answer)
    except HTTPError as refused:
        return json.load(refused)


async def policy_answers(engine: Engine) -> None:
    """Return once the gateway answers with the policy that was trained first."""

    async def answers() -> bool:
        return chat(engine).get("model", "").startswith(f"{ROLE}@1-")

    await eventually(answers, PATIENCE_S)


def add_agent(engine: Engine) -> Agent:
    """Make the broker's user as the guide has it, and return once the broker answers it."""
    engine.compose(*USERS, "ratchet", "broker", "add", AGENT, "--role", ROLE, "--users", "/users")
    seeds: dict[str, Path] = {}
    for name in (AGENT, "admin"):
        seeds[name] = engine.folder / f"{name}.seed"
        seeds[name].write_text(engine.compose(*USERS, "cat", f"/users/seeds/{name}.seed"))
        seeds[name].chmod(0o600)
    password = engine.secret("CLICKHOUSE_PASSWORD")
    shared = SharedSettings(
        nats_url=f"nats://{LOOPBACK}:{engine.ports['nats']}",
        nats_seed_file=seeds[AGENT],
        clickhouse_url=f"http://ratchet:{password}@{LOOPBACK}:{engine.ports['clickhouse']}",
        data_dir=engine.folder / "agent",
    )

    async def answered() -> bool:
        """The broker knows a new user at the first reading, and answers it from the second one on."""
        engine.compose("kill", "-s", "HUP", "nats")
        try:
            bus = await Bus.connect(
                shared.bus, name=AGENT, contracts=load_contracts(), patience=Patience(deadline_s=ANSWER_S, quiet=True)
            )
        except BusUnavailable:
            return False
        try:
            async with asyncio.timeout(ANSWER_S):
                await bus.extent("RL_TRAJECTORIES")
        except (BusUnavailable, TimeoutError):
            return False
        else:
            return True
        finally:
            await bus.close()

    asyncio.run(eventually(answered, PATIENCE_S))
    return Agent(shared, seeds["admin"])


async def record_tickets(engine: Engine, agent: Agent) -> None:
    """Send trajectories as an agent that calls elsewhere, and return once they are stored and rewarded."""
    rows = (await status(engine))["rows"]
    command = [sys.executable, "examples/python/tickets.py"]
    environment = agent.environment | {"RATCHET_DIR": str(engine.folder)}
    await asyncio.to_thread(subprocess.run, command, cwd=REPOSITORY, env=environment, check=True, timeout=PATIENCE_S)
    await status(engine, {table: rows[table] + TRAJECTORIES for table in ("trajectories", "rewards")})


def train(engine: Engine) -> None:
    """Train on what is there, and return once the job has ended well."""
    base = ("--base-model", "/models/base", "--set", "max_steps=20")
    operator(engine, "train", ROLE, "--algorithm", "sft", *LESSONS, *base, "--wait")


@asynccontextmanager
async def agents_at_work(engine: Engine, agent: Agent) -> AsyncIterator[Traffic]:
    """Agents that call the gateway and one that records, again and again; they try again what is not answered."""
    brokers, key = [agent.shared.nats_url], engine.secret("GATEWAY_API_KEY")
    async with (
        world_before(gateway(engine), brokers, agent.admin, agent.shared, engine.folder) as world,
        agents(world, [ROLE], ROLE, key) as traffic,
    ):
        await acknowledged_more(traffic)
        yield traffic


async def acknowledged_more(traffic: Traffic) -> None:
    """Return once some more of both kinds were acknowledged."""
    known = traffic.acknowledged
    kinds: list[Callable[[], int]] = [lambda: len(known.ended), lambda: len(known.recorded)]
    goals = [count() + 10 for count in kinds]

    async def reached() -> bool:
        return all(count() >= goal for count, goal in zip(kinds, goals, strict=True))

    await eventually(reached, PATIENCE_S)
