"""The help desk's agents, a process of their own: `python -m ratchet_helpdesk.agents --gateway URL`.

They play training tickets through the gateway and end each trajectory with the outcome that the world verified. With
`--tasks N` they stop after N tickets times `--tries`; without it they work until SIGTERM (with `--leashed`: until
their standard input closes), then finish the tickets they have open. The last line they print is a JSON summary.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

import openai
import uuid_utils

from ratchet_helpdesk.agent import Agent, in_parallel, open_client
from ratchet_helpdesk.world import TRAIN, Verdict
from ratchet_helpdesk.worlds import HELPDESK, WORLDS, World

AGENT_ID = "helpdesk-agent"
UNANSWERED = Verdict(success=False, fault="unanswered", model_calls=0, tool_calls=0, valid_tool_calls=0)
PATIENCE_S = 300.0
"""The agents give up after so long without an answered ticket: an engine may share its processors with a training."""


@dataclass(slots=True)
class Tally:
    """What happened so far."""

    trajectories: int = 0
    """Tickets played to their end,"""
    successes: int = 0
    """solved,"""
    errors: int = 0
    """and given up because the gateway did not answer."""


class Pile:
    """The tickets to come, each as often as it is tried, until it is used up or closed."""

    def __init__(self, seed: int, tasks: int | None, tries: int, block: int = 40, world: World = HELPDESK) -> None:
        """`Any` stands for the tasks of a world."""
        self._tickets = self._draw(seed, tasks, tries, block, world)
        self._closed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        return next(self._tickets)

    def close(self) -> None:
        """Nothing more is taken from it."""
        self._closed = True

    @staticmethod
    def _draw(seed: int, tasks: int | None, tries: int, block: int, world: World) -> Iterator[Any]:
        """Tries of one task are spread over a block of tasks, so that they do not all meet at the engine."""
        if tasks is not None:
            yield from [*world.draw_tasks(TRAIN, tasks, seed)] * tries
            return
        for part in count():
            yield from [*world.draw_tasks(TRAIN, block, seed * 10_000 + part)] * tries


@dataclass(slots=True)
class Worker:
    """Plays one ticket after the other and reports each one's end."""

    agent: Agent
    tally: Tally
    now: Callable[[], float] = time.monotonic
    """In seconds."""
    _answered_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._answered_at = self.now()

    async def work(self, task: Any) -> None:
        """One ticket from opening to end; a gateway that does not answer costs the ticket, not the agent."""
        trajectory_id = str(uuid_utils.uuid7())
        try:
            verdict = await self.agent.play(task, trajectory_id)
            await self._end(task, trajectory_id, verdict)
        except openai.APIError as error:
            self.tally.errors += 1
            if self.now() - self._answered_at >= PATIENCE_S:
                raise error
            # Every trajectory ends with an outcome: a customer who got no answer was not helped.
            with suppress(openai.APIError):  # the ticket is counted as given up already
                await self._end(task, trajectory_id, UNANSWERED)
            return
        self.tally.trajectories += 1
        self.tally.successes += verdict.success
        self._answered_at = self.now()

    async def _end(self, task: Any, trajectory_id: str, verdict: Verdict) -> None:
        body = end_of(task, verdict, self.agent.world) | {
            "role": self.agent.model,
            "agent_id": AGENT_ID,
        }
        await self.agent.client.post(f"/trajectories/{trajectory_id}/end", cast_to=object, body=body)


def end_of(task: Any, verdict: Verdict, world: World = HELPDESK) -> dict[str, Any]:
    """Outcome and task of a trajectory, as `POST /v1/trajectories/{id}/end` takes them; `Any` because it is JSON.

    The session is the ticket's: customers are what the analyst counts, and not the processes of agents.
    """
    status = "success" if verdict.success else "failure"
    return {
        "session_id": task.task_id,
        "outcome": {"status": status, "score": float(verdict.success), "verified_by": "environment"},
        "task": {
            "task_id": task.task_id,
            "group_key": task.task_id,
            "domain": world.domain,
            "instructions": world.instructions,
        },
        "labels": {"wish": task.wish, "fault": verdict.fault, "task_type": world.kind_of(task)},
    }


async def work_through(options: argparse.Namespace) -> Tally:
    """Let the agents work until the pile ends or is closed."""
    loop, tally, world = asyncio.get_running_loop(), Tally(), WORLDS[options.world]
    pile = Pile(options.seed, options.tasks, options.tries, world=world)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, pile.close)
    if options.leashed:
        leash = threading.Thread(target=_wait_for_end_of_input, args=(loop, pile), daemon=True)
        leash.start()
    async with open_client(options.gateway) as client:
        worker = Worker(Agent(client, options.role or world.role, world=world), tally)
        await in_parallel(options.agents, iter(pile), worker.work)
    return tally


def _wait_for_end_of_input(loop: asyncio.AbstractEventLoop, pile: Pile) -> None:
    """The process that started this one closes its standard input, by will or by dying."""
    while os.read(0, 1024):
        pass
    with suppress(RuntimeError):  # the loop has ended before
        loop.call_soon_threadsafe(pile.close)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agents; returns 1 when the gateway stopped answering."""
    parser = argparse.ArgumentParser(prog="python -m ratchet_helpdesk.agents", description=__doc__)
    parser.add_argument("--gateway", required=True, help="base url of the gateway")
    parser.add_argument("--world", choices=sorted(WORLDS), default=HELPDESK.name, help="where they work")
    parser.add_argument("--role", help="the model name to ask for; the world's own when absent")
    parser.add_argument("--seed", type=int, default=0, help="which tickets")
    parser.add_argument("--tasks", type=int, help="how many tickets; until SIGTERM when absent")
    parser.add_argument("--tries", type=int, default=4, help="trajectories per ticket")
    parser.add_argument("--agents", type=int, default=16, help="agents at work at the same time")
    parser.add_argument("--leashed", action="store_true", help="also stop when standard input closes")
    options = parser.parse_args(argv)
    try:
        tally = asyncio.run(work_through(options))
    except openai.APIError as error:
        sys.stderr.write(f"the gateway at {options.gateway} does not answer: {error}\n")
        return 1
    sys.stdout.write(json.dumps(asdict(tally)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
