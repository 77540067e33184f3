"""`ratchet dpo-train` and `rm-train` as people run them: interrupted, begun again, complete."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from ratchet.bus.testing import eventually
from tests.support.pair_files import write_pair_files

pytestmark = pytest.mark.slow

COLUMNS = {"COLUMNS": "300"}
"""Of the terminal: a message is one line."""


async def test_an_interrupted_training_goes_on_and_leaves_an_adapter(tmp_path: Path) -> None:
    files, output = write_pair_files(tmp_path), tmp_path / "out"

    async def started() -> Process:
        options = ["--policy-model", str(files / "base"), "--dataset-dir", str(files / "data"), "--lora", "--json"]
        options += ["--output-dir", str(output), "--max-steps", "60", "--batch-size", "8", "--lr", "3e-3"]
        command = [sys.executable, "-m", "ratchet.cli", "dpo-train", *options]
        return await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)

    async def has_begun_or_ended() -> bool:
        return bool(steps(output)) or first.returncode is not None

    first = await started()
    await eventually(has_begun_or_ended, deadline_s=240.0)
    first.send_signal(signal.SIGINT)
    _, warnings = await first.communicate()
    assert first.returncode == 130
    assert "stopped after train step" in warnings.decode()
    assert 0 < len(steps(output)) < 60
    second = await started()
    answer, _ = await second.communicate()
    result = json.loads(answer)
    assert (second.returncode, result["kind"]) == (0, "adapter")
    assert steps(output) == list(range(1, 61))
    left = {"config.json", "logs", "metrics.jsonl", "model", "README.md", "request.json", "result.json", "tokenizer"}
    assert {file.name for file in output.iterdir()} == left
    for folder in ("model", "tokenizer"):
        assert AutoTokenizer.from_pretrained(output / folder).chat_template
    card = ModelCard((output / "README.md").read_text())
    assert (card.data.library_name, card.data.base_model) == ("peft", str(files / "base"))
    assert "rollout" not in card.text
    assert AutoModelForCausalLM.from_pretrained(output / "model").num_parameters() > 0
    again = await started()
    answer, _ = await again.communicate()
    assert json.loads(answer) == result


async def test_a_reward_model_lies_with_its_card_where_reward_models_lie(tmp_path: Path) -> None:
    files = write_pair_files(tmp_path)
    options = ["--base-model", str(files / "base"), "--dataset-dir", str(files / "data"), "--json"]
    options += ["--max-steps", "4", "--lr", "3e-3", "--eval-steps", "2", "--truncation-left", "--bf16"]
    command = [sys.executable, "-m", "ratchet.cli", "rm-train", *options]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, cwd=tmp_path)
    answer, complaint = await process.communicate()
    assert process.returncode == 0, complaint.decode()
    result, output = json.loads(answer), tmp_path / "artifacts" / "rm" / "base"
    assert (result["kind"], result["model"]) == ("reward_model", str(output / "model"))
    assert {"holdout_auc", "holdout_accuracy", "holdout_length_accuracy"} <= result["scores"].keys()
    names = {"config.json", "logs", "metrics.jsonl", "model", "README.md", "request.json", "result.json", "tokenizer"}
    assert {file.name for file in output.iterdir()} == names
    assert ModelCard((output / "README.md").read_text()).data.pipeline_tag == "text-classification"
    assert AutoModelForSequenceClassification.from_pretrained(output / "model").num_labels == 1
    assert json.loads((output / "config.json").read_text())["hyperparameters"]["bf16"] is True


async def test_a_model_that_is_nowhere_here_is_named_without_asking_a_hub(tmp_path: Path) -> None:
    files = write_pair_files(tmp_path)
    options = ["--policy-model", "nowhere", "--dataset-dir", str(files / "data"), "--output-dir", str(tmp_path / "out")]
    command = [sys.executable, "-m", "ratchet.cli", "dpo-train", *options]
    training = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=os.environ | COLUMNS)
    _, reason = await training.communicate()
    assert training.returncode == 1
    assert "not in the local cache; with RATCHET_HUB=1" in reason.decode()


def steps(output: Path) -> list[int]:
    """Of the metrics, so far."""
    file = output / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("}")]
