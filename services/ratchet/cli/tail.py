"""`ratchet trajectories tail`: trajectories and rewards as they arrive, read from the broker's streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from ratchet.cli.connections import connected, reader, settings_of
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.ids import short_ids
from ratchet.cli.output import console, cut, errors, print_json_line
from ratchet.contract import Reward, Trajectory
from ratchet.errors import BusUnavailable, ContractError

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from ratchet.bus.connection import Bus
    from ratchet.bus.ordered_reader import OrderedReader

STREAMS = ("RL_TRAJECTORIES", "RL_REWARDS")
WORDS = 300
"""Characters of a line that agents wrote."""
WAIT_S = 1.0
"""A look at one stream takes this long while nothing comes."""
AGAIN_S = 2.0
"""Between two attempts to reach a broker that is away."""


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory or a reward in one line."""

    kind: Literal["trajectory", "reward"]
    at: datetime
    """When the broker stored it."""
    trajectory_id: str
    role: str
    agent_id: str | None = None
    task_id: str | None = None
    turns: int | None = None
    outcome: str | None = None
    total: float | None = None
    """Null: no component of the reward applies."""
    revision: int | None = None

    @property
    def words(self) -> str:
        """What a person reads of it, after its instant, id and role."""
        if self.kind == "reward":
            value = "no component applies" if self.total is None else f"{self.total:.4g}"
            return value if not self.revision else f"{value} (revision {self.revision})"
        turns = f"{self.turns} turn{'s' * (self.turns != 1)}"
        return f"{self.outcome or 'no outcome'}, {turns}, {self.agent_id}, {self.task_id}"


async def follow(endpoints: Endpoints, role: str | None, as_json: bool) -> None:
    """Print what arrives from now on, until it is cancelled. An outage of the broker is named, and then read over.

    Raises `BusUnavailable` where the broker is away at the beginning.
    """
    start: dict[str, int | datetime] = dict.fromkeys(STREAMS, datetime.now(UTC))
    away, began = False, False
    while True:
        try:
            async with connected(settings_of(endpoints)) as bus:
                if away:
                    errors.print("the broker is back", markup=False)
                away, began = False, True
                async with aclosing(arrivals(bus, start)) as arriving:
                    async for one in arriving:
                        if role in (None, one.role):
                            show(one, as_json)
        except BusUnavailable as error:
            if not began:
                raise
            if not away:
                errors.print(f"no answer: {error}; waiting for it", markup=False)
            away = True
            await asyncio.sleep(AGAIN_S)


async def arrivals(bus: Bus, start: dict[str, int | datetime]) -> AsyncGenerator[Arrived]:
    """What arrives from `start` on, which is moved behind what was handed out. Raises `BusUnavailable`."""
    readers: dict[str, OrderedReader] = {}
    try:
        for stream, begin in start.items():
            readers[stream] = reader(bus, stream, start=begin)
            await readers[stream].open()
        while True:
            for stream, opened in readers.items():
                for message in await opened.next(WAIT_S):
                    if (one := read(bus, message)) is not None:
                        yield one
                    start[stream] = message.metadata.sequence.stream + 1
            if not bus.is_connected:
                raise BusUnavailable("the broker is away")
    finally:
        for opened in readers.values():
            await opened.close()


def read(bus: Bus, message: Msg) -> Arrived | None:
    """A message in one line; None for another kind, and for one that consumers refuse too."""
    try:
        received = bus.read(message)[0]
    except ContractError:
        return None
    body = received.message
    if isinstance(body, Trajectory):
        return Arrived(
            kind="trajectory",
            at=received.time,
            trajectory_id=body.trajectory_id,
            role=body.role,
            agent_id=body.agent_id,
            task_id=body.task_context.task_id,
            turns=len(body.turns),
            outcome=body.outcome.status if body.outcome else None,
        )
    if isinstance(body, Reward):
        return Arrived(
            kind="reward",
            at=received.time,
            trajectory_id=body.trajectory_id,
            role=body.role,
            total=body.total_reward if body.metadata.confidence else None,
            revision=body.revision,
        )
    return None


def show(one: Arrived, as_json: bool) -> None:
    """One line: a document, or words; what agents wrote is escaped in both."""
    if as_json:
        print_json_line(one)
        return
    name = short_ids([one.trajectory_id])[one.trajectory_id] if console.is_terminal else one.trajectory_id
    at = f"{one.at.astimezone():%H:%M:%S}"
    words = cut(" ".join(one.words.split()), WORDS)
    console.print(f"{at}  {one.kind:10}  {name}  {one.role}  {words}", markup=False, soft_wrap=True)
    console.file.flush()
