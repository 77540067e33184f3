"""One member of the stack and its life: waiting, starting, ready, crashed, starting again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

from ratchet.bus.tasks import end
from ratchet.core.errors import RatchetError
from ratchet.core.service.discovery import WHEN_NEEDED
from ratchet.core.service.files import LOW_BYTES, free_bytes
from ratchet.core.service.readiness import SILENCE, is_silent, not_ready
from ratchet.local.local_stack.process import Process, StartFailed, ended, not_ready_for
from ratchet.local.local_stack.program import Program
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.state import MemberRecord

SILENT_LOOKS = 3
"""No fewer: a supervisor that was stopped itself, and goes on, has heard nothing for long either."""


class MemberState(StrEnum):
    """Where a member is in its life."""

    WAITING = "waiting"
    WHEN_NEEDED = WHEN_NEEDED
    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not ready"
    CRASHED = "crashed"
    STOPPED = "stopped"


IDLE = frozenset({MemberState.WAITING, MemberState.WHEN_NEEDED, MemberState.STOPPED})
"""States without a process."""
WELL = frozenset({MemberState.READY.value, MemberState.WHEN_NEEDED.value})
"""States in which nothing is amiss, as `stack.json` has them."""


class Member:
    """A program that is kept running. `changed` is called at every change of state."""

    def __init__(
        self,
        program: Program,
        log: Path,
        env: Mapping[str, str],
        settings: StackSettings,
        changed: Callable[[Member], None],
    ) -> None:
        self.program = program
        self.log = log
        self.state = MemberState.WAITING
        self.reason: str | None = None
        self.restarts = 0
        self.restarted: str | None = None
        """Why it was started again last."""
        self.process: Process | None = None
        self.unfit: str | None = None
        """Why it is not ready although it says so: what the supervisor has seen by itself, of this process."""
        self.ready = asyncio.Event()
        """Set exactly while the state is `READY`."""
        self._env = env
        self._settings = settings
        self._changed = changed
        self._crashes = 0
        self._began_at = 0.0
        self._again_at = 0.0
        self._heard_at = 0.0
        """When it last answered anything, or began."""
        self._silent_at = 0.0
        """When it will have been silent for too long, if it stays so."""
        self._silent_looks = 0
        self._refuses_since: float | None = None
        """Since when it has answered, and said that it is not ready."""
        hasty_s = settings.answer_s if program.silent_s is None else program.silent_s / (SILENT_LOOKS + 1)
        self._answer_s = min(settings.answer_s, hasty_s)
        """The first look asks twice."""
        self._busy = asyncio.Lock()

    @property
    def name(self) -> str:
        return self.program.name

    async def start(self) -> None:
        """Start and wait until ready. Raises `StartFailed`; one that lives but is not ready only says so."""
        async with self._busy:
            try:
                process = self._launch()
            except (OSError, RatchetError) as error:
                self._crashed(f"cannot start: {error}")
                raise
            reminding = asyncio.create_task(self._remind())
            try:
                await process.wait_ready(self._settings.start_s)
            except StartFailed as error:
                if self._exit_code() is not None:
                    self._enter(MemberState.CRASHED, str(error).splitlines()[0])
                    raise
                if not await asyncio.to_thread(self._alive):
                    self._enter(MemberState.STARTING, self._slow())
                    raise
                await self._look()
            else:
                self._heard()
                self._enter(MemberState.READY, None)
            finally:
                await end(reminding)

    def leave_until_needed(self) -> None:
        """Start it later."""
        self._enter(MemberState.WHEN_NEEDED, None)

    async def watch(self) -> None:
        """One look: notice a crash or a long silence, start again when the pause is over, follow readiness."""
        if self._busy.locked() or self.state in IDLE:
            return
        async with self._busy:
            if self.state is MemberState.CRASHED:
                if time.monotonic() >= self._again_at:
                    self.restarts += 1
                    try:
                        self._launch()
                    except (OSError, RatchetError) as error:  # a full disk is a crash like any other: it passes
                        self._crashed(f"cannot start: {error}")
            elif (code := self._exit_code()) is not None:
                self._crashed(ended(code))
            else:
                await self._look()
                silent_s = time.monotonic() - self._heard_at
                if self._silent_looks >= SILENT_LOOKS and time.monotonic() >= self._silent_at:
                    await self._end(f"it answered nothing for {silent_s:.0f} s")
                elif await asyncio.to_thread(self._is_stuck):
                    await self._end(str(self.reason))

    async def _end(self, why: str) -> None:
        """Kill it, so that it is started again."""
        if self.process is not None:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
        self._crashed(f"was killed: {why}")

    async def stop(self) -> None:
        """End it; it stays down."""
        async with self._busy:
            if self.process is not None:
                await self.process.stop()
            self._enter(MemberState.STOPPED, None)

    async def kill(self) -> int:
        """SIGKILL to its group, as a crash would; returns the pid it had. `watch` brings it back."""
        async with self._busy:
            if self.process is None:
                raise StartFailed(f"{self.name} does not run")
            self.process.kill()
            self._crashed(ended(await asyncio.to_thread(self.process.wait)))
            return self.process.pid

    def record(self) -> MemberRecord | None:
        """What `stack.json` says of it; None while it waits for its first start."""
        process = self.process
        if process is None and self.state is not MemberState.WHEN_NEEDED:
            return None
        return MemberRecord(
            pid=process.pid if process is not None else None,
            started_at=process.started_at if process is not None else 0.0,
            url=self.program.url,
            port=self.program.port,
            health_port=self.program.health_port,
            state=self.state.value,
            restarts=self.restarts,
            reason=self.reason,
            restarted=self.restarted,
            born=process.born if process is not None else "",
        )

    def _launch(self) -> Process:
        self._began_at = time.monotonic()
        self._heard_at, self._silent_looks, self._refuses_since = self._began_at, 0, None
        self._silent_at = self._began_at + self._settings.start_s
        self.unfit = None
        self.process = Process.start(self.program, self.log, self._env)
        self._enter(MemberState.STARTING, None)
        return self.process

    def _crashed(self, how: str) -> None:
        self.restarted = how
        if time.monotonic() - self._began_at > self._settings.restart_forgiven_s:
            self._crashes = 0
        pause = min(self._settings.restart_first_s * 2**self._crashes, self._settings.restart_last_s)
        self._crashes += 1
        self._again_at = time.monotonic() + pause
        if self.process is not None:
            self.process.kill()
        self._enter(MemberState.CRASHED, f"{how}; again in {pause:g} s; see {self.log}")

    async def _remind(self) -> None:
        """Say, every now and then, for how long it has been starting."""
        while True:
            await asyncio.sleep(self._settings.remind_s)
            self._enter(MemberState.STARTING, self._slow())

    def _slow(self) -> str:
        return not_ready_for(time.monotonic() - self._began_at)

    async def _look(self) -> None:
        if self._silent_looks and self.program.alive_url is not None and not await asyncio.to_thread(self._speaks):
            self._silent_looks += 1
            return
        reason = await asyncio.to_thread(not_ready, self.program.ready_url, self._answer_s)
        if reason is None or not reason.startswith(SILENCE) or await asyncio.to_thread(self._speaks):
            self._heard()
        else:
            self._silent_looks += 1
        reason = reason or self.unfit
        refuses = reason is not None and not self._silent_looks
        self._refuses_since = (self._refuses_since or time.monotonic()) if refuses else None
        if reason is None:
            self._enter(MemberState.READY, None)
        elif self.state is not MemberState.STARTING or await asyncio.to_thread(self._alive):
            self._enter(MemberState.NOT_READY, reason)

    def _heard(self) -> None:
        self._heard_at, self._silent_looks = time.monotonic(), 0
        self._silent_at = self._heard_at + (self.program.silent_s or self._settings.silent_s)

    def _is_stuck(self) -> bool:
        """Whether only a new start helps: it says for long that it is not ready, and lacks no room."""
        stuck_s, since = self.program.stuck_s, self._refuses_since
        if stuck_s is None or since is None or self.state is not MemberState.NOT_READY:
            return False
        directory = self.program.cwd or self.log.parent
        return time.monotonic() - since >= stuck_s and free_bytes(directory) >= LOW_BYTES

    def _speaks(self) -> bool:
        return self.program.alive_url is not None and not is_silent(self.program.alive_url, self._answer_s)

    def _alive(self) -> bool:
        return self._exit_code() is None and not_ready(self.program.alive_url or self.program.ready_url) is None

    def _exit_code(self) -> int | None:
        return None if self.process is None else self.process.exit_code()

    def _enter(self, state: MemberState, reason: str | None) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason = state, reason
            if state is MemberState.READY:
                self.ready.set()
            else:
                self.ready.clear()
            self._changed(self)
