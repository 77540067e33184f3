"""The supervisor: order, restarts, clean ends, and cleaning up after itself."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ratchet.bus.testing import eventually
from ratchet.core.errors import ConfigError, NotFound
from ratchet.local.local_stack.member import Member, MemberState
from ratchet.local.local_stack.orphans import is_running
from ratchet.local.local_stack.ports import LOOPBACK, free_port, is_taken
from ratchet.local.local_stack.process import Process, StartFailed
from ratchet.local.local_stack.program import Program
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from ratchet.local.local_stack.state import AlreadyRunning, StackRecord, read_record

pytestmark = pytest.mark.slow

PARENT = """
import subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(child.pid).encode())
    def log_message(self, *_):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""
"""A service with a child process of its own; it answers with the child's pid."""


def program(script: str, port: int, stop_s: float = 5.0) -> Program:
    url = f"http://{LOOPBACK}:{port}"
    command = (sys.executable, "-c", script, str(port))
    return Program(name="sample", command=command, ready_url=url, url=url, port=port, stop_s=stop_s)


def pids(record: StackRecord) -> dict[str, int]:
    return {name: member.pid for name, member in record.services.items() if member.pid is not None}


async def ready_record(directory: Path) -> StackRecord | None:
    record = read_record(directory)
    return record if record is not None and record.ready else None


async def test_stack_starts_in_order_restarts_crashed_members_and_leaves_nothing(tmp_path: Path) -> None:
    ready: list[str] = []

    def changed(member: Member) -> None:
        if member.state is MemberState.READY:
            ready.append(member.name)

    settings = StackSettings(directory=tmp_path, free_ports=True, only=("trajectory_collector",), restart_first_s=0.1)
    async with Stack(settings, changed) as stack:
        await stack.wait_ready("trajectory_collector", 120)
        # One look may fail on a busy machine: then a server is ready twice, and the record is not until the next look.
        assert list(dict.fromkeys(ready))[3] == "trajectory_collector"
        record = await eventually(lambda: ready_record(tmp_path))
        assert record.pid == os.getpid()
        assert record.services["nats"].url == stack.url("nats") == stack.env["RATCHET_NATS_URL"]
        assert stack.url("collector") == stack.url("trajectory_collector")

        before = pids(record)
        killed = [await stack.kill("nats"), await stack.kill("trajectory_collector")]
        assert killed == [before["nats"], before["trajectory_collector"]]
        await stack.wait_ready("nats", 120)
        await stack.wait_ready("trajectory_collector", 120)
        assert stack.members["nats"].restarts == 1
        await stack.restart("clickhouse")
        after = read_record(tmp_path)
        assert after is not None
        assert {name for name in before if pids(after)[name] != before[name]} == {
            "nats",
            "clickhouse",
            "trajectory_collector",
        }
    assert [pid for pid in {*before.values(), *pids(after).values()} if psutil.pid_exists(pid)] == []
    assert read_record(tmp_path) is None
    assert {path.name for path in (tmp_path / "logs").iterdir()} >= {"nats.log", "clickhouse.log"}


async def test_a_directory_has_one_stack_that_knows_its_members_only(tmp_path: Path) -> None:
    settings = StackSettings(directory=tmp_path, free_ports=True, only=("nats",))
    async with Stack(settings) as stack:
        with pytest.raises(NotFound, match="gateway is not part of this stack"):
            stack.url("gateway")
        with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
            async with Stack(settings):
                pass


async def test_the_children_of_a_process_end_with_it(tmp_path: Path) -> None:
    process = Process.start(program(PARENT, free_port()), tmp_path / "log")
    await process.wait_ready(20)
    children = psutil.Process(process.pid).children()
    assert len(children) == 1
    await process.stop()

    async def gone() -> bool:
        return not children[0].is_running() or children[0].status() == psutil.STATUS_ZOMBIE

    await eventually(gone)


