"""Commands on a running stack: their output for people and for programs, and no traceback whatever is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.ids import short_ids
from tests.support.command_lines import COMMANDS, ODD, lines, ratchet

pytestmark = pytest.mark.slow

SERVICES = "trajectory_collector,reward_computer,rl_coordinator,canary_deployer"
ENDING = {("up",), ("down",), ("trajectories", "tail")}
"""Commands that would begin or end the stack, or never end themselves."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A stack without torch, with three rewarded trajectories of the role airline."""
    path = tmp_path_factory.mktemp("cli") / "a state"
    try:
        up = ratchet("up", "--dir", str(path), "--free-ports", "--only", SERVICES, "--detach")
        assert up.returncode == 0, up.stderr
        records = path / "records.json"
        records.write_text(json.dumps([record(task) for task in range(3)]))
        assert imported(path, "airline", "--dry-run")["published"] == 3
        assert imported(path, "airline")["published"] == 3
        looks = [rows(path)]
        while looks[-1].get("rewards", 0) < 3:  # each look takes a while by itself
            assert len(looks) < 60, looks[-1]
            looks.append(rows(path))
        yield path
    finally:  # also after a start that took too long: its supervisor runs on by itself
        down = ratchet("down", "--dir", str(path))
        assert down.returncode in (ExitCode.DONE, ExitCode.NO_STACK), down.stderr


def record(task: int) -> dict[str, Any]:
    chat = [{"role": "user", "content": f"task {task}"}, {"role": "assistant", "content": "done"}]
    return {"task_id": task, "trial": 0, "reward": 1.0, "traj": chat}


def imported(directory: Path, role: str, *more: str) -> dict[str, Any]:
    words = ("--role", role, "--json", *more, "--dir", str(directory))
    done = ratchet("import", "tau-bench", str(directory / "records.json"), *words)
    return {**json.loads(done.stdout), "code": done.returncode}


def rows(directory: Path) -> dict[str, int]:
    return json.loads(ratchet("status", "--json", "--dir", str(directory)).stdout)["rows"]


def asked(directory: Path, *more: str) -> dict[str, Any]:
    """A job that is accepted; no worker runs that could take it."""
    words = ("train", "airline", "--algorithm", "sft", "--base-model", "none", "--json")
    done = ratchet(*words, *more, "--dir", str(directory))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


WAITED = "queue_wait_s"


def jobs(directory: Path) -> list[dict[str, Any]]:
    """Without how long they have waited, which grows from one answer to the next."""
    shown = json.loads(ratchet("jobs", "--json", "--dir", str(directory)).stdout)["jobs"]
    return [{name: value for name, value in job.items() if name != WAITED} for job in shown]


def in_one_process(tmp_path: Path, commands: list[list[str]]) -> list[tuple[int, str, str]]:
    """Exit code, standard error and standard output of each; an interpreter starts slower than most commands run."""
    program = tmp_path / "commands.py"
    program.write_text(
        "import contextlib, io, json, sys\n"
        "from ratchet.cli.__main__ import main\n"
        "for line in json.load(sys.stdin):\n"
        "    stderr, stdout = io.StringIO(), io.StringIO()\n"
        "    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):\n"
        "        code = main(line)\n"
        "    print(json.dumps([int(code), stderr.getvalue(), stdout.getvalue()]))\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        check=False,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,  # some commands write where they are typed
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.timeout(400)  # every command with every odd value
def test_odd_values_get_one_line_from_a_running_stack(directory: Path, tmp_path: Path) -> None:
    typed: list[list[str]] = []
    for words, command in COMMANDS:
        where = [f"--dir={directory}"] if any("--dir" in option.opts for option in command.params) else []
        tried = [] if words in ENDING else lines(words, command, ODD[0])
        typed += [[*words, *where, *line[len(words) :]] for line in tried]
    for line, (code, stderr, _) in zip(typed, in_one_process(tmp_path, typed), strict=True):
        assert code in (0, 1, 2, 3, 4), line
        assert code in (0, 3) or stderr.startswith("ratchet: "), (line, stderr)


def test_an_import_is_counted_once_and_keeps_its_role(directory: Path) -> None:
    again = imported(directory, "airline")
    assert (again["published"], again["present"], again["code"]) == (0, 3, 0)
    other = imported(directory, "hotel")
    assert (other["published"], other["elsewhere"], other["code"]) == (0, {"airline": 3}, 3)


def completed(typed: str, directory: Path) -> list[str]:
    """The completions that bash would offer for the last word."""
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1), "_RATCHET_COMPLETE": "complete_bash"}
    script = "from ratchet.cli.__main__ import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, **words, "RATCHET_DIR": str(directory)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_names_are_completed_from_the_stack_and_silently_not_without_one(directory: Path, tmp_path: Path) -> None:
    job = asked(directory)["training_job_id"]
    # A stack that is slow to answer gives no names, silently.
    for typed, expected in (("jobs --ro", "--role"), ("jobs --role ai", "airline"), (f"cancel {job}", job)):
        answers = (completed(f"ratchet {typed}", directory) for _ in range(5))
        assert next(filter(None, answers), None) == [expected]
    assert completed("ratchet jobs --role ai", tmp_path / "nowhere") == []


