"""`ratchet doctor` finds what is wrong, says what to do, and ends although something hangs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ratchet.bus.envelope import Record
from ratchet.bus.spool import Spool
from ratchet.cli.doctor import Checked, code_of, examined
from ratchet.cli.doctor_checks import (
    MACHINE,
    SLOW_DISK_S,
    Finding,
    State,
    check_disk_speed,
    check_logs,
    check_processes,
    check_spools,
    check_stack,
    check_start,
    ok,
    speed_of,
)
from ratchet.cli.doctor_servers import SERVERS, check_routes
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.exit_codes import ExitCode
from ratchet.core.contract.http.rollouts import PoliciesOut
from ratchet.local.local_stack.log_files import LOG_BYTES
from ratchet.local.local_stack.orphans import birth
from ratchet.local.local_stack.state import MemberRecord, StackRecord, write_record
from tests.support.command_lines import ratchet
from tests.support.contract_files import http_example


def nothing_at(directory: Path) -> Endpoints:
    return Endpoints(directory, None, {"RATCHET_DATA_DIR": str(directory / "data")})


def stack_of(directory: Path, pid: int) -> Endpoints:
    born = birth(pid)
    member = MemberRecord(
        pid=pid, started_at=0.0, born=born, url="", port=1, health_port=None, state="ready", restarts=0, reason=None
    )
    record = StackRecord(pid=pid, born=born, stack_id="s", ready=True, services={"nats": member}, stop_s=1.0, env={})
    return Endpoints(directory, record, {})


def checked(state: State) -> Checked:
    return Checked(check="one", state=state, sentence="", remedy=None)


def test_the_exit_code_is_that_of_the_worst() -> None:
    assert code_of([checked("ok")]) == ExitCode.DONE
    assert code_of([checked("warning"), checked("ok")]) == ExitCode.PARTLY
    assert code_of([checked("warning"), checked("failure")]) == ExitCode.FAILED


def test_a_check_that_hangs_fails_and_holds_up_no_other(tmp_path: Path) -> None:
    never = threading.Event()

    def hang(endpoints: Endpoints) -> Finding:
        never.wait()
        return ok("at last")

    results = examined(nothing_at(tmp_path), {"one": hang, "two": lambda _: ok("fine")}, 0.2)
    never.set()
    assert [(one.check, one.state) for one in results] == [("one", "failure"), ("two", "ok")]
    assert "no answer within 0.2 s" in results[0].sentence


def test_a_check_that_breaks_fails_and_costs_no_other_result(tmp_path: Path) -> None:
    def broken(endpoints: Endpoints) -> Finding:
        raise KeyError("gone between list and info")

    results = examined(nothing_at(tmp_path), {"one": broken, "two": lambda _: ok("fine")})
    assert [(one.check, one.state) for one in results] == [("one", "failure"), ("two", "ok")]
    assert results[0].sentence.startswith("could not be checked: KeyError")


@pytest.mark.timeout(120)
def test_servers_that_take_connections_and_answer_nothing_are_failures(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        env = {
            "RATCHET_NATS_URL": f"nats://127.0.0.1:{port}",
            "RATCHET_CLICKHOUSE_URL": f"http://127.0.0.1:{port}",
            "RATCHET_S3_ENDPOINT": f"http://127.0.0.1:{port}",
            "RATCHET_ENGINE_URL": f"http://127.0.0.1:{port}",
        }
        done = ratchet("doctor", "--json", "--dir", str(tmp_path), **env)
    assert done.returncode == ExitCode.FAILED
    states = {one["check"]: one["state"] for one in json.loads(done.stdout)["checks"]}
    servers = SERVERS.keys() - {"upstreams", "routes"}  # of a gateway and of engines that the settings name
    assert {name: states[name] for name in servers} == dict.fromkeys(servers, "failure")


def test_a_machine_without_a_stack_learns_how_to_start_one(tmp_path: Path) -> None:
    results = {one.check: one for one in examined(nothing_at(tmp_path))}
    assert results.keys() == MACHINE.keys()
    assert "ratchet up" in (results["stack"].remedy or "")


def test_start_that_fails_for_another_reason_gets_no_advice_on_ports(tmp_path: Path) -> None:
    file = tmp_path / "no folder"
    file.touch()
    finding = check_start(nothing_at(file))
    assert (finding.state, finding.remedy, "--free-ports" in finding.sentence) == ("failure", None, False)


def test_the_record_of_a_stack_that_is_gone_is_seen(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = stack_of(tmp_path, gone.pid).record
    assert record is not None
    write_record(tmp_path, record)
    gone.communicate()
    assert "of a stack that is gone" in check_stack(nothing_at(tmp_path)).sentence


def test_server_that_is_not_ready_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    endpoints = stack_of(tmp_path, os.getpid())
    assert endpoints.record is not None
    broken = replace(endpoints.record.services["nats"], state="not ready", reason="RL_TURNS write error")
    finding = check_processes(Endpoints(tmp_path, replace(endpoints.record, services={"nats": broken}), {}))
    assert finding.state == "failure"
    assert finding.sentence == "nats is not ready: RL_TURNS write error"


def test_a_process_that_is_stopped_or_gone_is_named(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    endpoints = stack_of(tmp_path, process.pid)
    assert check_processes(endpoints).state == "ok"
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    assert "is stopped" in check_processes(endpoints).sentence
    process.kill()
    process.communicate()
    assert "is gone" in check_processes(endpoints).sentence


def test_a_log_that_nothing_cuts_is_named(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "gateway.log"
    log.parent.mkdir()
    log.touch()
    assert check_logs(nothing_at(tmp_path)).state == "ok"
    os.truncate(log, 3 * LOG_BYTES)
    assert "gateway.log" in check_logs(nothing_at(tmp_path)).sentence


def test_records_that_no_process_sends_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "client-spool" / "0"
    spool = Spool(folder, 1 << 20)
    spool.append(Record("subject", {}, b"{}"))
    assert str(folder) not in check_spools(nothing_at(tmp_path)).sentence, "a process is at work there"
    spool.close()
    waiting = check_spools(nothing_at(tmp_path))
    assert (waiting.state, f"1 record waits in {folder}" in waiting.sentence) == ("warning", True)
    other = Endpoints(tmp_path / "another stack", None, {})
    assert str(folder) not in check_spools(other).sentence


def test_spool_of_other_programs_is_named_and_is_no_fault_of_this_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spool = Spool(tmp_path / ".ratchet" / "data" / "client-spool" / "0", 1 << 20)
    spool.append(Record("subject", {}, b"{}"))
    spool.close()
    seen = check_spools(Endpoints(tmp_path / "another stack", None, {}))
    assert seen.state == "ok"
    assert f"{spool.directory}, of programs that were started in {tmp_path}, not of this stack" in seen.sentence
    assert check_spools(Endpoints(tmp_path / ".ratchet", None, {})).state == "warning"


class Deployer(BaseHTTPRequestHandler):
    """Answers every question with the contract's example: the role `support` has a stable policy."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(msgspec.json.encode(http_example("deployer", PoliciesOut)))


