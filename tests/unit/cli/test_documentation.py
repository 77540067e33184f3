"""What the documentation says of the command line is what the parser knows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ratchet.cli.__main__ import app
from tests.support.documented_commands import complaint, inline, mentions
from tools.docs.cli_reference import reference

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "services").rglob("README.md")),
    *sorted(page for page in (ROOT / "examples").rglob("*.md") if "node_modules" not in page.parts),
]
SOURCES = sorted((ROOT / "services" / "ratchet").rglob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_in_the_documentation_exists(page: Path) -> None:
    assert [said for one in mentions(page, page.read_text()) if (said := complaint(one.line))] == []


def test_every_command_that_the_code_itself_names_exists() -> None:
    found = [one for source in SOURCES for one in inline(source, source.read_text()) if "{" not in one.line]
    assert [f"{one.where}: {said}" for one in found if (said := complaint(one.line))] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ratchet nope", "no command nope"),
        ("ratchet rollout nope support", "no command nope"),
        ("ratchet rollout status|nope support", "no command nope"),
        ("ratchet jobs --nope", "no option --nope"),
        ("ratchet jobs --nope=3", "no option --nope"),
        ("ratchet up --dir .ratchet --nope # why", "no option --nope"),
        ("ratchet train support sft", "sft is one more than the 1 arguments of train"),
        ("ratchet status support --json", "support is one more than the 0 arguments of status"),
    ],
)
def test_what_the_parser_does_not_know_is_found(line: str, said: str) -> None:
    assert said in (complaint(line) or "")


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
def test_what_the_parser_knows_passes(line: str) -> None:
    assert complaint(line) is None


def test_commands_are_found_in_blocks_and_between_words(tmp_path: Path) -> None:
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
