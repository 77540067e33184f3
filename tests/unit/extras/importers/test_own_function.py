"""Importing any format by one function of a user's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ratchet.cli.exit_codes import ExitCode
from ratchet.core.errors import ConfigError
from ratchet.core.rules.chat import chat_messages
from ratchet.extras.importers.base import Importer, ImportOptions
from ratchet.extras.importers.openai_chat import OPENAI_CHAT
from ratchet.extras.importers.own import importer_of
from tests.support.compose import REPOSITORY
from tests.support.imports import imported, write_lines

MODULE = """
from datetime import datetime
from ratchet.extras.importers.base import ImportedPreference, ImportedTrajectory

def conversation(record):
    if record["kind"] == "ping":
        return None
    if record["kind"] == "pair":
        return ImportedPreference(prompt=record["q"], chosen=record["a"], rejected=record["b"])
    chat = [{"role": "user", "content": record["q"]}, {"role": "assistant", "content": record["a"]}]
    return ImportedTrajectory(
        messages=chat, started_at=datetime.fromisoformat("2026-03-01T10:00:00+00:00"), scores={"thumb": record["thumb"]}
    )

def thread(records):
    chat = []
    for one in sorted(records, key=lambda one: one["at"]):
        chat += [{"role": "user", "content": one["q"]}, {"role": "assistant", "content": one["a"]}]
    yield ImportedTrajectory(id=records[0]["thread"], messages=chat)

def as_it_is(record):
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": record["a"]}]
    times = {"started_at": datetime(2026, 3, 1), "ended_at": datetime.fromisoformat("2026-03-01T10:00:00+00:00")}
    return ImportedTrajectory(**{"messages": chat, **times, **record["more"]})

def wrong(record):
    return 7

answer = 42
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "logs.py"
    path.write_text(MODULE)
    return path


def test_a_function_makes_conversations_and_pairs_and_leaves_records_out(module: Path, tmp_path: Path) -> None:
    records = [
        {"kind": "chat", "q": "hi", "a": "Hello.", "thumb": 1},
        {"kind": "ping"},
        {"kind": "pair", "q": "hi", "a": "Hello.", "b": "No."},
        {"no": "kind"},
    ]
    path = write_lines(tmp_path / "a.jsonl", *records)
    bus, report = imported(importer_of(f"{module}:conversation"), path, ImportOptions(role="support", outcome="thumb"))

    (one,), (pair,) = bus.trajectories, bus.preferences
    assert [message["content"] for message in chat_messages(one)] == ["hi", "Hello."]
    assert (one.metadata.source, one.start_timestamp) == ("import:python", datetime(2026, 3, 1, 10, tzinfo=UTC))
    assert one.outcome is not None
    assert (pair.chosen, pair.role) == ("Hello.", "support")
    assert [(bad.where, bad.reason) for bad in report.malformed] == [("line 4", "KeyError: 'kind'")]
    assert (
        bus.bodies
        == imported(importer_of(f"{module}:conversation"), path, ImportOptions(role="support", outcome="thumb"))[
            0
        ].bodies
    )


def test_records_of_one_thread_come_together(module: Path, tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl",
        {"thread": "x", "at": 2, "q": "and?", "a": "Well."},
        {"thread": "y", "at": 1, "q": "other", "a": "Yes."},
        {"thread": "x", "at": 1, "q": "hi", "a": "Hello."},
        {"at": 1},
    )
    bus, report = imported(importer_of(f"{module}:thread", "thread"), path)
    assert [[message["content"] for message in chat_messages(one)] for one in bus.trajectories] == [
        ["hi", "Hello.", "and?", "Well."],
        ["other", "Yes."],
    ]
    assert [(bad.where, bad.reason) for bad in report.malformed] == [("line 4", "has no thread")]


def test_what_a_function_gives_back_is_checked(module: Path, tmp_path: Path) -> None:
    bus, report = imported(importer_of(f"{module}:wrong"), write_lines(tmp_path / "a.jsonl", {}))
    assert bus.messages == []
    assert "gave back a int, not an ImportedTrajectory" in report.malformed[0].reason


