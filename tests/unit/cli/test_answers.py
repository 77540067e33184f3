"""What commands make of answers, options and files."""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec
import pytest
import typer

from ratchet.cli.connections import settings_of
from ratchet.cli.data_options import dataset_of
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import NoStack
from ratchet.cli.status import ServiceStatus, StatusReport
from ratchet.cli.training import hyperparameters, read_request
from ratchet.core.errors import NotFound, Rejected
from ratchet.local.local_stack.orphans import birth
from ratchet.local.local_stack.state import MemberRecord, StackRecord, write_record


def test_hyperparameters_are_read_as_json_and_nest() -> None:
    options = ["learning_rate=1e-5", "full_finetune=true", "lora.r=8", "lora.alpha=16.0", "loss_normalization=token"]
    assert hyperparameters(options) == {
        "learning_rate": 1e-5,
        "full_finetune": True,
        "lora": {"r": 8, "alpha": 16.0},
        "loss_normalization": "token",
    }


def test_a_hyperparameter_without_a_value_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="NAME=VALUE"):
        hyperparameters(["epochs"])


def test_a_request_file_exists_and_is_an_object(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file: "):
        read_request(tmp_path / "absent.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(Rejected, match="not a JSON object"):
        read_request(tmp_path / "list.json")
    (tmp_path / "good.json").write_text('{"algorithm": "sft"}')
    assert read_request(tmp_path / "good.json") == {"algorithm": "sft"}


def record(born: str) -> StackRecord:
    env = {"RATCHET_COORDINATOR_URL": "http://127.0.0.1:5/"}
    return StackRecord(pid=os.getpid(), born=born, stack_id="x", ready=True, services={}, stop_s=12.0, env=env)


def test_a_running_stack_gives_the_addresses_of_its_services(tmp_path: Path) -> None:
    stack = record(birth(os.getpid()))
    member = MemberRecord(
        pid=os.getpid(),
        started_at=0.0,
        born=stack.born,
        url="",
        port=5,
        state="ready",
        restarts=0,
        health_port=None,
        reason=None,
    )
    write_record(tmp_path, msgspec.structs.replace(stack, services={"rl_coordinator": member}))
    assert locate(tmp_path).url("coordinator") == "http://127.0.0.1:5"


def test_a_service_that_is_not_part_of_the_stack_has_no_address(tmp_path: Path) -> None:
    write_record(tmp_path, record(birth(os.getpid())))
    with pytest.raises(NoStack, match="rl_coordinator is not part of the stack"):
        locate(tmp_path).url("coordinator")
    with pytest.raises(NoStack, match=r"analyst is not part of the stack in .*`ratchet up --analyst`"):
        locate(tmp_path).url("analyst")


def test_a_stack_whose_supervisor_is_gone_does_not_count(tmp_path: Path) -> None:
    write_record(tmp_path, record("another boot"))
    assert locate(tmp_path).record is None
    with pytest.raises(NoStack, match=rf"no stack runs in {tmp_path}: `ratchet up --dir {tmp_path}` starts one"):
        locate(tmp_path).url("gateway")


def test_an_address_in_the_environment_stands_for_a_system_elsewhere(tmp_path: Path) -> None:
    given = Endpoints(tmp_path, None, {"RATCHET_NATS_URL": "nats://broker:4222"})
    assert settings_of(given).nats_url == "nats://broker:4222"
    assert given.url("gateway") == "http://127.0.0.1:8080"


def test_processes_without_their_supervisor_are_named_with_their_pids(tmp_path: Path) -> None:
    left = Endpoints(tmp_path, None, {}, {"nats": [11], "gateway": [12, 13]})
    with pytest.raises(NoStack, match=rf"nats 11, gateway 12 13\): `ratchet down --dir {tmp_path}` ends them"):
        left.require()


def report(running: bool, state: str, errors: dict[str, str]) -> StatusReport:
    service = ServiceStatus(state=state, pid=1, url="http://h", restarts=0, reason=None)
    return StatusReport(running=running, directory="d", pid=1, services={"gateway": service}, errors=errors)


def test_exit_code_of_status_distinguishes_ready_from_faulty_from_absent() -> None:
    assert report(True, "ready", {}).exit_code == 0
    assert report(True, "crashed", {}).exit_code == 3
    assert report(True, "ready", {"nats": "no answer"}).exit_code == 3
    assert report(False, "ready", {"nats": "no answer", "clickhouse": "no answer"}).exit_code == 4


def test_a_setting_cannot_be_a_value_and_hold_others() -> None:
    with pytest.raises(typer.BadParameter, match=r"--set lora\.r=2: lora already has a value"):
        hyperparameters(["lora=1", "lora.r=2"])


def test_a_request_has_only_the_filters_that_were_chosen() -> None:
    assert dataset_of(5, source=["a"], domain=[]) == {"sample_size": 5, "filter": {"sources": ["a"], "held_out": 0.1}}


@pytest.mark.parametrize("bound", [math.nan, math.inf])
def test_a_bound_that_is_no_number_is_refused_and_not_ignored(bound: float) -> None:
    with pytest.raises(typer.BadParameter, match="--max-reward is a finite number"):
        dataset_of(max_reward=bound)
