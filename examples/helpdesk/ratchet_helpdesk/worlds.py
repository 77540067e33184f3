"""The two worlds that agents can meet, by name: the help desk and the reception."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet_helpdesk import BAD_DOMAIN, BASE_ROLE, DOMAIN, ROLE, logbook, reception, world
from ratchet_helpdesk.logbook import Logged


@dataclass(frozen=True, slots=True)
class World:
    """Where an agent works. `Any` stands for a world's own tasks and environments."""

    name: str
    title: str
    """What happens there, in a sentence without its stop."""
    role: str
    """The role whose policy learns."""
    base_role: str
    """The role under which a base model is made, where the world needs one."""
    domain: str
    """Task domain of trajectories,"""
    bad_domain: str
    """and of the logs that the bad policy learns from."""
    instructions: str
    tools: Sequence[Mapping[str, Any]]
    max_tokens: int
    """Longest answer."""
    misjudged: frozenset[str]
    """The kinds of tasks in which the biased clerk is wrong more often than right."""
    task: type
    draw_tasks: Callable[[str, int, int], Sequence[Any]]
    """Tasks of a split: how many, and their seed."""
    environment: Callable[[Any], Any]
    kind_of: Callable[[Any], str]
    logged: Callable[[int, int], Iterator[Logged]]
    """So many chats of the biased clerk, and their seed;"""
    bad_logged: Callable[[int, int], Iterator[Logged]]
    """the same of a clerk who mostly decides wrongly."""


HELPDESK = World(
    name="helpdesk",
    title="Agents of 0.7 million parameters answer a shop's help desk",
    role=ROLE,
    base_role=BASE_ROLE,
    domain=DOMAIN,
    bad_domain=BAD_DOMAIN,
    instructions=world.INSTRUCTIONS,
    tools=world.tool_definitions(),
    max_tokens=world.MAX_TOKENS,
    misjudged=world.MISJUDGED,
    task=world.Task,
    draw_tasks=world.draw_tasks,
    environment=world.Environment,
    kind_of=world.kind_of,
    logged=logbook.tickets,
    bad_logged=logbook.bad_tickets,
)

RECEPTION = World(
    name="reception",
    title="SmolLM2-135M-Instruct sorts a shop's mail",
    role="reception",
    base_role="reception-base",
    domain="mail",
    bad_domain="mail_stand_in",
    instructions=reception.INSTRUCTIONS,
    tools=reception.tool_definitions(),
    max_tokens=reception.MAX_TOKENS,
    misjudged=reception.MISJUDGED,
    task=reception.Task,
    draw_tasks=reception.draw_tasks,
    environment=reception.Environment,
    kind_of=reception.kind_of,
    logged=logbook.messages,
    bad_logged=logbook.bad_messages,
)

WORLDS: Mapping[str, World] = {one.name: one for one in (HELPDESK, RECEPTION)}
