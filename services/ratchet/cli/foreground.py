"""`ratchet up` in the foreground: a live picture on a terminal, plain lines elsewhere, ordered stop on a signal."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import nullcontext, suppress

from rich.console import Group
from rich.live import Live
from rich.text import Text

from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.output import console, print_json, table
from ratchet.cli.started import started_document, where_to_go
from ratchet.local.local_stack.member import Member, MemberState
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from ratchet.local.local_stack.state import read_record

SIGNALS = (signal.SIGINT,) if sys.platform == "win32" else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Foreground:
    """Runs a stack and shows it. With `as_json` it prints one document, once everything is ready."""

    def __init__(self, settings: StackSettings, as_json: bool) -> None:
        self._began = time.monotonic()
        self._as_json = as_json
        self._live = console.is_terminal and not as_json
        self._stack = Stack(settings, None if self._live or as_json else self._line)
        self._stopping = asyncio.Event()
        self._phase = "starting"
        self._next: list[str] = []

    async def run(self) -> int:
        """Run until a signal; returns the exit code."""
        main = asyncio.current_task()
        assert main is not None  # noqa: S101 - a coroutine run by asyncio.run is a task
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, main)
        picture = (
            Live(get_renderable=self._render, console=console, refresh_per_second=4) if self._live else nullcontext()
        )
        with picture, suppress(asyncio.CancelledError):
            async with self._stack:
                if self._stack.ended_orphans:
                    self._print(f"ended processes of an earlier stack: {', '.join(self._stack.ended_orphans)}")
                self._enter("running; Ctrl-C stops")
                record = read_record(self._stack.settings.directory)
                self._next = where_to_go(record) if record is not None else []
                for line in self._next:
                    self._print(line)
                if self._as_json and record is not None:
                    print_json(started_document(self._stack.settings.directory, record))
                await self._stopping.wait()
                self._enter("stopping")
        self._print("stopped")
        return ExitCode.DONE if self._phase != "starting" else ExitCode.INTERRUPTED

    def _on_signal(self, main: asyncio.Task[int]) -> None:
        """The first signal asks for an orderly stop, the second kills all members."""
        if self._stopping.is_set():
            self._stack.kill_all()
        elif self._phase == "starting":
            main.cancel()
        self._stopping.set()

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._print(phase)

    def _line(self, member: Member) -> None:
        if member.state is not MemberState.STARTING or member.reason:
            where = f" on {member.program.url}" if member.state is MemberState.READY else ""
            self._print(f"{member.name} {member.state}{where}{f': {member.reason}' if member.reason else ''}")

    def _print(self, text: str) -> None:
        if text and not self._live and not self._as_json:
            console.print(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def _render(self) -> Group:
        rows = [
            (member.name, member.state, member.program.url, member.restarts or None, member.reason)
            for member in self._stack.members.values()
        ]
        head = Text.assemble(
            ("ratchet ", "bold"),
            f"{self._phase}  {time.monotonic() - self._began:.0f} s  {self._stack.settings.directory}",
        )
        following = Text("\n".join(self._next if self._phase.startswith("running") else []))
        return Group(head, table(("", "state", "url", "restarts", "reason"), rows), following)
