"""The file's name decides on the format of `ratchet export`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode


@pytest.mark.parametrize(
    ("name", "options", "because"),
    [
        ("rewards.csv", [], "must end in .jsonl or .parquet"),
        ("rewards", [], "must end in .jsonl or .parquet"),
        ("rewards.parquet", ["--format", "jsonl"], "would not be jsonl"),
    ],
)
def test_a_name_that_promises_another_format_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, options: list[str], because: str
) -> None:
    target = tmp_path / name
    code = main(["export", "rewards", "-o", str(target), "--dir", str(tmp_path), *options])
    assert code == ExitCode.USAGE
    assert because in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not target.exists()
