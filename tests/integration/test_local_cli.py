"""The `ratchet` command at a terminal: exit codes, one line for an error, nothing left behind."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from ratchet.local.local_stack.orphans import is_running
from ratchet.local.local_stack.ports import free_port
from ratchet.local.local_stack.state import read_record
from tests.support.command_lines import ratchet

pytestmark = pytest.mark.slow


def assert_one_clear_line(done: subprocess.CompletedProcess[str], text: str, code: int = 1) -> None:
    assert done.returncode == code
    assert done.stderr.startswith("ratchet: ")
    assert done.stderr.count("\n") == 1
    assert text in done.stderr


@pytest.mark.parametrize(
    ("command", "variable"),
    [
        ("jobs", "RATCHET_COORDINATOR_URL"),
        ("policies list", "RATCHET_DEPLOYER_URL"),
        ("rollout rollback support", "RATCHET_DEPLOYER_URL"),
    ],
)
def test_a_dead_service_is_one_clear_line(tmp_path: Path, command: str, variable: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = ratchet(*command.split(), "--dir", str(tmp_path), **{variable: url})
    assert_one_clear_line(done, url)


def test_a_dead_broker_is_one_clear_line(tmp_path: Path) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    assert_one_clear_line(ratchet("deadletters", "list", "--dir", str(tmp_path), RATCHET_NATS_URL=url), url)


def test_an_unknown_service_or_port_is_one_clear_line(tmp_path: Path) -> None:
    assert_one_clear_line(ratchet("up", "--dir", str(tmp_path), "--only", "nope"), "'nope'", code=2)
    assert_one_clear_line(ratchet("up", "--dir", str(tmp_path), "--port", "nope=1"), "'nope'", code=2)
    assert_one_clear_line(ratchet("up", "--dir", str(tmp_path), RATCHET_PORT_S3="x"), "'x' is not a port number")


def test_a_wrong_setting_is_one_clear_line(tmp_path: Path) -> None:
    env = {"RATCHET_REPLICAS": "x", "RATCHET_NATS_URL": "nats://127.0.0.1:1"}
    assert_one_clear_line(ratchet("deadletters", "list", "--dir", str(tmp_path), **env), "RATCHET_REPLICAS")


@pytest.mark.parametrize("command", ["status", "down", "env", "jobs", "deadletters list"])
def test_a_directory_without_a_stack_is_one_clear_line(tmp_path: Path, command: str) -> None:
    done = ratchet(*command.split(), "--dir", str(tmp_path), "--json")
    assert_one_clear_line(done, f"no stack runs in {tmp_path}", code=4)
    assert json.loads(done.stdout)["error"]["exit_code"] == 4


def test_a_refused_start_and_a_dry_run_leave_no_file(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for how in ((), ("--detach",)):
            refused = ratchet(
                "up", "--dir", str(directory), "--only", "clickhouse", "--port", f"clickhouse={port}", *how
            )
            assert_one_clear_line(refused, f"port {port} for clickhouse is taken")
    planned = ratchet("up", "--dir", str(directory), "--free-ports", "--dry-run", "--json")
    assert list(json.loads(planned.stdout)["services"])[:3] == ["nats", "s3", "clickhouse"]
    assert not directory.exists()


@pytest.mark.timeout(120)
def test_processes_that_killed_supervisor_left_are_named_and_can_be_ended(tmp_path: Path) -> None:
    directory = ("--dir", str(tmp_path / "state"))
    up = ratchet("up", *directory, "--free-ports", "--only", "nats", "--detach", "--json")
    assert up.returncode == 0, up.stderr
    record = read_record(tmp_path / "state")
    assert record is not None
    assert json.loads(up.stdout)["pid"] == record.pid
    supervisor = psutil.Process(record.pid)
    supervisor.kill()
    psutil.wait_procs([supervisor], timeout=10)
    broker = record.services["nats"].pid
    try:
        assert_one_clear_line(ratchet("status", *directory), f"still run (nats {broker})", code=4)
    finally:
        down = ratchet("down", *directory, "--json")
    assert json.loads(down.stdout)["orphans"] == ["nats"]
    assert broker is not None
    assert not psutil.pid_exists(broker)


@pytest.mark.timeout(120)
def test_failed_start_gives_its_own_reason_and_not_that_of_start_before(tmp_path: Path) -> None:
    log = tmp_path / "state/logs/up.log"
    log.parent.mkdir(parents=True)
    log.write_text("ratchet: gateway ended with exit code 1 during start: of the run before\n")
    options = ("--only", "reward_computer", "--free-ports", "--detach")
    failed = ratchet("up", "--dir", str(tmp_path / "state"), *options, RATCHET_REWARD_LINGER_S="soon")
    assert failed.returncode == 1
    assert "RATCHET_REWARD_LINGER_S" in failed.stderr
    assert "of the run before" not in failed.stderr
    assert "of the run before" in log.read_text()


@pytest.mark.timeout(300)
def test_the_whole_way_from_up_to_down(tmp_path: Path) -> None:
    directory = ("--dir", str(tmp_path / "state"))
    up = ratchet("up", *directory, "--free-ports", "--only", "trajectory_collector", "--detach")
    assert up.returncode == 0, up.stderr
    record = read_record(tmp_path / "state")
    assert record is not None
    try:
        assert_one_clear_line(ratchet("up", *directory), f"already running (pid {record.pid})")
        assert_one_clear_line(ratchet("import", "tau-bench", "absent.json", *directory), "absent.json")

        records = tmp_path / "records.json"
        records.write_text(json.dumps([{"task_id": 1}, 5]))
        imported = ratchet("import", "tau-bench", str(records), *directory)
        assert imported.returncode == 3
        assert imported.stdout.splitlines()[0].startswith("record 1: ")
        assert imported.stdout.splitlines()[1].startswith("record 2: ")
        assert "0 trajectories of 2 records published, 2 malformed" in imported.stdout

        looks = (ratchet("status", "--json", *directory) for _ in range(5))  # a busy machine may be slow to answer
        status = next(look for look in looks if look.returncode == 0)
        report = json.loads(status.stdout)
        assert report["services"]["trajectory_collector"]["state"] == "ready"
        assert report["rows"]["trajectories"] == 0
        health = report["services"]["trajectory_collector"]["health_url"]
        assert httpx.get(f"{health}/readyz", trust_env=False, timeout=60).status_code == 200
        metrics = httpx.get(f"{health}/metrics", trust_env=False, timeout=60).text
        assert 'ratchet_check_failing{check="disk"}' in metrics
        shown = json.loads(ratchet("env", "--json", *directory).stdout)
        sourced = f"{ratchet('env', *directory).stdout}\necho $RATCHET_CLICKHOUSE_URL $RATCHET_S3_SECRET_KEY"
        words = subprocess.run(["sh", "-c", sourced], capture_output=True, text=True, check=True).stdout.split()
        assert words == [shown["RATCHET_CLICKHOUSE_URL"], shown["RATCHET_S3_SECRET_KEY"]]
        assert httpx.post(words[0], content=b"SELECT 1", trust_env=False).text == "1\n"
        assert words[1] not in up.stdout + json.dumps(report)
    finally:
        down = ratchet("down", *directory)
    assert (down.returncode, down.stdout) == (0, "stopped\n")
    assert not any(is_running(member) for member in record.services.values())


def test_an_interrupt_during_start_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ratchet.cli",
            "up",
            "--dir",
            str(tmp_path),
            "--free-ports",
            "--only",
            "clickhouse,nats",
        ],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as starting:
        assert starting.stdout is not None
        first = starting.stdout.readline()
        assert "ready" in first
        children = psutil.Process(starting.pid).children()
        starting.send_signal(signal.SIGINT)
        rest, _ = starting.communicate(timeout=30)
    assert starting.returncode == 130
    assert "stopped" in rest
    assert not any(child.is_running() for child in children)
    assert read_record(tmp_path) is None