class Engine(BaseHTTPRequestHandler):
    """Has no policy, which it tells to callers with its key."""

    def do_GET(self) -> None:
        knows = self.headers["authorization"] == "Bearer secret"
        self.send_response(200 if knows else 401)
        self.end_headers()
        refusal = {"error": {"message": "incorrect API key", "code": "invalid_api_key"}}
        self.wfile.write(json.dumps({"data": []} if knows else refusal).encode())


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("key", "deployer", "advice"),
    [
        ("secret", "http://127.0.0.1:1", "`ratchet logs canary_deployer` has its last lines"),
        ("wrong", "http://127.0.0.1:1", "set RATCHET_ENGINE_API_KEY to the key that the engine asks for"),
        ("secret", None, "the deployer loads them; see its log"),
    ],
)
def test_advice_on_the_engine_fits_the_step_that_failed(
    tmp_path: Path, key: str, deployer: str | None, advice: str
) -> None:
    with serving(Engine) as engine, serving(Deployer) as answering:
        env = {"RATCHET_ENGINE_URL": engine, "RATCHET_ENGINE_API_KEY": key}
        env["RATCHET_DEPLOYER_URL"] = deployer or answering
        assert SERVERS["engine"](Endpoints(tmp_path, None, env)).remedy == advice


@pytest.mark.parametrize(
    ("roles", "state", "words"),
    [
        (["sales"], "failure", "no engine serves support (support@2-2b7d2b7d): every call gets a 502"),
        (["sales", "*"], "ok", "an engine serves each of support"),
        (["support"], "ok", "an engine serves each of support"),
    ],
)
def test_a_role_whose_engine_was_configured_away_is_named(
    tmp_path: Path, roles: list[str], state: State, words: str
) -> None:
    engines = json.dumps([{"name": "one", "kind": "vllm", "urls": ["http://127.0.0.1:1"], "roles": roles}])
    with serving(Deployer) as deployer:
        seen = check_routes(Endpoints(tmp_path, None, {"RATCHET_DEPLOYER_URL": deployer, "RATCHET_ENGINES": engines}))
    assert (seen.state, seen.sentence) == (state, words)


def test_without_a_list_of_engines_one_serves_all_roles(tmp_path: Path) -> None:
    env = {"RATCHET_NATS_URL": "nats://127.0.0.1:1"}
    assert check_routes(Endpoints(tmp_path, None, env)) == ok("one engine serves all roles")


def test_a_disk_that_is_slow_more_often_than_not_is_named(tmp_path: Path) -> None:
    quick, slow = SLOW_DISK_S / 10, SLOW_DISK_S * 2
    assert speed_of([quick, quick, slow]) == ok("a small durable write takes 25.0 ms")
    seen = speed_of([quick, slow, slow])
    assert (seen.state, "takes 500.0 ms: rewards and trainings lag" in seen.sentence) == ("warning", True)


def test_the_disk_is_measured_where_the_state_lies_and_nothing_stays_there(tmp_path: Path) -> None:
    assert check_disk_speed(nothing_at(tmp_path)).sentence.startswith("a small durable write takes ")
    assert list(tmp_path.iterdir()) == []
    assert check_disk_speed(nothing_at(tmp_path / "absent")) == ok("nothing is stored here yet")
