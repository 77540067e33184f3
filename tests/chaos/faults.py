"""The faults: each begins, lasts, and ends; what follows from it is the product's to mend."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Protocol

import nats.errors
from nats.js.errors import NotFoundError

from ratchet.bus.testing import eventually
from tests.chaos.schedule import CLOCK, CUT, DELETE, FREEZE, FULL_DISK, KILL, STEPS_S, Planned
from tests.chaos.world import World
from tests.support.small_disk import filled


class Fault(Protocol):
    """One fault of a world."""

    async def begin(self) -> None:
        """From now on it is there."""
        ...

    async def end(self) -> None:
        """It is there no longer."""
        ...


@dataclass
class Kill:
    """SIGKILL to a member and its children; the supervisor notices by itself."""

    world: World
    name: str

    async def begin(self) -> None:
        _signal(self.world, self.name, signal.SIGKILL)

    async def end(self) -> None:
        """The supervisor starts it again."""


@dataclass
class Freeze:
    """SIGSTOP to a member and its children, until the supervisor has killed it or the fault ends."""

    world: World
    name: str
    pid: int | None = None

    async def begin(self) -> None:
        self.pid = _signal(self.world, self.name, signal.SIGSTOP)

    async def end(self) -> None:
        if self.pid is not None and self.pid == _pid(self.world, self.name):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGCONT)


@dataclass
class Cut:
    """Connections of all services to a server are reset and refused, or silent."""

    world: World
    target: str

    async def begin(self) -> None:
        way, _, server = self.target.partition(" ")
        proxy = self.world.proxies[server]
        proxy.cut() if way == "reset" else proxy.silence()

    async def end(self) -> None:
        self.world.proxies[self.target.partition(" ")[2]].heal()


@dataclass
class FullDisk:
    """Not a page is free: for the servers, the services' spools, logs and the supervisor's records."""

    world: World
    held: ExitStack = field(default_factory=ExitStack)

    async def begin(self) -> None:
        self.held.enter_context(filled(self.world.disk))

    async def end(self) -> None:
        self.held.close()


@dataclass
class Delete:
    """A stream with all its consumers, or one of its consumers, is deleted while the broker runs."""

    world: World
    target: str
    draw: float

    async def begin(self) -> None:
        await eventually(self._is_deleted)  # the fault before may have taken the broker down

    async def _is_deleted(self) -> bool:
        with suppress(nats.errors.Error):
            await self._delete()
            return True
        return False

    async def _delete(self) -> None:
        jetstream, stream = self.world.connection.jetstream(), self.target.split()[-1]
        with suppress(NotFoundError):  # it is being made again
            if stream == self.target:
                await jetstream.delete_stream(stream)
                return
            consumers = sorted(consumer.name for consumer in await jetstream.consumers_info(stream))
            if consumers:
                await jetstream.delete_consumer(stream, consumers[int(self.draw * len(consumers))])

    async def end(self) -> None:
        """Services make it again."""


@dataclass
class Clock:
    """The system's clock is set forward or back, as one service sees it; later it is right again."""

    world: World
    name: str
    draw: float

    async def begin(self) -> None:
        self._set(STEPS_S[int(self.draw * len(STEPS_S))])

    async def end(self) -> None:
        self._set(0)

    def _set(self, ahead_s: int) -> None:
        port = self.world.stack.members[self.name].program.health_port
        assert port is not None
        self.world.clocks.set(port, ahead_s)


def fault_of(planned: Planned, world: World) -> Fault:
    """The fault that is planned."""
    target, draw = planned.target, planned.draw
    made: dict[str, Fault] = {
        KILL: Kill(world, target),
        FREEZE: Freeze(world, target),
        CUT: Cut(world, target),
        FULL_DISK: FullDisk(world),
        DELETE: Delete(world, target, draw),
        CLOCK: Clock(world, target, draw),
    }
    return made[planned.kind]


def _pid(world: World, name: str) -> int | None:
    process = world.stack.members[name].process
    return None if process is None or process.exit_code() is not None else process.pid


def _signal(world: World, name: str, number: signal.Signals) -> int | None:
    """Signal a member's process group, if it runs; returns its pid."""
    pid = _pid(world, name)
    if pid is not None:
        world.has_ended(name)
        with suppress(ProcessLookupError):
            os.killpg(pid, number)
    return pid