def test_an_unknown_role_is_the_same_line_everywhere(directory: Path, tmp_path: Path) -> None:
    typed = (
        "capture report --role",
        "stats --role",
        "jobs --role",
        "policies list",
        "policies show",
        "rollout status",
        "trajectories list --role",
        "plan --role",
        "preferences export none.jsonl --role",
        "dataset build --role",
    )
    done = in_one_process(tmp_path, [[*line.split(), "no_such_role", "--dir", str(directory)] for line in typed])
    *others, (code, built, _) = done
    for line, (other_code, stderr, _) in zip(typed, others, strict=False):
        assert (other_code, stderr) == (1, "ratchet: no such role: no_such_role; known: airline\n"), line
    assert code == 1
    assert built.endswith("; roles with rewards, jobs or policies: airline\n")


def test_every_listing_is_an_object_with_a_named_list(directory: Path, tmp_path: Path) -> None:
    listings = {
        "jobs": "jobs",
        "trajectories list": "trajectories",
        "preferences list": "preferences",
        "policies list": "roles",
        "rollout status": "rollouts",
        "deadletters list": "deadletters",
        "capture report": "roles",
        "stats --by key": "groups",
    }
    typed = [[*words.split(), "--json", "--dir", str(directory)] for words in listings]
    done = in_one_process(tmp_path, [*typed, ["contract", "list", "--json"]])
    for name, (_, _, printed) in zip([*listings.values(), "topics"], done, strict=True):
        assert isinstance(json.loads(printed)[name], list), name


def test_json_output_is_the_answer_of_the_service(directory: Path, tmp_path: Path) -> None:
    env = json.loads(ratchet("env", "--json", "--dir", str(directory)).stdout)
    job = asked(directory, "--set", "learning_rate=1e-5", "--set", "lora.r=8")["training_job_id"]
    answers = {
        "jobs": ("COORDINATOR", "/v1/jobs"),
        f"jobs show {job}": ("COORDINATOR", f"/v1/jobs/{job}"),
        f"jobs {job}": ("COORDINATOR", f"/v1/jobs/{job}"),
        "policies list": ("DEPLOYER", "/v1/policies"),
        "rollout status": ("DEPLOYER", "/v1/rollouts"),
    }
    done = in_one_process(tmp_path, [[*words.split(), "--json", "--dir", str(directory)] for words in answers])
    for (service, path), (_, _, printed) in zip(answers.values(), done, strict=True):
        answer = httpx.get(f"{env[f'RATCHET_{service}_URL']}{path}", trust_env=False).json()
        assert list(pairs(json.loads(printed))) == list(pairs(answer)), path


