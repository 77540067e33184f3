"""`ratchet url` prints one address, for scripts; `ratchet open` shows the console where there is a browser."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode
from ratchet.local.local_stack.orphans import birth
from ratchet.local.local_stack.state import MemberRecord, StackRecord, write_record
from tests.support.command_lines import ratchet


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stack whose supervisor is this process."""
    for name in [name for name in os.environ if name.startswith("RATCHET_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    born = birth(os.getpid())
    gateway = MemberRecord(
        pid=os.getpid(),
        started_at=0.0,
        born=born,
        url="http://127.0.0.1:7001",
        port=7001,
        health_port=7002,
        state="ready",
        restarts=0,
        reason=None,
    )
    env = {"RATCHET_NATS_URL": "nats://127.0.0.1:7003", "RATCHET_GATEWAY_URL": "http://127.0.0.1:7001"}
    record = StackRecord(
        pid=os.getpid(), born=born, stack_id="s", ready=True, services={"gateway": gateway}, stop_s=1.0, env=env
    )
    write_record(tmp_path, record)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ((), "http://127.0.0.1:7001/v1"),
        (("gateway",), "http://127.0.0.1:7001"),
        (("gateway_health",), "http://127.0.0.1:7002"),
        (("nats",), "nats://127.0.0.1:7003"),
    ],
)
def test_one_address_is_one_line(
    stack: Path, words: tuple[str, ...], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["url", *words, "--dir", str(stack)]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{address}\n"


def test_all_addresses_are_one_document(stack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["url", "--json", "--dir", str(stack)]) == ExitCode.DONE
    document = json.loads(capsys.readouterr().out)
    assert document["base_url"] == "http://127.0.0.1:7001/v1"
    assert set(document["addresses"]) == {"nats", "gateway", "gateway_health"}


def test_a_part_that_does_not_run_is_refused_with_those_that_do(
    stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["url", "coordinator", "--dir", str(stack)]) == ExitCode.FAILED
    assert "there are nats, gateway, gateway_health" in capsys.readouterr().err
    assert main(["url", "--dir", str(stack / "none")]) == ExitCode.NO_STACK


def test_settings_of_a_service_show_the_ports_that_running_stack_gave_it(
    stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "show", "gateway", "--json", "--dir", str(stack)]) == ExitCode.DONE
    settings = {one["setting"]: one for one in json.loads(capsys.readouterr().out)["services"]["gateway"]}
    assert (settings["port"]["value"], settings["port"]["origin"]) == (7001, "ratchet up (RATCHET_GATEWAY_PORT)")
    assert settings["health_port"]["value"] == 7002
    assert settings["data_dir"]["value"] == str(stack / "data" / "gateway")


URL = "http://127.0.0.1:8084"


def opened_with(browser: Path, *options: str) -> subprocess.CompletedProcess[str]:
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    return ratchet("open", "--dir", str(browser.parent), *options, RATCHET_CONSOLE_URL=URL, BROWSER=str(browser))


def test_the_address_is_printed_and_opened(tmp_path: Path) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    answer = opened_with(browser)
    assert (answer.returncode, answer.stdout) == (0, f"{URL}/\n"), answer.stderr
    assert opened.read_text() == f"{URL}/"


def test_no_browser_is_asked_for_none(tmp_path: Path) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\ntouch {opened}\n")
    answer = opened_with(browser, "--no-browser", "--json")
    assert json.loads(answer.stdout) == {"url": f"{URL}/", "opened": False}
    assert not opened.exists()