async def test_a_process_that_will_not_stop_is_killed(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PARENT
    process = Process.start(program(stubborn, free_port(), stop_s=0.2), tmp_path / "log")
    await process.wait_ready(20)
    await process.stop()
    assert process.exit_code() == -signal.SIGKILL


def test_a_free_port_is_kept_for_its_server() -> None:
    port = free_port()
    assert free_port() != port
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((LOOPBACK, port))
    with socket.create_server((LOOPBACK, port)):
        assert is_taken(port)


async def test_a_process_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    process = Process.start(program("raise SystemExit('no such luck')", free_port()), tmp_path / "log")
    with pytest.raises(StartFailed, match=r"sample ended with exit code 1 during start(.|\n)*no such luck"):
        await process.wait_ready(20)
    await process.stop()


async def test_a_process_that_never_becomes_ready_is_given_up(tmp_path: Path) -> None:
    process = Process.start(
        program("import signal; print('busy', flush=True); signal.pause()", free_port()), tmp_path / "log"
    )

    async def busy() -> bool:
        return "busy" in (tmp_path / "log").read_text()

    await eventually(busy)
    with pytest.raises(StartFailed, match=r"sample is not ready after 0\.5 s: no answer(.|\n)*busy"):
        await process.wait_ready(0.5)
    await process.stop()


async def test_crashes_in_a_row_pause_longer_each_time(tmp_path: Path) -> None:
    reasons: list[str] = []

    def changed(member: Member) -> None:
        if member.state is MemberState.CRASHED and member.reason is not None:
            reasons.extend(part.strip() for part in member.reason.split(";") if "again in" in part)

    settings = StackSettings(restart_first_s=0.01, restart_last_s=0.04)
    member = Member(program("raise SystemExit(1)", free_port()), tmp_path / "log", {}, settings, changed)
    with pytest.raises(StartFailed):
        await member.start()

    async def often_enough() -> bool:
        await member.watch()
        return len(reasons) >= 4

    await eventually(often_enough)
    await member.stop()
    assert reasons == ["again in 0.01 s", "again in 0.02 s", "again in 0.04 s", "again in 0.04 s"]


async def test_a_member_that_is_slow_to_start_is_starting_and_not_crashed(tmp_path: Path) -> None:
    states: list[tuple[MemberState, str | None]] = []
    settings = StackSettings(start_s=1.5, remind_s=0.05)
    slow = program("import signal; signal.pause()", free_port())
    member = Member(slow, tmp_path / "log", {}, settings, lambda one: states.append((one.state, one.reason)))
    try:
        with pytest.raises(StartFailed, match=r"is not ready after 1\.5 s"):
            await member.start()
        assert {state for state, _ in states} == {MemberState.STARTING}
        reasons = [reason for _, reason in states if reason is not None]
        assert reasons
        assert all(re.fullmatch(r"not ready for \d+ s", reason) for reason in reasons)
    finally:
        await member.stop()


async def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        settings = StackSettings(directory=tmp_path, ports={"s3": port}, only=("s3",))
        with pytest.raises(ConfigError, match=f"port {port} for s3 is taken"):
            async with Stack(settings):
                pass
    assert read_record(tmp_path) is None


async def test_processes_that_a_killed_supervisor_leaves_are_ended_by_next_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ratchet.cli", "up", "--dir", str(tmp_path), "--free-ports", "--only", "nats,s3"]
    supervisor = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    record = await eventually(lambda: ready_record(tmp_path))
    assert record is not None
    supervisor.kill()
    await supervisor.wait()
    assert all(is_running(member) for member in record.services.values())
    async with Stack(StackSettings(directory=tmp_path, free_ports=True, only=("nats",))) as stack:
        assert stack.ended_orphans == ["nats", "s3"]
        assert not any(is_running(member) for member in record.services.values())


async def test_a_member_that_answers_nothing_is_started_again(tmp_path: Path) -> None:
    settings = StackSettings(
        directory=tmp_path, free_ports=True, only=("nats",), restart_first_s=0.1, silent_s=0.5, answer_s=0.5
    )
    reasons: list[str] = []
    async with Stack(settings, lambda one: reasons.append(one.reason or "")) as stack:
        member = stack.members["nats"]
        frozen = member.record()
        assert frozen is not None
        assert frozen.pid is not None
        os.kill(frozen.pid, signal.SIGSTOP)

        async def again() -> bool:
            return member.restarts == 1 and member.state is MemberState.READY

        await eventually(again)
        assert re.search(r"^was killed: it answered nothing for \d+ s; again in", "\n".join(reasons), re.MULTILINE)
        assert not psutil.pid_exists(frozen.pid or 0)
        after = member.record()
        assert after is not None
        assert re.fullmatch(r"was killed: it answered nothing for \d+ s", after.restarted or "")


async def test_supervision_survives_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    settings = StackSettings(directory=tmp_path, free_ports=True, only=("nats",), restart_first_s=0.1)
    async with Stack(settings) as stack:
        before = read_record(tmp_path)
        obstacle = tmp_path / f".stack.json.{os.getpid()}.partial"
        obstacle.mkdir()
        (obstacle / "not empty").touch()
        await stack.kill("nats")
        await stack.wait_ready("nats", 120)
        assert "cannot be written" in str(stack.trouble)
        assert read_record(tmp_path) == before
        (obstacle / "not empty").unlink()
        obstacle.rmdir()

        async def recorded() -> bool:
            record = read_record(tmp_path)
            return record is not None and pids(record) == {"nats": stack.members["nats"].process.pid}  # pyright: ignore

        await eventually(recorded)


async def test_supervision_survives_an_output_that_takes_nothing(tmp_path: Path) -> None:
    def changed(_member: Member) -> None:
        raise OSError(28, "No space left on device")

    settings = StackSettings(directory=tmp_path, free_ports=True, only=("nats",), restart_first_s=0.1)
    async with Stack(settings, changed) as stack:
        await stack.kill("nats")
        await stack.wait_ready("nats", 120)
        assert stack.members["nats"].restarts == 1
        assert "No space left" in str(stack.trouble)
