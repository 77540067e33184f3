"""Whatever the operator types, a command answers with an exit code and a line, never with a traceback."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.message import encode
from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode
from ratchet.core.rules.texts import NAME_CHARACTERS
from tests.support.command_lines import COMMANDS, NAMES, ODD, lines
from tests.support.snapshot_rows import snapshot_manifest

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


def test_what_can_be_no_name_of_a_trajectory_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("", "a\nb", "x" * (NAME_CHARACTERS + 1)):
        for line in (["trajectories", "show", name], ["feedback", name, "--thumbs", "up"]):
            assert main(line) == ExitCode.USAGE
            output = capsys.readouterr().err
            assert "is no trajectory's name" in output
            assert output.count("\n") == 1


@pytest.mark.parametrize("rest", [("--dry-run",), ("--users", "users")], ids=["dry_run", "made"])
@pytest.mark.parametrize(
    ("name", "role", "message"),
    [
        ("-x", "support", "'-x' cannot be a user's name: it begins with a letter or a digit"),
        ("Bot", "support", "'Bot' cannot be a user's name"),
        ("bot", "Support", "'Support' is not a role's name"),
    ],
)
def test_what_can_be_no_user_of_the_broker_is_wrong_usage(
    name: str, role: str, message: str, rest: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", "add", "--role", role, *rest, "--", name]) == ExitCode.USAGE
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.endswith("see `ratchet broker add --help`\n")


def test_an_agent_of_the_broker_may_work_in_every_role(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "add", "b-1_x", "--role", "*", "--dry-run"]) == ExitCode.DONE
    assert "add b-1_x" in capsys.readouterr().out


def test_what_is_no_number_of_a_version_or_letter_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("rollout start support 0", "rollout start support newest", "deadletters show x"):
        assert main(line.split()) == ExitCode.USAGE
        assert "`latest`" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"ratchet {version('ratchet-rl')}\n"


def test_what_can_be_no_role_is_one_line_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "train A/b",
        "jobs --role A/b",
        "policies list A/b",
        "import tau-bench f --role A/b",
    ):
        assert main(line.split()) == ExitCode.USAGE
        output = capsys.readouterr().err
        assert output.startswith("ratchet: Invalid value for ")
        assert "'A/b' is not a role's name" in output
        assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("--set max_steps=9", "--set: not beside --request"),
        ("--algorithm sft --samples 5 --dry-run", "--algorithm, --samples: not beside --request"),
        ("--priority normal", "--priority: not beside --request"),
        ("other", "r.json is a request for support, not for other"),
        ("support other", "r.json is a request for support, not for support, other"),
        ("--timeout 5", "--timeout is for --wait"),
    ],
)
def test_nothing_beside_a_request_is_dropped_silently(
    typed: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("r.json").write_text('{"algorithm": "sft", "role": "support"}')
    assert main(["train", *typed.split(), "--request", "r.json"]) == ExitCode.USAGE
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["", "support", "--wait --timeout 5", "--dry-run --json"])
def test_a_request_goes_with_its_own_role_and_with_ways_to_send_it(typed: str) -> None:
    Path("r.json").write_text('{"algorithm": "sft", "role": "support"}')
    assert main(["train", *typed.split(), "--request", "r.json"]) == ExitCode.NO_STACK


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("job-1 --algorithm dpo --role x", "--role, --algorithm: job-1 has its rows already"),
        ("job-1 --min-reward 0.5", "--min-reward: job-1 has its rows already"),
        ("--row-tokens 5", "--row-tokens is for --model"),
    ],
)
def test_options_that_would_explain_nothing_are_refused(
    typed: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dataset", "explain", *typed.split()]) == ExitCode.USAGE
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("data argilla-export --input . --output out", ". is a directory, not a file"),
        ("data argilla-export --input file --output file2", "file2 is a file: name a directory to write to"),
        ("dataset build --output file", "file is a file: name a directory to write to"),
    ],
)
def test_a_directory_in_the_place_of_a_file_and_the_reverse_are_one_line(
    typed: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("file", "file2"):
        Path(name).write_text("{}")
    assert main(typed.split()) == ExitCode.FAILED
    assert capsys.readouterr().err == f"ratchet: {reason}\n"


@pytest.mark.parametrize("name", ["manifest.json", "rows.parquet"])
def test_a_built_dataset_replaces_no_files_of_something_else(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    Path("mine", name).write_text("{}")
    assert main(["dataset", "build", "--output", "mine"]) == ExitCode.FAILED
    assert capsys.readouterr().err == f"ratchet: mine has {name} of something else: name another directory\n"


def test_a_built_dataset_replaces_an_earlier_one() -> None:
    Path("mine").mkdir()
    Path("mine", "manifest.json").write_bytes(encode(snapshot_manifest()))
    Path("mine", "rows.parquet").touch()
    assert main(["dataset", "build", "--output", "mine"]) == ExitCode.NO_STACK


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("--file f.jsonl --rater ann", "--rater: a record says that itself"),
        ("- --prompt p --a x", "--prompt, --a: a record says that itself"),
        ("--prompt p --a x --b y", "a choice between two answers needs --choice too"),
        ("--rater ann", "a choice between two answers needs --prompt, --a, --b, --choice too"),
        ("", "give one of `-`, --file FILE"),
    ],
)
def test_a_preference_has_all_its_parts_from_one_place(
    typed: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preferences", "add", *typed.split()]) == ExitCode.USAGE
    assert reason in capsys.readouterr().err


def test_an_id_that_can_be_no_jobs_leads_to_the_jobs_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RATCHET_COORDINATOR_URL", "http://127.0.0.1:9")
    for line in ("jobs show /", "cancel /", "dataset show /"):
        assert main(line.split()) == ExitCode.FAILED
        assert capsys.readouterr().err == "ratchet: no such job: /; `ratchet jobs` lists those that are kept\n"


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("", "gepa needs --reflector, --train-tasks and --validation-tasks"),
        ("--reflector m --train-tasks f", "a search for a better prompt needs --validation-tasks too"),
        ("--answer-price 1", "--answer-price is two prices, as 2.5,10: '1' is not"),
    ],
)
def test_search_that_lacks_something_is_refused_before_it_is_asked_for(
    typed: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = "--reflector m --train-tasks f --validation-tasks g"
    options = f"{whole} {typed}" if typed.startswith(("--budget", "--answer")) else typed
    assert main(["train", "support", "--algorithm", "gepa", *options.split()]) == ExitCode.USAGE
    assert reason in capsys.readouterr().err
