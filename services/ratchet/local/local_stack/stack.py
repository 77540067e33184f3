"""The supervisor: starts the stack in order, keeps it running, stops it in reverse order.

Engine and workers start when a job or a policy first needs them, unless they are asked for by name.

    async with Stack(StackSettings(free_ports=True, directory=tmp)) as stack:
        client = Client(base_url=stack.url("gateway"))

Leaving the block, for whatever reason, leaves no process behind. After `kill -9` of the supervisor itself the next
start, or `ratchet down`, ends what is left.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Self

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import Bus
from ratchet.bus.tasks import end
from ratchet.core.errors import NotFound, RatchetError
from ratchet.core.service.contracts import load_contracts
from ratchet.local.local_stack.bootstrap import bootstrap
from ratchet.local.local_stack.broker_users import broker_users
from ratchet.local.local_stack.catalog import SERVERS, SERVICES
from ratchet.local.local_stack.certificates import AUTHORITIES
from ratchet.local.local_stack.demand import needed_members, start_when_needed
from ratchet.local.local_stack.durable_writes import PROBE_S, DurableWrites
from ratchet.local.local_stack.log_files import begin_log, cut_log, remove_old_parts
from ratchet.local.local_stack.member import Member, MemberState
from ratchet.local.local_stack.orphans import STACK_ID_VARIABLE, birth, end_orphans
from ratchet.local.local_stack.plan import StackPlan, make_plan
from ratchet.local.local_stack.preflight import planned
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.state import (
    StackRecord,
    keep_ports,
    keep_secrets,
    read_record,
    read_version,
    remove_record,
    require_in_place,
    require_readable,
    stack_lock,
    write_record,
    write_version,
)

LOGS_S = 5.0
"""How often logs are checked for their length, and a state that could not be written is written again."""


class Stack:
    """The stack of one directory. `changed` is called whenever a member's state changes."""

    def __init__(self, settings: StackSettings, changed: Callable[[Member], None] | None = None) -> None:
        self.settings = settings
        self.members: dict[str, Member] = {}
        self.ended_orphans: list[str] = []
        """Members of an earlier stack that were found running, and ended."""
        self.trouble: str | None = None
        """What the supervisor itself could not do last, in one line."""
        self._report = changed
        self._id = uuid.uuid4().hex
        self._held = ExitStack()
        self._plan: StackPlan | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._connected = AsyncExitStack()
        self._recorded = True
        """False while `stack.json` is older than what it should say: the disk was full."""
        self._ready = False

    @property
    def env(self) -> Mapping[str, str]:
        """Environment variables that say where everything is."""
        return self._planned().env

    def url(self, name: str) -> str:
        """Where a server or service is; by its name (`rl_coordinator`) or short name (`coordinator`)."""
        return self._member(name).program.url

    async def __aenter__(self) -> Self:
        if read_record(self.settings.directory) is None:
            planned(self.settings)  # a start that is refused here has not made anything yet
        self._held.enter_context(stack_lock(self.settings.directory))
        try:
            require_in_place(self.settings.directory)  # again: a restore may have ended since
            require_readable(read_version(self.settings.directory), self.settings.directory)
            left = read_record(self.settings.directory)
            if left is not None:
                self.ended_orphans = await asyncio.to_thread(end_orphans, left)
                remove_record(self.settings.directory)
            broker_users(self.settings.directory).keep_programs()
            self._plan = make_plan(self.settings, keep_secrets(self.settings.directory))
            for name in AUTHORITIES:  # this process asks the servers, too
                if name in self._plan.env:
                    os.environ[name] = self._plan.env[name]
            keep_ports(self.settings.directory, self._plan.ports)
            logs, env = self.settings.directory / "logs", {STACK_ID_VARIABLE: self._id}
            for program in self._plan.programs:
                log = logs / f"{program.name}.log"
                begin_log(log)
                self.members[program.name] = Member(program, log, env, self.settings, self._on_change)
            await self._start_all(self._plan)
        except BaseException:
            await self._stop_all()
            raise
        self._ready = True
        self._record()
        self._watching.append(asyncio.create_task(self._every(LOGS_S, self._tidy), name="tidy"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop_all()

    def start(self, name: str) -> None:
        """Start a member that waits until it is needed; another one runs already, or stands in for it (vLLM)."""
        member = self.members.get(name)
        if member is not None and member.state is MemberState.WHEN_NEEDED:
            self._watching.append(asyncio.create_task(self._begin(member), name=f"start {member.name}"))

    async def restart(self, name: str) -> None:
        """Stop one member in an orderly way, start it again, return when it is ready."""
        member = self._member(name)
        await member.stop()
        await member.start()

    async def kill(self, name: str) -> int:
        """SIGKILL one member and its children; returns its pid. The supervisor restarts it."""
        return await self._member(name).kill()

    async def wait_ready(self, name: str, deadline_s: float = 60.0) -> None:
        """Return when the member is ready (again). Raises `TimeoutError`."""
        async with asyncio.timeout(deadline_s):
            await self._member(name).ready.wait()

    def kill_all(self) -> None:
        """SIGKILL everything: for a person who does not want to wait for an orderly end."""
        for member in self.members.values():
            if member.process is not None:
                member.process.kill()

    async def _start_all(self, plan: StackPlan) -> None:
        """Everything starts as soon as what it needs is ready; what nothing needs yet is left, and others do not wait
        for it."""
        events = {name: asyncio.Event() for name in (*plan.needs, *SERVERS, "bootstrap")}
        servers = [name for name in SERVERS if name in self.members]

        async def prepare() -> None:
            if len(servers) == len(SERVERS):
                await _all_set(events, servers)
                write_version(self.settings.directory)  # first: an older program must not touch half an upgrade either
                await bootstrap(plan.shared)
                bus = await Bus.connect(plan.shared.bus, name="supervisor", contracts=load_contracts())
                self._connected.push_async_callback(bus.close)
                await bus.ensure_streams()  # and from now on, when one goes missing
                self._watch_writes(DurableWrites(bus))
                for name in await self._unneeded(plan, bus):
                    self.members[name].leave_until_needed()
            events["bootstrap"].set()

        async def start(name: str) -> None:
            needs = plan.needs.get(name)
            await _all_set(events, () if needs is None else ("bootstrap", *needs))
            member = self.members[name]
            if member.state is not MemberState.WHEN_NEEDED:
                await member.start()
            events[name].set()
            self._watching.append(asyncio.create_task(self._every(self.settings.look_s, member.watch), name="watch"))

        tasks = [asyncio.create_task(prepare()), *(asyncio.create_task(start(name)) for name in self.members)]
        try:
            await asyncio.gather(*tasks)
        finally:
            await end(*tasks)

    def _watch_writes(self, writes: DurableWrites) -> None:
        """From now on the broker is ready only while it takes writes."""

        async def look() -> None:
            self.members["nats"].unfit = await writes.check()

        self._watching.append(asyncio.create_task(self._every(PROBE_S, look), name="writes"))

    async def _unneeded(self, plan: StackPlan, bus: Bus) -> Set[str]:
        """The members that no job or policy needs yet; from now on those are watched."""
        if not plan.when_needed:
            return frozenset()
        unneeded = plan.when_needed - await needed_members(bus)
        if unneeded:
            self._watching.append(asyncio.create_task(self._await_need(bus), name="demand"))
        return unneeded

    async def _await_need(self, bus: Bus) -> None:
        """Start what comes to be needed. Whatever keeps us from knowing that counts as a need."""
        try:
            await start_when_needed(bus, self.start)
        except RatchetError as error:
            self._complain(f"engine and workers start now, for jobs and policies cannot be watched: {error}")
            for name in self._planned().when_needed:
                self.start(name)

    async def _begin(self, member: Member) -> None:
        """Its watch starts it again where this fails."""
        try:
            await member.start()
        except (OSError, RatchetError) as error:
            self._complain(f"{member.name}: {error}")

    async def _every(self, pause_s: float, look: Callable[[], Awaitable[None]]) -> None:
        """Look, for ever. Each member has a watch of its own, so that one that hangs delays no other."""
        while True:
            try:
                await look()
            except Exception as error:  # noqa: BLE001 - supervision goes on, whatever one look met
                self._complain(f"{type(error).__name__}: {error}")
            await asyncio.sleep(pause_s)

    async def _tidy(self) -> None:
        """Keep logs within their bound, and say in `stack.json` what a full disk has kept it from saying."""
        for log in (self.settings.directory / "logs").glob("*.log"):
            await asyncio.to_thread(cut_log, log)
            await asyncio.to_thread(remove_old_parts, log, utc_now())
        if not self._recorded:
            self._record()

    async def _stop_all(self) -> None:
        """Everything stops as soon as what needs it has stopped."""
        stopped = {name: asyncio.Event() for name in self.members}
        needs = self._plan.needs if self._plan is not None else {}

        async def stop(name: str) -> None:
            await _all_set(stopped, [other for other, needed in needs.items() if name in needed])
            try:
                await self.members[name].stop()
            finally:
                stopped[name].set()

        try:
            await end(*self._watching)
            await self._connected.aclose()
            await asyncio.gather(*(stop(name) for name in self.members))
        finally:
            self.kill_all()
            if self.members:
                remove_record(self.settings.directory)
            self._held.close()

    def _on_change(self, member: Member) -> None:
        self._record()
        if self._report is not None:
            try:
                self._report(member)
            except OSError as error:  # what is said may go to the same full disk
                self._complain(f"the state cannot be shown: {error}")

    def _record(self) -> None:
        """Say in `stack.json` how the members are, if the disk takes it."""
        try:
            records = {name: member.record() for name, member in self.members.items()}
            record = StackRecord(
                pid=os.getpid(),
                stack_id=self._id,
                ready=self._ready,
                services={name: member for name, member in records.items() if member is not None},
                stop_s=sum(program.stop_s for program in self._planned().programs),
                env=dict(self._planned().env),
                born=birth(os.getpid()),
            )
            write_record(self.settings.directory, record)
        except OSError as error:
            self._recorded = False
            self._complain(f"the state cannot be written: {error}")
        else:
            self._recorded = True

    def _complain(self, trouble: str) -> None:
        """Once for each trouble, until another one comes."""
        if trouble != self.trouble:
            self.trouble = trouble
            with suppress(OSError):  # it may be the same full disk
                sys.stderr.write(f"ratchet: {trouble}\n")
                sys.stderr.flush()

    def _planned(self) -> StackPlan:
        if self._plan is None:
            raise NotFound("the stack is not started")
        return self._plan

    def _member(self, name: str) -> Member:
        full = next((spec.name for spec in SERVICES if spec.short == name), name)
        if full not in self.members:
            raise NotFound(f"{name} is not part of this stack; it has {', '.join(self.members)}")
        return self.members[full]


async def _all_set(events: Mapping[str, asyncio.Event], names: list[str] | tuple[str, ...]) -> None:
    await asyncio.gather(*(events[name].wait() for name in names))
