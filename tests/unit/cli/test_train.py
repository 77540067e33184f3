"""`ratchet dpo-train`: what it refuses before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ratchet.cli.train import REQUEST, app
from ratchet.errors import Rejected
from tests.support.pair_files import write_lines


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    write_lines(tmp_path / "data" / "train.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    return tmp_path / "data"


def refusal(data: Path, *options: str) -> Any:
    arguments = ["--policy-model", "m", "--dataset-dir", str(data), "--output-dir", str(data.parent / "out"), *options]
    return CliRunner().invoke(app, arguments).exception


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--fp16",), "fp16 is not supported"),
        (("--deepspeed", "zero.json"), "--deepspeed is not supported"),
        (("--wandb",), "--wandb is not supported"),
        (("--label-smoothing", "0.7"), "label_smoothing"),
        (("--lr", "-1"), "learning_rate must be above 0"),
    ],
)
def test_what_a_training_here_cannot_do_is_refused_with_a_reason(
    data: Path, options: tuple[str, ...], reason: str
) -> None:
    error = refusal(data, *options)
    assert isinstance(error, Rejected)
    assert reason in str(error)
    assert not (data.parent / "out").exists()


def test_a_directory_without_pairs_is_refused(tmp_path: Path) -> None:
    assert "argilla-export" in str(refusal(tmp_path))


def test_the_directory_of_another_training_is_refused(data: Path) -> None:
    (data.parent / "out").mkdir()
    (data.parent / "out" / REQUEST).write_text(json.dumps({"config": "another"}))
    assert "holds a training with other options" in str(refusal(data))
