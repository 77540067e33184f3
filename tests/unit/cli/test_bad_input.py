"""Whatever the operator types, a command answers with an exit code and a line, never with a traceback."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode
from ratchet.rules.trajectory_names import NAME_CHARACTERS
from tests.support.command_lines import COMMANDS, NAMES, ODD, lines

KNOWN_CODES = {int(code) for code in ExitCode}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory without a stack, and no address of one elsewhere."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RATCHET_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=NAMES)
def test_odd_values_get_an_answer(words: tuple[str, ...], command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for odd in ODD:
        for line in lines(words, command, odd):
            code = main(line)
            output = capsys.readouterr()
            assert code in KNOWN_CODES, line
            assert code == 0 or output.err.startswith("ratchet: "), line
            assert "Traceback" not in output.err, line


@pytest.mark.parametrize("words", [words for words, _ in COMMANDS], ids=" ".join)
def test_every_error_is_a_document_with_json(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*words, "--no-such-option", "--json"])
    output = capsys.readouterr()
    assert code == ExitCode.USAGE
    assert json.loads(output.out)["error"]["exit_code"] == ExitCode.USAGE
    assert f"ratchet {' '.join(words)} --help" in output.err


def test_a_group_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout"]) == ExitCode.USAGE
    assert "promote" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["jobs", "policies list", "rollout status", "deadletters list", "train"])
def test_a_role_that_can_be_none_and_a_missing_stack_are_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == ExitCode.NO_STACK
    assert capsys.readouterr().err == "ratchet: no stack runs in .ratchet: `ratchet up` starts one\n"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--port=nope=1", "there is no port 'nope'"),
        ("--port=gateway", "--port takes NAME=PORT"),
        ("--port=gateway=x", "'x' is not a port number"),
        ("--port=gateway=70000", "not between 1 and 65535"),
        ("--only=nope", "there is no service 'nope'"),
    ],
)
def test_a_wrong_port_or_service_is_wrong_usage(option: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--dry-run", option]) == ExitCode.USAGE
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.endswith("see `ratchet up --help`\n")


def test_a_wrong_port_in_the_environment_is_no_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_PORT_S3", "x")
    assert main(["up", "--dry-run"]) == ExitCode.FAILED


def test_what_can_be_no_trajectory_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("feedback ride-7 --thumbs up", "feedback ride-7 --thumbs up --dry-run"):
        assert main(line.split()) == ExitCode.USAGE
        output = capsys.readouterr().err
        assert "'ride-7' is no trajectory's id" in output
        assert output.count("\n") == 1


def test_what_can_be_no_name_of_a_trajectory_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("", "a\nb", "x" * (NAME_CHARACTERS + 1)):
        assert main(["trajectories", "show", name]) == ExitCode.USAGE
        output = capsys.readouterr().err
        assert "is no trajectory's name" in output
        assert output.count("\n") == 1


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"ratchet {version('ratchet-rl')}\n"


def test_what_can_be_no_role_is_one_line_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "train A/b",
        "jobs --role A/b",
        "policies list A/b",
        "rollout abort A/b",
        "import tau-bench f --role A/b",
    ):
        assert main(line.split()) == ExitCode.USAGE
        output = capsys.readouterr().err
        assert output.startswith("ratchet: Invalid value for ")
        assert "'A/b' is not a role's name" in output
        assert output.count("\n") == 1
