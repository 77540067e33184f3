"""Commands in the documentation and in the code are commands that the parser knows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ratchet.cli.__main__ import app
from tests.support.documented_commands import complaint, inline, mentions
from tests.support.pages import ROOT, name_of, pages
from tools.docs.cli_reference import reference

PAGES = pages()
SOURCES = sorted((ROOT / "services" / "ratchet").rglob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_and_option_in_the_documentation_exists(page: Path) -> None:
    assert [problem for one in mentions(page, PAGES[page]) if (problem := complaint(one.line))] == []


def test_every_command_that_the_code_itself_names_exists() -> None:
    named = [one for source in SOURCES for one in inline(source, source.read_text()) if "{" not in one.line]
    assert [f"{one.where}: {problem}" for one in named if (problem := complaint(one.line))] == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("ratchet nope", "no command nope"),
        ("ratchet rollout nope support", "no command nope"),
        ("ratchet rollout status|nope support", "no command nope"),
        ("ratchet jobs --nope", "no option --nope"),
        ("ratchet jobs --nope=3", "no option --nope"),
        ("ratchet up --dir .ratchet --nope # why", "no option --nope"),
        ("ratchet cancel one two", "two is one more than the 1 arguments of cancel"),
        ("ratchet down support --json", "support is one more than the 0 arguments of down"),
    ],
)
def test_a_line_that_the_parser_refuses_is_reported(line: str, problem: str) -> None:
    assert problem in (complaint(line) or "")


@pytest.mark.parametrize(
    "line",
    [
        "ratchet",
        "ratchet --help",
        "ratchet up --detach && ratchet nope",
        "ratchet rollout pause|promote support --reason 'it is late' | cat",
        "ratchet feedback TRAJECTORY --role support --thumbs up",
        "ratchet jobs [ID] [--json]",
        "ratchet rollout start support 3 --reason 'why not' # now",
    ],
)
def test_a_line_that_the_parser_takes_passes(line: str) -> None:
    assert complaint(line) is None


def test_commands_are_read_from_blocks_and_from_prose(tmp_path: Path) -> None:
    block = "```\n$ A=1 ratchet down --dir x  # stop\nratchet.txt\nmake up && ratchet \\\n  jobs\n```\n"
    text = f"Say `ratchet\nup` then\n{block}"
    assert [one.line.split("#")[0].split() for one in mentions(tmp_path, text)] == [
        ["ratchet", "down", "--dir", "x"],
        ["ratchet", "jobs"],
        ["ratchet", "up"],
    ]


def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == reference(app), "run `make docs`"


def test_the_completion_script_is_valid_bash() -> None:
    script = subprocess.run(
        [ROOT / ".venv/bin/ratchet", "completion", "bash"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "_RATCHET_COMPLETE=complete_bash" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=10)
