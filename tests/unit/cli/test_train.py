"""`ratchet rm-train` and `dpo-train`: what they refuse before anything starts, and where their results go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ratchet.cli.train import METRICS_FILE, REQUEST, RESULT_FILE, app, default_output, last_event, show_result
from ratchet.core.errors import Conflict
from ratchet.core.service.files import locked
from tests.support.pair_files import write_lines


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    write_lines(tmp_path / "data" / "train.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    return tmp_path / "data"


MODEL_OPTIONS = {"rm-train": "--base-model", "dpo-train": "--policy-model"}


def refusal(data: Path, *options: str, command: str = "dpo-train") -> Any:
    where = ["--dataset-dir", str(data), "--output-dir", str(data.parent / "out")]
    return CliRunner().invoke(app, [command, MODEL_OPTIONS[command], "m", *where, *options]).exception


@pytest.mark.parametrize(
    ("command", "options", "reason"),
    [
        *((command, ("--lr", "-1"), "learning_rate must be above 0") for command in MODEL_OPTIONS),
        ("dpo-train", ("--label-smoothing", "0.7"), "label_smoothing"),
        ("dpo-train", ("--beta", "0"), "beta must be"),
        ("dpo-train", ("--lr", "nan"), "learning_rate must be"),
    ],
)
def test_what_a_training_here_cannot_do_is_refused_with_a_reason(
    data: Path, command: str, options: tuple[str, ...], reason: str
) -> None:
    where = ["--dataset-dir", str(data), "--output-dir", str(data.parent / "out")]
    ended = CliRunner().invoke(app, [command, MODEL_OPTIONS[command], "m", *where, *options], env={"COLUMNS": "300"})
    assert ended.exit_code == 2
    assert reason in ended.stderr
    assert not (data.parent / "out").exists()


def test_a_directory_without_pairs_is_refused(tmp_path: Path) -> None:
    assert "argilla-export" in str(refusal(tmp_path))


@pytest.mark.parametrize("name", ["model", "config.json", "checkpoints"])
def test_what_is_not_of_a_training_is_never_replaced(data: Path, name: str) -> None:
    (data.parent / "out" / name).mkdir(parents=True)
    assert f"has {name} of something else" in str(refusal(data))
    assert (data.parent / "out" / name).is_dir()


def test_two_trainings_do_not_write_to_one_directory(data: Path) -> None:
    (data.parent / "out").mkdir()
    with locked(data.parent / "out"):
        assert isinstance(refusal(data), Conflict)


def test_a_complete_training_is_tidied_up_where_its_end_was_cut_short(data: Path) -> None:
    output = data.parent / "out"
    (data / "train.jsonl").write_text("{}\n")
    assert "line 1 of" in str(refusal(data))  # the training ends at once, its request stays
    (output / RESULT_FILE).write_text('{"model": "there"}')
    (output / "checkpoints" / "step-000001").mkdir(parents=True)
    assert refusal(data) is None
    assert {file.name for file in output.iterdir()} == {REQUEST, RESULT_FILE, "logs"}


def test_the_directory_of_another_training_is_refused(data: Path) -> None:
    (data.parent / "out").mkdir()
    (data.parent / "out" / REQUEST).write_text(json.dumps({"config": "another"}))
    (data.parent / "out" / METRICS_FILE).write_text('{"step": 1}\n')
    assert "holds a training with other options" in str(refusal(data))


def test_a_directory_in_which_nothing_was_trained_serves_the_next_command(data: Path) -> None:
    (data / "train.jsonl").write_text("{}\n")
    assert "line 1 of" in str(refusal(data))
    assert "line 1 of" in str(refusal(data, "--beta", "0.2"))


def test_each_figure_of_a_result_has_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    show_result({"model": "out/model", "metrics": {"loss": 0.5}, "scores": {"holdout_win_rate": 0.25}})
    shown = " ".join(capsys.readouterr().out.split())
    assert "out/model" in shown
    assert "holdout_win_rate" in shown
    assert "BAD:" in shown


def test_what_the_template_loses_of_the_data_stands_in_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    cut = "2 rows are longer than 8 tokens, and lose their end"
    events = [{"type": "started", "findings": [cut]}, {"type": "finished", "kind": "model"}]
    last = last_event([json.dumps(event).encode() for event in events], lambda *_: None)
    assert last == {"type": "finished", "kind": "model", "findings": [cut]}
    show_result({"model": "out/model", "findings": last["findings"]})
    assert f"- {cut}" in capsys.readouterr().out


def test_results_go_to_a_directory_by_command_and_model(tmp_path: Path) -> None:
    assert default_output("rm", "org/model-1b") == Path("artifacts/rm/model-1b")
    (tmp_path / "mine").mkdir()
    assert default_output("dpo", f"{tmp_path}/mine/..") == Path("artifacts/dpo", tmp_path.name)
