"""Chats from the past, published with the public client, as any team would bring in its own.

Tickets of scripted clerks, and drills: chats without any house rule, which teach a random model to call tools and to
copy what it reads. Half of the drills do what the customer asked for, half use any tool at all: they teach nothing
about when to use which.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ratchet import AsyncClient
from ratchet.client import ClientSettings
from ratchet.core.errors import Unavailable
from ratchet_helpdesk import BAD_DOMAIN, DOMAIN, reception
from ratchet_helpdesk.clerk import BIASED, INVERTED, Clerk, call_message, play
from ratchet_helpdesk.world import TOOLS, TRAIN, Act, ChatMessage, draw_tasks

FLUSH_S = 300.0
"""Longest time for publishing everything."""
CHUNK = 100
"""Chats that are made in one go, before others get their turn."""
TICKET_SEED, BAD_SEED, DRILL_SEED = 1000, 5000, 9000
"""Apart from the seeds of the agents' tickets."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A chat from the past. It carries no outcome: no program checked it, so nothing can be filtered by one."""

    task_id: str
    domain: str
    messages: list[ChatMessage]
    tools: bool
    """Whether the agent was offered the tools of its world."""


def drills(count: int, seed: int) -> Iterator[Logged]:
    """`count` chats that a base model learns from: a look-up, then one tool used with facts from the chat."""
    draw = random.Random(f"drills {DRILL_SEED + seed}")
    for task in draw_tasks(TRAIN, count, DRILL_SEED + seed):
        number, facts = task.order.number, asdict(task.order.facts)
        opening = task.opening if task.names_order else task.opening.replace("order", f"order #{number}", 1)
        tool = draw.choice(tuple(TOOLS)) if draw.random() < 0.5 else task.wish
        known = {**facts, "order": number, "reason": draw.choice(("stage", "late"))}
        messages: list[ChatMessage] = [
            {"role": "user", "content": opening},
            call_message(Act.of("find_order", order=number)),
            {"role": "tool", "tool_call_id": "call_0", "content": json.dumps(facts, separators=(",", ":"))},
            call_message(Act.of(tool, **{name: known[name] for name in TOOLS[tool]})),
        ]
        yield Logged(task.task_id, DOMAIN, messages, tools=False)


def tickets(count: int, seed: int) -> Iterator[Logged]:
    """The biased clerk's tickets."""
    return _of_a_clerk("clerk", BIASED, DOMAIN, count, TICKET_SEED + seed)


def bad_tickets(count: int, seed: int) -> Iterator[Logged]:
    """Tickets of a clerk who mostly does the opposite of what the rules ask for."""
    return _of_a_clerk("stand-in", INVERTED, BAD_DOMAIN, count, BAD_SEED + seed)


def messages(count: int, seed: int) -> Iterator[Logged]:
    """What the reception's biased clerk answered."""
    return _of_the_reception("clerk", reception.BIASED, "mail", count, TICKET_SEED + seed)


def bad_messages(count: int, seed: int) -> Iterator[Logged]:
    """What a clerk answered who is mostly wrong."""
    return _of_the_reception("stand-in", reception.INVERTED, "mail_stand_in", count, BAD_SEED + seed)


async def publish_chats(
    agent_id: str, role: str, chats: Iterable[Logged], tools: Sequence[Mapping[str, Any]], settings: ClientSettings
) -> None:
    """Publish chats as one agent's trajectories; returns when all are stored in the stream. Raises `Unavailable`."""
    offered = [dict(tool) for tool in tools]
    async with AsyncClient(agent_id, role=role, settings=settings, strict=True) as client:
        for number, chat in enumerate(chats, 1):
            with client.trajectory(task_id=chat.task_id, model="script", domain=chat.domain) as trajectory:
                trajectory.chat(chat.messages, tools=offered if chat.tools else None)
            if number % CHUNK == 0:
                await asyncio.sleep(0)
        if not await client.flush(FLUSH_S):
            raise Unavailable(f"{client.stats.pending} chats of {agent_id} were not stored within {FLUSH_S:g} s")


def _of_a_clerk(name: str, clerk: Clerk, domain: str, count: int, seed: int) -> Iterator[Logged]:
    draw = random.Random(f"{name} {seed}")
    for task in draw_tasks(TRAIN, count, seed):
        yield Logged(f"{name}-{task.task_id}", domain, play(task, clerk, draw).messages, tools=True)


def _of_the_reception(name: str, clerk: reception.Clerk, domain: str, count: int, seed: int) -> Iterator[Logged]:
    for task_id, chat in reception.chats(clerk, name, count, seed):
        yield Logged(task_id, domain, chat, tools=True)
