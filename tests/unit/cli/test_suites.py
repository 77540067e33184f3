"""`ratchet suites`: the tasks of suites that are a role's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.cli.endpoints import Endpoints
from ratchet.cli.suites import tasks_of
from ratchet.core.errors import ConfigError, NotFound, Rejected

HELDOUT, SUITES = "RATCHET_CANARY_TASK_FILES", "RATCHET_CANARY_SAFETY_SUITES"


def asked(suite: str, *roles: str, **env: str) -> list[str]:
    file = tasks_of(suite, roles, Endpoints(Path(), None, env))
    return [graded.task.id for graded in file.tasks]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": "t", "messages": [{"role": "user", "content": "?"}], "expect": {"refusal": false}}\n')
    return str(path)


def test_tasks_of_a_role_are_those_that_the_deployer_plays(file: str) -> None:
    assert asked("heldout", "support", **{HELDOUT: file}) == ["t"]
    assert asked("heldout", "gpt", "support", **{HELDOUT: f'{{"*": "/none", "support": "{file}"}}'}) == ["t"]
    assert asked("regression", "support", **{SUITES: f'{{"*": {{"regression": "{file}", "minutes": 2}}}}'}) == ["t"]


@pytest.mark.parametrize(
    ("suite", "setting", "error", "words"),
    [
        ("heldout", "", NotFound, f"{HELDOUT} names no task file of support for suite heldout: set it, or give"),
        ("heldout", '{"sales": "x"}', NotFound, f"{HELDOUT} names no task file of support"),
        ("heldout", "/nowhere/tasks.jsonl", NotFound, "no such file: /nowhere/tasks.jsonl"),
        ("heldout", "{", ConfigError, f"{HELDOUT}: "),
        ("regression", '{"support": {}}', NotFound, f"{SUITES} names no task file of support for suite regression"),
    ],
)
def test_role_without_a_file_sees_which_setting_names_one(
    suite: str, setting: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        asked(suite, "support", **{HELDOUT if suite == "heldout" else SUITES: setting})


def test_suite_of_roles_without_a_role_is_refused() -> None:
    with pytest.raises(Rejected, match="name the role"):
        asked("heldout")
