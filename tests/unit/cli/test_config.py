"""`ratchet config` shows where each setting comes from, and no secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.canary_deployer.settings import Settings as DeployerSettings
from ratchet.cli.__main__ import main
from ratchet.core.service.settings import read


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a settings file, and an environment without ours."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ratchet.toml").write_text("log_level = 'warning'\n[gateway]\nrecorders = 2\n")
    monkeypatch.setenv("RATCHET_S3_SECRET_KEY", "hush")
    monkeypatch.setenv("RATCHET_CLICKHOUSE_URL", "http://ratchet:hush@host:8123")
    monkeypatch.setenv("RATCHET_NATS_URL", "ratchet:hush@nats:4222")
    monkeypatch.setenv("RATCHET_KEYS", '[{"name": "a", "key": "hush-0123456789a", "scopes": ["admin"]}]')
    return tmp_path


def test_what_is_set_is_shown_once_with_its_origin_and_secrets_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--json"]) == 0
    answer = capsys.readouterr().out
    assert "hush" not in answer
    services = json.loads(answer)["services"]
    of_all = {one["setting"]: (one["value"], one["origin"]) for one in services["(all)"]}
    assert of_all["log_level"] == ("warning", "log_level in ratchet.toml")
    assert of_all["s3_secret_key"] == ("(secret)", "RATCHET_S3_SECRET_KEY")
    assert of_all["clickhouse_url"] == ("http://***@host:8123", "RATCHET_CLICKHOUSE_URL")
    assert services["gateway"] == [{"setting": "recorders", "value": 2, "origin": "gateway.recorders in ratchet.toml"}]
    assert services["rl_coordinator"] == []


def test_all_settings_of_one_service_are_shown_by_either_of_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "coordinator"]) == 0
    text = capsys.readouterr().out
    assert "settings file: ratchet.toml" in text
    assert "minimum_rows" in text
    assert "hush" not in text
    assert main(["config", "show", "gatewy"]) == 1
    assert "did you mean gateway?" in capsys.readouterr().err


def test_a_check_reports_everything_at_once(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    assert main(["config", "check"]) == 0
    assert "nothing is wrong in the environment and ratchet.toml" in capsys.readouterr().out
    (project / "ratchet.toml").write_text("[gateway]\nupstreems = []\n[reward_computer]\nwindow = 'x'\n")
    assert main(["config", "check"]) == 1
    error = capsys.readouterr().err
    assert "2 settings are wrong:" in error
    assert "did you mean upstreams?" in error
    assert "reward_computer.window in ratchet.toml" in error
    assert main(["config", "check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 1


def test_a_start_is_refused_for_the_same_faults(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    (project / "ratchet.toml").write_text("[gatway]\n[stack]\nfree_ports = true\n")
    assert main(["up", "--dry-run"]) == 1
    assert "there is no table gatway in ratchet.toml; did you mean gateway?" in capsys.readouterr().err
    assert not (project / ".ratchet").exists()


@pytest.mark.parametrize("command", [["config", "check"], ["up", "--dry-run"]])
def test_ports_and_addresses_of_no_use_are_refused_in_a_line_each(
    capsys: pytest.CaptureFixture[str], project: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    (project / "ratchet.toml").write_text("health_port = 70000\n[stack]\nfree_ports = true\n")
    monkeypatch.setenv("RATCHET_CONSOLE_PORT", "70001")
    monkeypatch.setenv("RATCHET_CONSOLE_COORDINATOR_URL", "file:///etc/passwd")
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "health_port in ratchet.toml: Input should be less than or equal to 65535" in error
    assert "RATCHET_CONSOLE_PORT: Input should be less than or equal to 65535" in error
    assert "RATCHET_CONSOLE_COORDINATOR_URL: 'file:///etc/passwd' is no address of a server" in error


@pytest.mark.parametrize("command", [["config", "check"], ["up", "--dry-run"]])
def test_absent_task_file_is_refused_before_a_start(
    capsys: pytest.CaptureFixture[str], project: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    (project / "ratchet.toml").write_text("[stack]\nfree_ports = true\n")
    files = {"support": "/no/such.jsonl", "*": "s3://ratchet/tasks.jsonl"}
    monkeypatch.setenv("RATCHET_CANARY_TASK_FILES", json.dumps(files))
    assert main(command) == 1
    assert "RATCHET_CANARY_TASK_FILES[support]: there is no file '/no/such.jsonl'" in capsys.readouterr().err
    assert read(DeployerSettings).task_files == files
