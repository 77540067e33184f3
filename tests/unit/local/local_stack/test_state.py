"""`stack.json`, the lock, and which processes are ours."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.tasks import end
from ratchet.bus.testing import FakeBroker, FakeBus, connect, eventually
from ratchet.cli.__main__ import main
from ratchet.core.contract.state import JOBS, POLICIES
from ratchet.core.errors import ConfigError
from ratchet.core.service.contracts import load_contracts
from ratchet.local.local_stack.catalog import ENGINE, PROMPT_WORKER, TRAINER
from ratchet.local.local_stack.demand import needed_members, start_when_needed
from ratchet.local.local_stack.log_files import log_tail
from ratchet.local.local_stack.orphans import STACK_ID_VARIABLE, birth, is_running
from ratchet.local.local_stack.process import Process, ended
from ratchet.local.local_stack.program import Program
from ratchet.local.local_stack.servers import nats_config, s3_credentials
from ratchet.local.local_stack.state import (
    AlreadyRunning,
    MemberRecord,
    StackRecord,
    read_record,
    remove_record,
    stack_lock,
    write_record,
)

RECORD = StackRecord(
    pid=1,
    born="boot 25",
    stack_id="x",
    ready=True,
    services={
        "nats": MemberRecord(
            pid=3,
            started_at=4.5,
            born="boot 45",
            url="nats://h:1",
            port=1,
            health_port=None,
            state="ready",
            restarts=0,
            reason=None,
        )
    },
    stop_s=12.0,
    env={"RATCHET_NATS_URL": "nats://h:1"},
)


def test_a_record_comes_back_as_it_was_written_and_is_private(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    assert read_record(tmp_path) == RECORD
    assert stat.S_IMODE((tmp_path / "stack.json").stat().st_mode) == 0o600
    remove_record(tmp_path)
    assert read_record(tmp_path) is None


def test_a_broken_record_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_record(tmp_path)


def test_a_second_supervisor_is_refused_with_the_first_one_s_pid(tmp_path: Path) -> None:
    with stack_lock(tmp_path):
        write_record(tmp_path, RECORD)
        with pytest.raises(AlreadyRunning, match=r"already running \(pid 1\)"), stack_lock(tmp_path):
            pass
    with stack_lock(tmp_path):
        pass


def test_a_pid_counts_only_with_its_birth() -> None:
    this_process = msgspec.structs.replace(RECORD, pid=os.getpid(), born=birth(os.getpid()))
    assert is_running(this_process)
    assert not is_running(msgspec.structs.replace(this_process, born=f"{this_process.born}0"))


@contextmanager
def killed(server: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block, whatever the block shows."""
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def test_down_ends_nothing_under_a_supervisor_that_holds_the_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with killed(subprocess.Popen(command, env={STACK_ID_VARIABLE: RECORD.stack_id}, start_new_session=True)) as server:
        member = msgspec.structs.replace(RECORD.services["nats"], pid=server.pid)
        with stack_lock(tmp_path):
            write_record(tmp_path, msgspec.structs.replace(RECORD, services={"nats": member}))
            assert main(["down", "--dir", str(tmp_path)]) != 0
            assert "already running" in capsys.readouterr().err
            assert server.poll() is None
        assert main(["down", "--dir", str(tmp_path)]) == 0  # with the supervisor gone
        server.wait(60)


def test_exit_codes_are_put_into_words() -> None:
    assert (ended(-9), ended(3)) == ("was ended by SIGKILL", "ended with exit code 3")


def test_the_end_of_a_log_is_read_without_the_rest(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert log_tail(log, lines=2) == ["line 9998", "line 9999"]
    assert log_tail(tmp_path / "absent.log") == []


def test_the_broker_listens_on_loopback_only_and_syncs_every_write(tmp_path: Path) -> None:
    config = nats_config(tmp_path / 'with "quotes" and spaces', 4001, 4002, "path")
    assert 'listen: "127.0.0.1:4001"' in config
    assert 'http: "127.0.0.1:4002"' in config
    assert "sync_interval: always" in config
    assert '\\"quotes\\"' in config


def test_the_object_store_knows_one_key() -> None:
    assert '"accessKey": "a"' in s3_credentials("a", "b")


async def put(bus: FakeBus, bucket: str, key: str, value: str) -> None:
    await Bucket(bus, bucket, msgspec.Raw).put(key, msgspec.Raw(value.encode()))


async def test_a_stack_without_jobs_and_policies_needs_no_engine() -> None:
    bus = await connect(FakeBroker(load_contracts()))
    assert await needed_members(bus) == set()
    await put(bus, JOBS, "old", '{"state": "completed"}')
    assert await needed_members(bus) == set()


@pytest.mark.parametrize(
    ("policy", "needed"),
    [
        ({"kind": "adapter"}, {ENGINE}),
        ({"kind": "bundle", "base_model": "support@3-1a2b3c4d"}, {ENGINE}),
        ({"kind": "bundle", "base_model": "openai/small"}, set[str]()),
        ({"kind": "bundle", "base_model": ""}, set[str]()),
    ],
)
async def test_a_policy_with_weights_needs_the_engine(policy: dict[str, str], needed: set[str]) -> None:
    bus = await connect(FakeBroker(load_contracts()))
    await put(bus, POLICIES, "support", '{"role": "support"}')
    await put(bus, POLICIES, "support.4", msgspec.json.encode(policy).decode())
    assert await needed_members(bus) == needed


async def test_an_open_job_needs_trainer_and_engine() -> None:
    bus = await connect(FakeBroker(load_contracts()))
    await put(bus, JOBS, "new", '{"state": "queued"}')
    assert await needed_members(bus) == {ENGINE, TRAINER}


async def test_search_for_a_prompt_needs_the_worker_of_its_pool_alone() -> None:
    bus = await connect(FakeBroker(load_contracts()))
    await put(bus, JOBS, "new", '{"state": "queued", "pool": "prompts"}')
    assert await needed_members(bus) == {PROMPT_WORKER}


async def test_a_job_that_cannot_be_read_needs_all() -> None:
    bus = await connect(FakeBroker(load_contracts()))
    await put(bus, JOBS, "odd", '{"state": 5}')
    assert await needed_members(bus) == {ENGINE, TRAINER, PROMPT_WORKER}


async def test_members_start_when_the_first_job_of_theirs_comes() -> None:
    bus = await connect(FakeBroker(load_contracts()))
    started: list[str] = []
    watching = asyncio.create_task(start_when_needed(bus, started.append))
    await put(bus, JOBS, "old", '{"state": "failed"}')
    for name, pool, members in (("search", "prompts", 1), ("new", "default", 3), ("again", "prompts", 3)):
        await put(bus, JOBS, name, f'{{"state": "queued", "pool": "{pool}"}}')

        async def has_started(number: int = members) -> bool:
            return len(started) == number

        await eventually(has_started, deadline_s=30)
    await end(watching)
    assert started == [PROMPT_WORKER, ENGINE, TRAINER], "each once"


def test_lock_makes_the_directory_readable_by_its_owner_alone(tmp_path: Path) -> None:
    for directory in (tmp_path / "new" / "state", tmp_path / "old"):
        if directory.name == "old":
            directory.mkdir(mode=0o755)
        with stack_lock(directory):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_what_a_member_writes_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    here, script = "http://127.0.0.1:9", f"open({str(tmp_path / 'written')!r}, 'w')"
    program = Program("writer", (sys.executable, "-c", script), here, here, 9)
    assert Process.start(program, tmp_path / "writer.log").wait() == 0
    assert stat.S_IMODE((tmp_path / "written").stat().st_mode) == 0o600
