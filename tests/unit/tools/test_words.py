"""The linter of words finds them in names and sentences, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.words import HEADING, Words, findings, words

BANNED = Words({"retold": "superseded", "found": "what it is"}, {"gizmo": "name the agent"})


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("retold_by = 1\n", 1),
        ("x = 1\n\ndef was_retold(): ...\n", 3),
        ("class RetoldTurn: ...\n", 1),
        ("def f(retold): ...\n", 1),
        ("x.retold = 1\n", 1),
        ("found = 1\n", 1),
        ("# the gizmo knows\n", 1),
        ('"""Gizmo knows."""\n', 1),
        ('print("the gizmo knows")\n', 1),
    ],
)
def test_a_banned_word_is_reported_with_its_line(tmp_path: Path, source: str, line: int) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)

    assert [finding.split(": ")[0] for finding in findings(path, BANNED)] == [f"{path}:{line}"]


@pytest.mark.parametrize(
    "source",
    [
        "not_found = NotFound\n",
        "foundation = 1\n",
        'row["retold_by"]\n',
        'x = "gizmo"\n',
        "# the row was found\n",
        '"""A profound remark: retold."""\n',
    ],
)
def test_other_words_and_data_are_left_alone(tmp_path: Path, source: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)

    assert list(findings(path, BANNED)) == []


def test_pages_are_read_without_their_code(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("# Title\n\n```\ngizmo\n```\n\n`gizmo` and [x](gizmo.md), but a gizmo.\n")

    assert [finding.split(": ")[0] for finding in findings(path, BANNED)] == [f"{path}:7"]


def test_the_glossary_has_the_table() -> None:
    rows = ["| in | not | but |", "|---|---|---|", "| names | `widget`, `widgets` | part |"]
    rows.append("| sentences | gizmo | x |")
    page = "\n".join((HEADING, "", *rows, ""))

    assert words(page) == Words({"widget": "part", "widgets": "part"}, {"gizmo": "x"})
    with pytest.raises(ValueError, match="no table"):
        words("# Glossary\n")
