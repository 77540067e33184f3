"""The worked example of an importer in the guide to plug-ins does what the guide says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.cli.exit_codes import ExitCode
from ratchet.extras.importers.base import Importer, ImportOptions
from tests.support.compose import REPOSITORY
from tests.support.imports import imported, write_lines

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