def pairs(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its path, in the document's order, but how long a job has waited until now."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    yield path, document if not items else type(document)
    for name, value in items:
        yield from pairs(None if name == WAITED else value, f"{path}/{name}")


def test_status_and_jobs_list_the_newest_job_first(directory: Path) -> None:
    newest = [asked(directory)["training_job_id"] for _ in range(2)][::-1]
    report = json.loads(ratchet("status", "--json", "--dir", str(directory)).stdout)
    for listed in (jobs(directory), report["jobs"]):
        assert [job["training_job_id"] for job in listed][:2] == newest


def test_a_job_is_listed_shown_and_cancelled(directory: Path) -> None:
    where, job = ("--dir", str(directory)), asked(directory)["training_job_id"]
    listed = ratchet("jobs", *where, NO_COLOR="1", COLUMNS="40")
    assert job in listed.stdout
    assert "\x1b" not in listed.stdout
    for shown in (ratchet("jobs", job, *where), ratchet("jobs", "show", job, *where)):
        assert "base model" in shown.stdout
        assert "curves:" not in shown.stdout  # no console runs
    misplaced = ratchet("jobs", *where, "show", job)
    assert (misplaced.returncode, misplaced.stdout) == (2, "")
    assert "options stand behind `show`" in misplaced.stderr
    assert json.loads(ratchet("cancel", job, "--json", *where).stdout)["training_job_id"] == job


def test_waiting_ends_with_the_job_and_exits_by_its_state(directory: Path) -> None:
    asked(directory)  # takes the only slot, so that the next one stays queued until it is cancelled
    before = {job["training_job_id"] for job in jobs(directory)}
    words = ("train", "airline", "--algorithm", "sft", "--base-model", "none", "--wait", "--json")
    command = [sys.executable, "-m", "ratchet.cli", *words, "--dir", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        new: set[str] = set()
        while not new:  # each look takes a while by itself
            assert waiting.poll() is None
            new = {job["training_job_id"] for job in jobs(directory)} - before
        assert ratchet("cancel", *new, "--dir", str(directory)).returncode == 0
        printed, wrong = waiting.communicate(timeout=60)
    assert (waiting.returncode, wrong) == (3, "")
    assert (json.loads(printed)["training_job_id"], json.loads(printed)["state"]) == (*new, "cancelled")


def test_the_beginning_of_an_id_and_latest_name_what_they_name_everywhere(directory: Path, tmp_path: Path) -> None:
    ids = [asked(directory)["training_job_id"] for _ in range(2)]
    where = ["--json", "--dir", str(directory)]
    trajectory = json.loads(ratchet("trajectories", "list", "--limit", "1", *where).stdout)["trajectories"][0]
    short = trajectory["trajectory_id"][:8]
    feedback = ["feedback", "--thumbs", "up", "--dry-run"]
    lines = [
        *(["jobs", name] for name in (short_ids(ids)[ids[0]], "latest", "airline@latest", ids[0][:4], "abcdef")),
        *(["trajectories", "show", name] for name in (short, "latest", "airline@latest", "no-such-name")),
        *([*feedback, name] for name in (short, "latest", "no-such-name")),
        [*feedback, "latest", "--role", "airline"],
        *(["dataset", "show", name] for name in ("latest", "abcdef")),
        *(["policies", "show", name] for name in ("latest", "airline@latest")),
        ["rollout", "start", "airline", "latest"],
        ["deadletters", "show", "latest"],
        ["keys", "revoke", "latest"],
    ]
    done = in_one_process(tmp_path, [[*line, *where] for line in lines])
    answers = [(code, json.loads(out)) for code, _, out in done]
    assert [answer["training_job_id"] for _, answer in answers[:3]] == [ids[0], ids[1], ids[1]]
    errors = [(answer.get("error") or {}).get("message", "") for _, answer in answers]
    assert f"{ids[0][:4]} begins the ids of several jobs: " in errors[3]
    assert "no such job: abcdef" in errors[4]
    assert answers[5][1]["trajectory"]["trajectory_id"] == trajectory["trajectory_id"]
    assert [code for code, _ in answers[5:8]] == [0] * 3
    for place in (9, 10, 12):  # the trajectory is known, and then the gateway is asked
        assert "gateway is not part of the stack" in errors[place]
    assert errors[8] == "no trajectory no-such-name is stored"
    assert "no trajectory no-such-name is stored; before" in errors[11]
    assert errors[13] in ("", "no job has a snapshot yet")  # the coordinator may be making it
    assert errors[14:] == [
        "no such job: abcdef; `ratchet jobs` lists those that are kept",
        "there is no policy yet",
        "there is no policy of airline yet",
        "airline has no policy yet",
        "there are no dead letters",
        errors[19],
    ]


def test_a_training_that_cannot_work_is_refused_at_once(directory: Path) -> None:
    refused = ratchet("train", "no_such_role", "--algorithm", "rloo", "--wait", "--dir", str(directory))
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "no_such_role has no policy to continue from: name its base_model (`--base-model`)" in refused.stderr
    before = [job["training_job_id"] for job in jobs(directory)]
    for how in ((), ("--dry-run",)):
        lost = ratchet("train", "airline", "--base-model", ".ratchet/none", *how, "--dir", str(directory))
        assert (lost.returncode, lost.stderr.count("\n")) == (1, 1)
        assert "base_model (`--base-model`) .ratchet/none: there is no such directory" in lost.stderr
    assert [job["training_job_id"] for job in jobs(directory)] == before


def test_refused_role_keeps_no_other_role_from_its_job(directory: Path) -> None:
    words = ("train", "airline", "no_such_role", "airline", "--algorithm", "sft", "--base-model", "none", "--json")
    before = len(jobs(directory))
    tried = ratchet(*words[:-1], "--dry-run", "--dir", str(directory))
    assert (tried.returncode, "would be queued" in tried.stdout, len(jobs(directory))) == (3, True, before)
    done = ratchet(*words, "--dir", str(directory))
    answer = json.loads(done.stdout)
    assert (done.returncode, len(jobs(directory))) == (3, before + 1)
    assert [(role, job["role"], job["algorithm"]) for role, job in answer["jobs"].items()] == [
        ("airline", "airline", "sft")
    ]
    assert "role no_such_role has no stored trajectory with a reward" in answer["refused"]["no_such_role"]


def test_a_dry_run_of_an_order_exits_like_the_order(directory: Path, tmp_path: Path) -> None:
    for order in ("start airline 1", "start no_such_role 1", "promote airline", "rollback no_such_role"):
        words = ["rollout", *order.split(), "--dir", str(directory)]
        real, tried = in_one_process(tmp_path, [words, [*words, "--dry-run"]])
        assert real == tried, order
        assert real[0] == 1, order


def test_a_printed_follow_up_can_be_pasted(tmp_path: Path) -> None:
    missing = ratchet("jobs", "--dir", str(tmp_path / "not here"))
    assert missing.stderr.split("`")[1] == f"ratchet up --dir '{tmp_path / 'not here'}'"
