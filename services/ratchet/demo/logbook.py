"""Publishes logged chats (drills, the clerk's tickets) with the public client, as any team would bring in its past."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass

from ratchet import AsyncClient
from ratchet.client import ClientSettings
from ratchet.demo.agents import DOMAIN
from ratchet.demo.clerk import CARELESS, play
from ratchet.demo.drills import draw_drills
from ratchet.demo.plan import BASE_ROLE, ROLE, Plan
from ratchet.demo.world import TRAIN, ChatMessage, draw_tasks, tool_definitions
from ratchet.kernel.errors import RatchetError
from ratchet.kernel.settings import KernelSettings

FLUSH_S = 60.0
"""Longest time for publishing everything."""
CHUNK = 100
"""Chats that are made in one go, before others get their turn."""
TICKET_SEED, DRILL_SEED = 1000, 9000
"""Apart from the seeds of the agents' tickets."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A chat from the past."""

    task_id: str
    messages: list[ChatMessage]
    success: bool | None
    """None when nobody checked."""


def drills(plan: Plan) -> Iterator[Logged]:
    """Chats that a base model learns from."""
    for task, messages in draw_drills(plan.drills.examples, DRILL_SEED + plan.seed):
        yield Logged(task.task_id, messages, None)


def tickets(plan: Plan) -> Iterator[Logged]:
    """The careless clerk's tickets."""
    draw = random.Random(f"clerk {plan.seed}")
    for task in draw_tasks(TRAIN, plan.tickets.examples, TICKET_SEED + plan.seed):
        played = play(task, CARELESS, draw)
        yield Logged(f"clerk-{task.task_id}", played.messages, played.verdict.success)


async def publish_drills(plan: Plan, kernel: KernelSettings) -> None:
    """Publish the drills; returns when all are stored in the stream."""
    await _publish("drill-book", BASE_ROLE, drills(plan), kernel)


async def publish_tickets(plan: Plan, kernel: KernelSettings) -> None:
    """Publish the clerk's tickets; returns when all are stored in the stream."""
    await _publish("clerk", ROLE, tickets(plan), kernel)


async def _publish(agent_id: str, role: str, logged: Iterator[Logged], kernel: KernelSettings) -> None:
    async with AsyncClient(agent_id, role=role, settings=ClientSettings(kernel=kernel), strict=True) as client:
        for number, chat in enumerate(logged, 1):
            _record(client, chat)
            if number % CHUNK == 0:
                await asyncio.sleep(0)
        if not await client.flush(FLUSH_S):
            raise RatchetError(f"{client.stats.pending} chats of {agent_id} were not stored within {FLUSH_S:g} s")


def _record(client: AsyncClient, chat: Logged) -> None:
    with client.trajectory(task_id=chat.task_id, model="script", domain=DOMAIN) as trajectory:
        trajectory.chat(chat.messages, tools=tool_definitions() if chat.success is not None else None)
        if chat.success is not None:
            status = "success" if chat.success else "failure"
            trajectory.outcome(status, score=float(chat.success), verified_by="environment")
