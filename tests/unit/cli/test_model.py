"""`ratchet model` refuses what it cannot write a base model of, and makes no directory then."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from ratchet.cli.__main__ import main


def other_kind(file: Path) -> None:
    """A GGUF file of another architecture."""
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("absent.gguf", "is not a file"),
        ("text.gguf", "not a GGUF file"),
        ("other.gguf", "general.architecture 'qwen2'"),
    ],
)
def test_model_refuses_other_files_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, reason: str
) -> None:
    (tmp_path / "text.gguf").write_text("weights")
    other_kind(tmp_path / "other.gguf")
    assert main(["model", str(tmp_path / source), str(tmp_path / "made")]) != 0
    refused = capsys.readouterr().err
    assert reason in refused
    assert len(refused.splitlines()) == 1
    assert not (tmp_path / "made").exists()
