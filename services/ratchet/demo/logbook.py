"""Publishes logged chats (drills, tickets of clerks) with the public client, as any team would bring in its past."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass

from ratchet import AsyncClient
from ratchet.client import ClientSettings
from ratchet.demo.clerk import BIASED, INVERTED, Clerk, play
from ratchet.demo.drills import draw_drills
from ratchet.demo.plan import BAD_DOMAIN, BASE_ROLE, DOMAIN, ROLE, Plan
from ratchet.demo.world import TRAIN, ChatMessage, draw_tasks, tool_definitions
from ratchet.errors import RatchetError
from ratchet.service.settings import SharedSettings

FLUSH_S = 300.0
"""Longest time for publishing everything."""
CHUNK = 100
"""Chats that are made in one go, before others get their turn."""
TICKET_SEED, BAD_SEED, DRILL_SEED = 1000, 5000, 9000
"""Apart from the seeds of the agents' tickets."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A chat from the past. It carries no outcome: nobody checked it, so nothing can be filtered by one."""

    task_id: str
    domain: str
    messages: list[ChatMessage]
    tools: bool
    """Whether the agent was offered the help desk's tools."""


def drills(plan: Plan) -> Iterator[Logged]:
    """Chats that a base model learns from."""
    for task, messages in draw_drills(plan.drills.examples, DRILL_SEED + plan.seed):
        yield Logged(task.task_id, DOMAIN, messages, tools=False)


def tickets(plan: Plan) -> Iterator[Logged]:
    """The biased clerk's tickets."""
    return _of_a_clerk("clerk", BIASED, DOMAIN, plan.tickets.examples, TICKET_SEED + plan.seed)


def bad_tickets(plan: Plan) -> Iterator[Logged]:
    """Tickets of a clerk who mostly does the opposite of what the rules ask for."""
    return _of_a_clerk("stand-in", INVERTED, BAD_DOMAIN, plan.bad.examples, BAD_SEED + plan.seed)


async def publish_drills(plan: Plan, shared: SharedSettings) -> None:
    """Publish the drills; returns when all are stored in the stream."""
    await _publish("drill-book", BASE_ROLE, drills(plan), shared)


async def publish_tickets(plan: Plan, shared: SharedSettings) -> None:
    """Publish what both clerks logged; returns when all is stored in the stream."""
    await _publish("clerk", ROLE, tickets(plan), shared)
    await _publish("stand-in", ROLE, bad_tickets(plan), shared)


def _of_a_clerk(name: str, clerk: Clerk, domain: str, count: int, seed: int) -> Iterator[Logged]:
    draw = random.Random(f"{name} {seed}")
    for task in draw_tasks(TRAIN, count, seed):
        yield Logged(f"{name}-{task.task_id}", domain, play(task, clerk, draw).messages, tools=True)


async def _publish(agent_id: str, role: str, logged: Iterator[Logged], shared: SharedSettings) -> None:
    async with AsyncClient(agent_id, role=role, settings=ClientSettings(shared=shared), strict=True) as client:
        for number, chat in enumerate(logged, 1):
            with client.trajectory(task_id=chat.task_id, model="script", domain=chat.domain) as trajectory:
                trajectory.chat(chat.messages, tools=tool_definitions() if chat.tools else None)
            if number % CHUNK == 0:
                await asyncio.sleep(0)
        if not await client.flush(FLUSH_S):
            raise RatchetError(f"{client.stats.pending} chats of {agent_id} were not stored within {FLUSH_S:g} s")
