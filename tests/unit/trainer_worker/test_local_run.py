"""A training without a worker: files in, the same algorithm, and what only it may set."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.core.chat_templates.conversations import Conversation
from ratchet.core.contract.local_training import LocalTraining, LoopOptions
from ratchet.core.contract.policy_manifest import REWARD_MODEL
from ratchet.core.contract.training import Checkpointing, Compute, Dataset, Hyperparameters, TrainingConfig
from ratchet.core.errors import Rejected
from ratchet.trainer_worker.errors import DataUnusable, Diverged
from ratchet.trainer_worker.job import CHECKPOINTS, METRICS_FILE, RESULT, TEMPORARY, Finished, read_job
from ratchet.trainer_worker.training.chats import ChatRows
from ratchet.trainer_worker.training.child_run import train
from ratchet.trainer_worker.training.local_run import pairs_in, prepare
from ratchet.trainer_worker.training.policy import load_policy
from tests.support.pair_files import write_lines, write_pair_files
from tests.support.tiny_models import write_tiny_model
from tests.support.trainer_runs import job_spec

Training = Callable[..., LocalTraining]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair_files(tmp_path_factory.mktemp("pairs"))


@pytest.fixture
def training(files: Path, tmp_path: Path) -> Training:
    def of(loop: LoopOptions | None = None, algorithm: str = "dpo", **changes: Any) -> LocalTraining:
        values: dict[str, Any] = {"max_steps": 100, "learning_rate": 3e-3, **changes}
        hyper = Hyperparameters(batch_size=8, full_finetune=True, **values)
        config = TrainingConfig(
            algorithm=algorithm,
            base_model=str(files / "base"),
            dataset=Dataset(source="files", sample_size=1),
            hyperparameters=hyper,
            compute=Compute(),
            checkpointing=Checkpointing(save_interval=1000),
        )
        data = files / "data"
        return LocalTraining(
            config=config,
            train=str(data / "train.jsonl"),
            held_out=str(data / "eval.jsonl"),
            output=str(tmp_path),
            digest="",
            loop=loop or LoopOptions(),
        )

    return of


def run(request: LocalTraining) -> Finished:
    directory = Path(request.output)
    prepare(request, directory)
    last = train(read_job(directory), directory, io.BytesIO(), threading.Event(), threading.Event())
    assert isinstance(last, Finished)
    return last


def steps(request: LocalTraining) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(request.output) / METRICS_FILE).read_text().splitlines()]


def test_a_hundred_steps_teach_what_held_out_pairs_prefer(training: Training) -> None:
    request = training(LoopOptions(warmup_ratio=0.1, eval_steps=50))
    finished = run(request)
    assert finished.metrics["pairs"] == 40
    assert finished.metrics["held_out_pairs"] == 8
    assert finished.evaluation is not None
    assert finished.evaluation.benchmark_scores is not None
    assert finished.evaluation.benchmark_scores["holdout_win_rate"] >= 0.55
    logged = steps(request)
    assert [one["step"] for one in logged if "holdout_win_rate" in one] == [50, 100]
    rates = [one["learning_rate"] for one in logged]
    assert max(rates) == rates[9] == 3e-3
    assert rates[-1] == pytest.approx(3e-4, rel=0.01)


@pytest.mark.parametrize(("rate", "whole"), [(1e38, True), (1e30, False)], ids=["weights", "log-probabilities"])
def test_a_last_train_step_that_leaves_no_numbers_leaves_no_policy(
    training: Training, rate: float, *, whole: bool
) -> None:
    request = training(LoopOptions(warmup_ratio=0.0), max_steps=1)
    faster = msgspec.structs.replace(request.config.hyperparameters, learning_rate=rate, full_finetune=whole)
    config = msgspec.structs.replace(request.config, hyperparameters=faster)
    with pytest.raises(Diverged, match=r"not finite|no longer finite|no finite"):
        run(msgspec.structs.replace(request, config=config))
    assert not (Path(request.output) / RESULT).exists()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_hundred_steps_make_a_reward_model_that_ranks_held_out_answers(training: Training, seed: int) -> None:
    loop = LoopOptions(warmup_ratio=0.03, eval_steps=50)
    request = training(loop, "reward_model", learning_rate=5e-4, seed=seed)
    finished = run(request)
    assert finished.evaluation is not None
    scores = finished.evaluation.benchmark_scores
    assert scores is not None
    assert scores["holdout_pairs"] == 8
    assert scores["holdout_auc"] > 0.6
    assert [one["step"] for one in steps(request) if "holdout_auc" in one] == [50, 100]
    assert (finished.kind, finished.probe) == (REWARD_MODEL, None)


def test_another_reference_is_what_the_policy_is_compared_with(
    training: Training, files: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("reference")
    write_tiny_model(other, [(files / "base" / "tokenizer.json").read_text()], seed=5)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (other / file).write_bytes((files / "base" / file).read_bytes())
    request = training(LoopOptions(reference=str(other)), max_steps=1)
    run(request)
    assert abs(steps(request)[0]["rewards_chosen"]) > 1e-3


def test_a_reference_with_other_tokens_is_refused(training: Training, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = write_tiny_model(tmp_path_factory.mktemp("reference"), ["quite other words"])
    with pytest.raises(Rejected, match="has other tokens"):
        run(training(LoopOptions(reference=str(other)), max_steps=1))


def test_a_row_that_is_too_long_may_lose_its_beginning(files: Path) -> None:
    policy = load_policy(job_spec("dpo", base=str(files / "base"), hyper=Hyperparameters(full_finetune=True)))
    chat = Conversation("a", [{"role": "user", "content": "word " * 50}, {"role": "assistant", "content": "Yes."}])
    whole, start, end = (
        ChatRows(policy.tokenizer, n, keep_end=keep) for n, keep in ((500, True), (20, False), (20, True))
    )
    (row,), (cut,) = whole.rows([chat]), end.rows([chat])
    assert cut.token_ids.tolist() == row.token_ids.tolist()[-20:]
    assert cut.trained == row.trained
    with pytest.raises(DataUnusable):
        start.rows([chat])
    assert (start.counts.empty_rows, end.counts.lost_tokens) == (1, 0)


NO_PAIRS = ["{", "[]", '{"prompt": "a", "chosen": "b"}', '{"prompt": 1, "chosen": "b", "rejected": "c"}']
HALF_A_CHARACTER = r'{"prompt": "\ud800", "chosen": "b", "rejected": "c"}'


@pytest.mark.parametrize("line", [*NO_PAIRS, HALF_A_CHARACTER])
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, line: str) -> None:
    file = write_lines(tmp_path / "train.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    with file.open("a") as more:
        more.write(line + "\n")
    with pytest.raises(DataUnusable, match="line 2 of"):
        list(pairs_in(file))


def test_empty_lines_are_no_pairs_and_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text('\n{"prompt": "a", "chosen": "b", "rejected": "c"}\r\n \n\n')
    assert [pair.preference_id for pair in pairs_in(file)] == ["train-2"]


def test_steps_that_are_done_again_leave_the_metrics(training: Training, tmp_path: Path) -> None:
    write_lines(tmp_path / METRICS_FILE, [{"step": step} for step in range(3)])
    prepare(training(), tmp_path)
    assert [one["step"] for one in steps(training())] == [0]


def test_training_that_died_writing_its_result_resumes_at_a_checkpoint(
    training: Training,
) -> None:
    request = training(max_steps=3)
    config = msgspec.structs.replace(request.config, checkpointing=Checkpointing(save_interval=1, max_checkpoints=2))
    request = msgspec.structs.replace(request, config=config)
    output = Path(request.output)
    run(request)
    weights = (output / RESULT / "model.safetensors").read_bytes()
    *_, newest = sorted((output / CHECKPOINTS).iterdir())
    (newest / "optimizer.pt").write_bytes(b"cut")
    (output / TEMPORARY / "killed").mkdir(parents=True)
    run(request)  # over the result and the documents of the first one
    assert (output / RESULT / "model.safetensors").read_bytes() == weights
    assert [one["step"] for one in steps(request)] == [1, 2, 3]
    assert not (output / TEMPORARY / "killed").exists()


def test_temporary_files_of_a_training_lie_in_its_directory(tmp_path: Path) -> None:
    program = (
        "import sys, tempfile; from pathlib import Path; from ratchet.trainer_worker.training.child import work_in;"
        "tempfile.gettempdir(); work_in(Path(sys.argv[1])); print(tempfile.mkdtemp())"
    )
    made = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    assert Path(made.strip()).parent == tmp_path / TEMPORARY


def test_without_any_pair_there_is_nothing_to_train(training: Training, tmp_path: Path) -> None:
    empty = write_lines(tmp_path / "none.jsonl", [])
    with pytest.raises(DataUnusable, match="holds no pairs"):
        prepare(msgspec.structs.replace(training(), train=str(empty)), tmp_path)
