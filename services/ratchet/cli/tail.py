"""`ratchet trajectories tail`: trajectories and rewards as they arrive, read from the broker's streams."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from ratchet.cli.connections import connected, reader, settings_of
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.ids import short_ids
from ratchet.cli.output import console, cut, errors, print_json_line
from ratchet.core.contract import Reward, Trajectory
from ratchet.core.errors import BusUnavailable, ContractError
from ratchet.core.rules.arms import PINNED

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from ratchet.bus.connection import Bus
    from ratchet.bus.ordered_reader import OrderedReader

TRAJECTORIES, REWARDS = "RL_TRAJECTORIES", "RL_REWARDS"
STREAMS = (TRAJECTORIES, REWARDS)
WORDS = 300
"""Characters of a line that agents wrote."""
WAIT_S = 0.5
"""A look at one stream takes this long while nothing comes."""
REMEMBERED = 10_000
"""Evaluations whose rewards are known as theirs."""
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
    arm: str | None = None
    """Of a trajectory's calls."""

    @property
    def is_evaluation(self) -> bool:
        """Whether its calls asked for a version by name."""
        return self.arm == PINNED

    @property
    def words(self) -> str:
        """What a person reads of it, after its instant, id and role."""
        if self.kind == "reward":
            value = "no component applies" if self.total is None else f"{self.total:.4g}"
            return value if not self.revision else f"{value} (revision {self.revision})"
        turns = f"{self.turns} turn{'s' * (self.turns != 1)}"
        return f"{self.outcome or 'no outcome'}, {turns}, {self.agent_id}, {self.task_id}"


async def follow(endpoints: Endpoints, role: str | None, as_json: bool, *, with_evaluation: bool = False) -> None:
    """Print what arrives from now on, until it is cancelled. An outage of the broker is named, and then read over.

    Evaluations and their rewards are left out unless `with_evaluation`.

    Raises `BusUnavailable` where the broker is away at the beginning.
    """
    start: dict[str, int | datetime] = dict.fromkeys(STREAMS, datetime.now(UTC))
    away, began = False, False
    evaluations = OrderedDict[str, None]()
    while True:
        try:
            async with connected(settings_of(endpoints, role)) as bus:
                if away:
                    errors.print("the broker is back", markup=False)
                away, began = False, True
                async with aclosing(arrivals(bus, start)) as arriving:
                    async for arrived in arriving:
                        if not with_evaluation and is_left_out(arrived, evaluations):
                            continue
                        if role in (None, arrived.role):
                            show(arrived, as_json)
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
            for message in await _in_order(readers[TRAJECTORIES], readers[REWARDS]):
                start[message.metadata.stream] = message.metadata.sequence.stream + 1
                if (one := read(bus, message)) is not None:
                    yield one
            if not bus.is_connected:
                raise BusUnavailable("the broker is away")
    finally:
        for opened in readers.values():
            await opened.close()


async def _in_order(trajectories: OrderedReader, rewards: OrderedReader) -> list[Msg]:
    """The next messages of both streams in the order in which the broker stored them: a trajectory before its reward.

    Trajectories are read after rewards, for as long as older ones may follow.
    """
    messages = await rewards.next(WAIT_S)
    newest = messages[-1].metadata.timestamp if messages else None
    while part := await trajectories.next(WAIT_S):
        messages = [*messages, *part]
        if newest is None or part[-1].metadata.timestamp > newest:
            break
    return sorted(messages, key=lambda message: message.metadata.timestamp)


def is_left_out(one: Arrived, evaluations: OrderedDict[str, None]) -> bool:
    """Whether it is an evaluation, or the reward of one that arrived before, which `evaluations` remembers."""
    if one.is_evaluation:
        evaluations[one.trajectory_id] = None
        if len(evaluations) > REMEMBERED:
            evaluations.popitem(last=False)
    return one.trajectory_id in evaluations


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
            arm=body.policy.arm if body.policy else None,
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
