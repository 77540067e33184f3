"""Agents under faults: some call through the gateway and end their trajectories, one records through the client.

How a trajectory ends is a function of its id, in one role whichever arm answered; in the other the canary always fails.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import uuid_utils

from ratchet.bus.tasks import end
from ratchet.client import AsyncClient, ClientSettings
from tests.chaos.world import BAD, ROLES, World

RECORDED = "recorded"
"""The role of the trajectories that the client records."""
AGAIN_S = 0.5
"""Pause of an agent before it tries again what was refused or got no answer."""
PATIENCE_S = 20.0
"""For one answer."""
PAUSE_S = 0.5
"""Between two trajectories of an agent."""
CALLERS = 2
"""Agents of each role that call at the same time."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A trajectory whose end the gateway has taken (202)."""

    role: str
    success: bool
    at: float
    """By the monotonic clock."""


@dataclass
class Acknowledged:
    """What agents were answered, by id; it must be stored, once."""

    ended: dict[str, Ended] = field(default_factory=dict[str, Ended])
    turns: dict[str, float] = field(default_factory=dict[str, float])
    """When the gateway answered the call."""
    recorded: dict[str, bool] = field(default_factory=dict[str, bool])
    """What the client took, and whether it was a success; it keeps what it cannot publish."""
    rated: set[str] = field(default_factory=set[str])
    """Those on which the client took feedback."""
    repeated: int = 0
    """Requests that agents had to repeat."""


def succeeds(trajectory_id: str) -> bool:
    """How a trajectory ends: one of twenty fails, for what is the same for all shows nothing."""
    return zlib.crc32(trajectory_id.encode()) % 20 > 0


@dataclass
class Traffic:
    """The agents of a world, while they work."""

    world: World
    client: AsyncClient
    http: httpx.AsyncClient
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    working: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: agents rest between two trajectories."""
    stopping: bool = False

    async def call_through_gateway(self, role: str) -> None:
        """One agent: a call, the outcome, and again."""
        while await self._goes_on():
            trajectory_id = str(uuid_utils.uuid7())
            body = {"model": role, "messages": [{"role": "user", "content": f"where is my order {trajectory_id}?"}]}
            headers = {"x-ratchet-trajectory": trajectory_id}
            answer = await self._until(200, "/v1/chat/completions", body, headers)
            if answer is None:
                return
            self.acknowledged.turns[answer.headers["x-ratchet-turn"]] = time.monotonic()
            spoiled = role == BAD and answer.headers["x-ratchet-arm"] == "canary"
            success = succeeds(trajectory_id) and not spoiled
            outcome = {"role": role, "outcome": {"status": "success" if success else "failure"}}
            if await self._until(202, f"/v1/trajectories/{trajectory_id}/end", outcome, {}) is None:
                return
            self.acknowledged.ended[trajectory_id] = Ended(role, success, time.monotonic())
            await asyncio.sleep(PAUSE_S)

    async def record(self) -> None:
        """One agent that calls elsewhere: a whole trajectory at a time, now and then with an opinion on it."""
        for number in itertools.count():
            if not await self._goes_on():
                return
            trajectory = self.client.trajectory(task_id=f"task {number}", instructions="Help.", model="m")
            success = succeeds(trajectory.trajectory_id)
            with trajectory:
                trajectory.turn(observation=f"question {number}", action=f"answer {number}")
                trajectory.outcome("success" if success else "failure")
            self.acknowledged.recorded[trajectory.trajectory_id] = success
            if number % 5 == 0:
                self.client.feedback(trajectory.trajectory_id, thumbs=success)
                self.acknowledged.rated.add(trajectory.trajectory_id)
            await asyncio.sleep(PAUSE_S / 2)

    async def _goes_on(self) -> bool:
        """Whether there is a next trajectory, once agents do not rest."""
        await self.working.wait()
        return not self.stopping

    async def _until(
        self, status: int, path: str, body: dict[str, object], headers: dict[str, str]
    ) -> httpx.Response | None:
        """Ask until it is answered with `status`; None where the agents stop first."""
        while not self.stopping:
            try:
                answer = await self.http.post(path, json=body, headers=headers)
            except httpx.HTTPError:
                pass
            else:
                if answer.status_code == status:
                    return answer
                if answer.status_code < 500 and answer.status_code != 429:
                    raise AssertionError(f"{path}: {answer.status_code} {answer.text}")
            self.acknowledged.repeated += 1
            await asyncio.sleep(AGAIN_S)
        return None


@asynccontextmanager
async def agents(
    world: World, roles: Sequence[str] = ROLES, recorded: str = RECORDED, key: str = ""
) -> AsyncIterator[Traffic]:
    """Agents at work; at the end of the block they have stopped, and the client has published what it holds.

    `roles` are those of the agents that call, `recorded` is the one of the agent that records; `key` is the gateway's.
    """
    settings = ClientSettings(shared=world.shared, gateway_url=world.stack.url("gateway"))
    limits, headers = httpx.Timeout(PATIENCE_S), {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        AsyncClient("chaos", role=recorded, settings=settings) as client,
        httpx.AsyncClient(base_url=world.stack.url("gateway"), timeout=limits, headers=headers) as http,
    ):
        traffic = Traffic(world, client, http)
        traffic.working.set()
        works = [traffic.record(), *(traffic.call_through_gateway(role) for role in roles for _ in range(CALLERS))]
        at_work = [asyncio.create_task(work) for work in works]
        try:
            yield traffic
        finally:
            traffic.stopping = True
            traffic.working.set()
            await asyncio.wait(at_work, timeout=PATIENCE_S + 1)
            await end(*at_work)
        for work in at_work:
            if not work.cancelled():  # a call that waited on, of which nothing was acknowledged
                work.result()
