"""How a program without configured addresses finds the local stack, and which records it ignores."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ratchet.core.service.discovery import STATE_FILE, address, stack_env

ENV = {"RATCHET_NATS_URL": "nats://127.0.0.1:4333"}


def record(directory: Path, pid: object, env: object = ENV) -> Path:
    (directory / STATE_FILE).write_text(json.dumps({"pid": pid, "env": env, "ready": True}))
    return directory


def test_the_record_of_a_running_stack_gives_its_addresses(tmp_path: Path) -> None:
    assert stack_env(record(tmp_path, os.getpid()), os.geteuid()) == ENV


def test_the_record_of_another_user_is_ignored(tmp_path: Path) -> None:
    assert stack_env(record(tmp_path, os.getpid()), os.geteuid() + 1) == {}


@pytest.mark.parametrize("pid", [2**22 + 1, 2**40, 10**30, 0, -1, "1", None])
def test_the_record_of_a_process_that_does_not_run_is_ignored(tmp_path: Path, pid: object) -> None:
    assert stack_env(record(tmp_path, pid), os.geteuid()) == {}


def test_an_absent_or_unreadable_record_gives_no_address(tmp_path: Path) -> None:
    assert stack_env(tmp_path, os.geteuid()) == {}
    assert stack_env(record(tmp_path, os.getpid(), env=["nats"]), os.geteuid()) == {}
    (tmp_path / STATE_FILE).write_bytes(b"\xff{")
    assert stack_env(tmp_path, os.geteuid()) == {}


def test_the_environment_overrides_the_record_of_the_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_DIR", str(record(tmp_path, os.getpid())))
    monkeypatch.delenv("RATCHET_NATS_URL", raising=False)
    assert address("RATCHET_NATS_URL") == ENV["RATCHET_NATS_URL"]
    assert address("RATCHET_GATEWAY_URL") is None
    monkeypatch.setenv("RATCHET_NATS_URL", "nats://elsewhere:4222")
    assert address("RATCHET_NATS_URL") == "nats://elsewhere:4222"
