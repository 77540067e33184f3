"""What people get to read: whole ids whatever the width, commands that can be pasted, documents for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.cli.output import (
    LINE_S,
    flat,
    follow_up,
    least_width,
    plan_lines,
    print_dry_run,
    print_facts,
    print_table,
    progress,
    progress_lines,
)
from ratchet.core.service.discovery import DEFAULT_DIRECTORY

ID = "01a1fca2-df19-713d-8bd8-1bb400e40e5d"
WORDS = "the role has no stable policy yet: name a base_model"


def test_a_pipe_gets_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("job", "state", "error"), [(ID, "failed", WORDS * 8), (ID, "done", None)], "none")
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split("  ") == [ID, "failed", WORDS * 8]
    assert second.split() == [ID, "done", "-"]


def test_a_table_needs_room_for_everything_but_its_last_column() -> None:
    assert least_width(("job", "error"), [(ID, WORDS * 8)]) == 36 + 2 + 24
    assert least_width(("job", "error"), [(ID, "x")]) == 36 + 2 + 5


def test_an_empty_table_is_replaced_by_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("job",), [], "no jobs yet")
    assert capsys.readouterr().out == "no jobs yet\n"


def test_facts_that_are_not_known_are_left_out_and_inner_ones_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts({"job": ID, "error": None, "lora": {"r": 8}})
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["job", ID], ["lora.r", "8"]]


def test_a_follow_up_names_the_stack_unless_it_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RATCHET_DIR", raising=False)
    assert follow_up("jobs", ID, directory=DEFAULT_DIRECTORY) == f"ratchet jobs {ID}"
    assert follow_up("down", directory=Path("a state")) == "ratchet down --dir 'a state'"
    monkeypatch.setenv("RATCHET_DIR", "elsewhere")
    assert follow_up("down", directory=DEFAULT_DIRECTORY) == "ratchet down --dir .ratchet"


def test_a_dry_run_shows_what_would_be_sent(capsys: pytest.CaptureFixture[str]) -> None:
    print_dry_run("POST /v1/jobs", {"role": "x"}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"dry_run": True, "action": "POST /v1/jobs", "body": {"role": "x"}}
    print_dry_run("POST /v1/jobs", {"role": "x"}, as_json=False)
    assert capsys.readouterr().out.startswith("would POST /v1/jobs\n{")


def test_a_short_progress_is_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working") as bar:
        bar(1, 2, "half")
    assert capsys.readouterr() == ("", "")


def test_a_long_progress_is_a_line_now_and_then_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.0, *(many * LINE_S for many in (1, 1, 2, 2, 3, 3))])
    bar = progress_lines("working", lambda: next(times))
    for done in (1, 2, 2, 3):
        bar(done, 4)
    bar(4, 4, "done [now]")
    assert capsys.readouterr() == ("", "working: 2 of 4\nworking: 3 of 4\nworking: done [now]\n")


def test_a_terminal_without_unicode_gets_escapes_and_json_stays_json() -> None:
    program = (
        "from ratchet.cli.__main__ import main\n"
        "from ratchet.cli.output import console, print_json\n"
        "main(['--version'])\n"
        "console.print('caf\\u00e9')\n"
        "print_json({'a': 'caf\\u00e9 \\U0001f600'})\n"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    _, text, document = done.stdout.split("\n", 2)
    assert text == r"caf\xe9"
    assert json.loads(document) == {"a": "caf\u00e9 \U0001f600"}


NOTES = "tonight; planned sft: 104 of 105; no other way fits; not dpo: 0 pairs; not acme.simpo: no"


def test_every_algorithm_of_a_plan_has_its_line() -> None:
    assert plan_lines(NOTES) == (
        "tonight",
        "planned sft: 104 of 105; no other way fits",
        "not dpo: 0 pairs",
        "not acme.simpo: no",
    )
    assert plan_lines("") == ()
    assert list(flat({"a": {"b": ("one", "two")}, "c": None})) == [("a.b", "one"), ("", "two")]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_dry_run_shows_what_auto_stands_for(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    print_dry_run("POST http://h/v1/jobs", {"algorithm": "auto"}, as_json, NOTES)
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out)["planned"] == NOTES
    else:
        assert out.startswith("tonight\nplanned sft: 104 of 105")
    print_dry_run("POST http://h/v1/jobs", {"algorithm": "sft"}, as_json)
    assert "planned" not in capsys.readouterr().out