def test_members_of_a_wrong_type_leave_out_their_record_alone(module: Path, tmp_path: Path) -> None:
    wrong = [{"scores": {"x": "0.5"}}, {"scores": None}, {"messages": None}, {"labels": 7}, {"started_at": "today"}]
    path = write_lines(tmp_path / "a.jsonl", *({"a": "Hello.", "more": more} for more in [*wrong, {}]))
    bus, report = imported(importer_of(f"{module}:as_it_is"), path, ImportOptions(outcome="x"))
    assert [bad.where for bad in report.malformed] == [f"line {number}" for number in range(1, 6)]
    assert report.malformed[0].reason == "the score x is '0.5', not a number"
    (one,) = bus.trajectories
    assert one.start_timestamp == datetime(2026, 3, 1, tzinfo=UTC)  # a time without a zone is UTC's


def test_a_reason_that_quotes_half_a_character_can_be_written(module: Path, tmp_path: Path) -> None:
    record = {"a": "Hello.", "more": {"scores": {"x": "\ud800"}}}
    _, report = imported(
        importer_of(f"{module}:as_it_is"), write_lines(tmp_path / "a.jsonl", record, {}), ImportOptions(outcome="x")
    )
    path = write_lines(tmp_path / "b.jsonl", {"messages": [{"role": "\ud800", "content": "x"}]})
    _, chat = imported(OPENAI_CHAT, path)
    for bad in (*report.malformed, *chat.malformed):
        assert bad.reason.encode()
    assert "\\ud800" in chat.malformed[0].reason


def test_id_counts_within_its_function_unless_a_source_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"a": "Hello.", "more": {"id": "T-1"}})
    for place in ("a", "moved/a", "b"):
        file = tmp_path / f"{place}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(MODULE)

    def own_id(place: str, source: str | None = None) -> str:
        bus, _ = imported(importer_of(f"{tmp_path / place}.py:as_it_is", source=source), path)
        return bus.trajectories[0].trajectory_id

    assert own_id("a") == own_id("moved/a") != own_id("b")
    assert own_id("a", "tickets") == own_id("b", "tickets")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("conversation", "names no function"),
        (":x", "names no function"),
        ("missing.py:conversation", "no such file"),
        ("{module}:missing", "cannot be loaded"),
        ("{module}:answer", "is a int, not a function"),
        ("no_such_package.at_all:x", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_function_that_is_not_there_is_one_clear_line(module: Path, name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        importer_of(name.format(module=module))


GUIDE = (REPOSITORY / "docs" / "guides" / "plugins.md").read_text().partition("## An importer\n")[2]
BLOCKS = [(kind, text) for kind, text in re.findall(r"```(\w*)\n(.*?)```", GUIDE, re.DOTALL)]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The files of the guide."""
    (tmp_path / "logs.py").write_text(next(text for kind, text in BLOCKS if kind == "python"))
    (tmp_path / "calls.jsonl").write_text(next(text for kind, text in BLOCKS if kind == "json"))
    return tmp_path


def test_the_command_of_the_guide_imports_what_it_describes(example: Path) -> None:
    (command,) = [text.split() for kind, text in BLOCKS if kind == "" and text.startswith("ratchet import")]
    words = [sys.executable, "-m", "ratchet.cli", *command[1:], "--dir", str(example / "none"), "--json"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120, cwd=example)

    assert done.returncode == ExitCode.PARTLY, done.stderr
    report = json.loads(done.stdout)
    assert (report["records"], report["published"]) == (3, 1)
    assert [(one["where"], one["reason"]) for one in report["malformed"]] == [("line 3", "KeyError: 'at'")]


def test_the_importer_of_the_guides_package_makes_the_same_conversation(example: Path) -> None:
    names: dict[str, object] = {}
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, "guide", "exec"), names)
    importer = names["ACME"]
    assert isinstance(importer, Importer)
    lines = (example / "calls.jsonl").read_text().splitlines()

    bus, _ = imported(importer, write_lines(example / "a.jsonl", lines[0]), ImportOptions(outcome="settled"))
    (one,) = bus.trajectories
    assert (one.task_context.task_id, one.outcome and one.outcome.status) == ("refund", "success")
