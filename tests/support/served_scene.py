"""A gateway in this process, in front of an engine that serves stored policies, for tests that learn from its turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Turn
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.state import PolicyStage, PolicyVersion, Route, ServedPolicy
from ratchet.core.datasets.domain.rows import Scored, SnapshotRow, row_of
from ratchet.core.rules.arms import policy_name
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.policies import Policy
from ratchet.gateway.app import build
from ratchet.gateway.settings import Settings
from tests.support.consuming import messages_of
from tests.support.gateway_alone import InThisProcess
from tests.support.messages import AT
from tests.support.running import connected, running_app
from tests.support.servers import Broker
from tests.support.training import trajectory


@dataclass
class ServedScene:
    """The gateway's client, and the bus that it publishes on."""

    role: str
    bus: Bus
    client: openai.AsyncOpenAI

    async def serve(self, number: int, policy: Policy) -> str:
        """Register a policy as stable; returns its name once the gateway knows it."""
        name = policy_name(self.role, number, policy.digest)
        entry = PolicyVersion(
            role=self.role,
            version=number,
            name=name,
            digest=policy.digest,
            uri=policy.uri,
            kind=policy.manifest.kind,
            base_model=policy.manifest.base_model,
            created_at=AT,
            stage=PolicyStage.STABLE,
        )
        await Bucket(self.bus, "policies", PolicyVersion).put(f"{self.role}.{number}", entry)
        stable = ServedPolicy(version=number, name=name, digest=policy.digest)
        route = Route(role=self.role, stable=stable, next_version=number + 1)
        await Bucket(self.bus, "policies", Route).put(self.role, route)

        async def known() -> bool:
            return f"{self.role}@{number}" in [model.id async for model in self.client.models.list()]

        await eventually(known)
        return name

    async def ask(self, trajectory_id: str, messages: Sequence[Any], **options: Any) -> Any:
        """The answer to one call of a trajectory."""
        return await self.client.chat.completions.create(
            model=self.role,
            messages=list(messages),
            extra_headers={"x-ratchet-trajectory": trajectory_id},
            **options,
        )

    async def turns(self, number: int) -> dict[str, list[Turn]]:
        """The turns of each trajectory, once there are `number` of them in all."""

        async def probe() -> list[Turn]:
            stored = await messages_of(self.bus, Turn)
            return stored if len(stored) >= number else []

        played: dict[str, list[Turn]] = {}
        for turn in await eventually(probe):
            played.setdefault(turn.trajectory_id, []).append(turn)
        return played


@asynccontextmanager
async def served_scene(nats: Broker, folder: Path, engine_url: str, **options: Any) -> AsyncIterator[ServedScene]:
    """No policy is served yet. `options`: of the gateway's settings, and `role`."""
    role = options.pop("role", "support")
    shared = SharedSettings(nats_url=nats.url, data_dir=folder)
    settings = Settings(shared=shared, port=0, **{"engine_url": engine_url, "grace_s": 0.0, **options})
    async with connected(shared) as bus, running_app(build(settings, recorders=InThisProcess())) as app:
        port: int = app.components[-1].port  # type: ignore[attr-defined]
        address = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=120) as client:
            yield ServedScene(role, bus, client)


def learning_row(turns: Sequence[Turn], task: str, reward: float) -> TrajectoryRow:
    """The row of a snapshot for an algorithm that learns from tokens."""
    known = trajectory(turns[0].trajectory_id, turns=turns, success=reward > 0)
    made = row_of(known, turns, Scored(task, reward, reward, None), needs_calls=True)
    assert isinstance(made, SnapshotRow), made
    assert isinstance(made.row, TrajectoryRow)
    return made.row
