"""`ratchet rm-train` and `dpo-train`: trainings on this machine from files, with the worker's code and no broker."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from msgspec.structs import replace

from ratchet.bus.message import JsonObject, decode, encode
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import AsJson, require_no_file, with_options
from ratchet.cli.output import Bar, console, errors, print_answer, print_facts, print_table, progress
from ratchet.core.contract.local_training import LocalTraining, LoopOptions
from ratchet.core.contract.training import Checkpointing, Compute, Dataset, Hyperparameters, Lora, TrainingConfig
from ratchet.core.errors import MissingExtra, Rejected
from ratchet.core.rules.job_facts import sentence_of
from ratchet.core.rules.model_hub import PASSIVE, library_settings
from ratchet.core.rules.training_options import training_problems
from ratchet.core.service.files import locked, write_whole
from ratchet.core.stores.policies import TOKENIZER_FILES
from ratchet.core.stores.policy_files import ARTIFACTS

app = typer.Typer()

RUNNER = "ratchet.trainer_worker.training.local_run"
REQUEST, RESULT_FILE, LOG = "request.json", "result.json", "logs/train.log"
METRICS_FILE = "metrics.jsonl"
MODEL, TOKENIZER, CHECKPOINTS, DOCUMENTS = "model", "tokenizer", "checkpoints", "documents"
OWN_DOCUMENTS = ("config.json", "README.md")
"""Of the documents of a training those that lie in the output directory itself; the others are the tokenizer's."""
LEFT = (CHECKPOINTS, DOCUMENTS, "result", "temporary", "dataset.parquet", "job.json")
"""What a training needs while it runs."""
WRITTEN = (MODEL, TOKENIZER, RESULT_FILE, *OWN_DOCUMENTS, METRICS_FILE, *LEFT)
"""What it writes or removes in its output directory."""
Scheduler = Literal["cosine", "linear", "constant"]


@dataclass(frozen=True, slots=True)
class Common:
    """What both trainings can be asked for; the learning rate and the batch have defaults of their own."""

    hyper: Hyperparameters
    loop: LoopOptions
    save_steps: int
    mixed_precision: str | None
    """None: the device's own."""


def common_options(
    epochs: Annotated[int, typer.Option(min=1, help="Times through the data.")] = 1,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Train steps, instead of epochs.")] = None,
    gradient_accumulation: Annotated[int, typer.Option(min=1, help="Batches of a train step.")] = 1,
    lora: Annotated[bool, typer.Option("--lora", help="Train an adapter, not all weights.")] = False,
    lr_scheduler: Annotated[
        Scheduler, typer.Option(help="How the learning rate falls: to a tenth; constant: not.")
    ] = "cosine",
    warmup_ratio: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of steps in which the learning rate rises.")
    ] = 0.03,
    weight_decay: Annotated[float, typer.Option(min=0, max=1, help="Of the optimizer.")] = 0.01,
    max_length: Annotated[int, typer.Option(min=2, help="Tokens of the longest row.")] = 1024,
    keep_start: Annotated[
        bool, typer.Option("--truncation-right/--truncation-left", help="Which end a longer row loses.")
    ] = True,
    eval_steps: Annotated[int, typer.Option(min=1, help="Steps between evaluations on eval.jsonl.")] = 100,
    save_steps: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 200,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    bf16: Annotated[bool, typer.Option("--bf16", help="Compute in bfloat16.")] = False,
) -> Common:
    """What the options ask for."""
    hyper = Hyperparameters(
        epochs=epochs,
        max_steps=max_steps,
        gradient_accumulation=gradient_accumulation,
        lora=Lora() if lora else None,
        full_finetune=not lora,
        max_length=max_length,
        seed=seed,
        lr_scheduler=lr_scheduler,
        weight_decay=weight_decay,
    )
    loop = LoopOptions(
        warmup_ratio=warmup_ratio,
        eval_steps=eval_steps,
        keep_end=not keep_start,
    )
    return Common(hyper, loop, save_steps, "bf16" if bf16 else None)


takes_common = with_options("common", common_options)
DatasetDir = Annotated[Path, typer.Option(help="With train.jsonl, and eval.jsonl to judge the result on.")]
Rate = Annotated[float, typer.Option(help="Highest learning rate.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Pairs of a train step.")]


@app.command("rm-train")
@takes_common
def rm_train(
    base_model: Annotated[str, typer.Option(help="Directory or name of the model that gets a scalar head.")],
    dataset_dir: DatasetDir,
    output_dir: Annotated[Path | None, typer.Option(help="Gets the result; artifacts/rm/MODEL without it.")] = None,
    lr: Rate = 2e-5,
    batch_size: BatchSize = 8,
    center_rewards_coefficient: Annotated[
        float, typer.Option(min=0, help="Weight of the squared sum of a pair's rewards, to keep them around 0.")
    ] = 0.0,
    *,
    common: Common,
    as_json: AsJson = False,
) -> None:
    """Train a reward model on preference pairs, on this machine and without a stack.

    The output directory gets model/, tokenizer/, config.json, metrics.jsonl, README.md, result.json and logs/. Ctrl-C
    leaves a checkpoint (exit code 130), from which the same command goes on. Exit code 1: it failed, and says why.
    """
    hyper = replace(
        common.hyper,
        learning_rate=lr,
        batch_size=batch_size,
        center_rewards_coefficient=center_rewards_coefficient or None,
    )
    config = local_config("reward_model", base_model, hyper, common)
    output = output_dir or default_output("rm", base_model)
    run_training(config, common.loop, dataset_dir, output, as_json=as_json)


@app.command("dpo-train")
@takes_common
def dpo_train(
    policy_model: Annotated[str, typer.Option(help="Directory or name of the model that learns.")],
    dataset_dir: DatasetDir,
    ref_model: Annotated[str | None, typer.Option(help="The reference; without it the policy as it begins.")] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Gets the result; artifacts/dpo/MODEL without it.")] = None,
    lr: Rate = 5e-6,
    batch_size: BatchSize = 4,
    beta: Annotated[float, typer.Option(help="How dear a step away from the reference is.")] = 0.1,
    label_smoothing: Annotated[float, typer.Option(help="Share of pairs that may be the wrong way round.")] = 0.0,
    *,
    common: Common,
    as_json: AsJson = False,
) -> None:
    """Train a policy on preference pairs with DPO, on this machine and without a stack.

    The output directory gets model/, tokenizer/, config.json, metrics.jsonl, README.md, result.json and logs/. Ctrl-C
    leaves a checkpoint (exit code 130), from which the same command goes on. Exit code 1: it failed, and says why.
    """
    hyper = replace(common.hyper, learning_rate=lr, batch_size=batch_size, beta=beta, label_smoothing=label_smoothing)
    loop = replace(common.loop, reference=local_path(ref_model) if ref_model else None)
    config = local_config("dpo", policy_model, hyper, common)
    output = output_dir or default_output("dpo", policy_model)
    run_training(config, loop, dataset_dir, output, as_json=as_json)


def local_config(algorithm: str, model: str, hyper: Hyperparameters, common: Common) -> TrainingConfig:
    """What a job would ask for, on files."""
    return TrainingConfig(
        algorithm=algorithm,
        base_model=local_path(model),
        dataset=Dataset(source="files", sample_size=1),
        hyperparameters=hyper,
        compute=Compute(mixed_precision=common.mixed_precision),
        checkpointing=Checkpointing(save_interval=common.save_steps),
    )


def default_output(folder: str, model: str) -> Path:
    """`artifacts/rm/NAME` or `artifacts/dpo/NAME`, by the model's name."""
    return Path(ARTIFACTS, folder, Path(model).resolve().name if Path(model).is_dir() else Path(model).name)


def local_path(model: str) -> str:
    """A directory by its whole path; any other name as it is."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def run_training(config: TrainingConfig, loop: LoopOptions, data: Path, output: Path, *, as_json: bool) -> None:
    """Train on the files of `data` in a process of its own, and put the result into the output directory.

    Raises `typer.BadParameter` for options that no training can have, and `Rejected`.
    """
    if importlib.util.find_spec("peft") is None:
        raise MissingExtra("trainer", f"a training by {config.algorithm}")
    if problems := training_problems(config):
        raise typer.BadParameter("; ".join(problems))
    train, held_out = data / "train.jsonl", data / "eval.jsonl"
    if not train.is_file():
        raise Rejected(f"there is no {train}: ratchet data argilla-export makes one")
    require_no_file(output)
    output = output.resolve()
    request = LocalTraining(
        config=config,
        train=str(train.resolve()),
        held_out=str(held_out.resolve()) if held_out.is_file() and held_out.stat().st_size else None,
        output=str(output),
        digest=digest_of(train, held_out),
        loop=loop,
    )
    output.mkdir(parents=True, exist_ok=True)
    with locked(output):
        if not is_done(request, output):
            with progress("training", quiet=as_json) as bar:
                last = trained(output, bar)
            finish(last, output)
        tidy(output)
        result = json.loads((output / RESULT_FILE).read_bytes())
    print_answer(result, as_json, lambda: show_result(result))


def show_result(result: JsonObject) -> None:
    """The result for people: each figure with what it is, what is good and what is bad."""
    figures: dict[str, float] = result.get("metrics", {}) | result.get("scores", {})
    print_facts({name: value for name, value in result.items() if name not in ("metrics", "scores", "findings")})
    for sentence in result.get("findings", ()):
        console.print(f"- {sentence}", markup=False)
    rows = [(name, f"{value:.4g}", sentence_of(name, value)) for name, value in figures.items()]
    print_table(("figure", "value", "what it is"), rows, "no figures")


def digest_of(*files: Path) -> str:
    """Of what the files hold, those that are there."""
    whole = hashlib.sha256()
    for file in files:
        if file.is_file():
            with file.open("rb") as content:
                whole.update(hashlib.file_digest(content, "sha256").digest())
    return whole.hexdigest()


def is_done(request: LocalTraining, output: Path) -> bool:
    """Whether this very training is complete there. Raises `Rejected` for the directory of another one, or of files
    that a training would replace.
    """
    file, body = output / REQUEST, encode(request)
    if not file.is_file() and (taken := [name for name in WRITTEN if (output / name).exists()]):
        raise Rejected(f"{output} has {', '.join(taken)} of something else: name another --output-dir")
    if file.is_file() and file.read_bytes() != body and has_trained(output):
        raise Rejected(f"{output} holds a training with other options or data files: name another --output-dir")
    write_whole(file, body)
    return (output / RESULT_FILE).is_file()


def has_trained(output: Path) -> bool:
    """Whether a training got far enough there to leave something: a checkpoint, a train step or a result."""
    steps = output / METRICS_FILE
    begun = steps.is_file() and steps.stat().st_size > 0
    return begun or (output / RESULT_FILE).exists() or any((output / CHECKPOINTS).glob("*"))


def trained(output: Path, bar: Bar) -> JsonObject:
    """The last event of the training. An interrupt asks it for a checkpoint. Raises `typer.Exit` or `Rejected`."""
    log = output / LOG
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as messages:
        # In a session of its own: a Ctrl-C in the terminal reaches it as a request to stop, not as an interrupt.
        process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", RUNNER, str(output / REQUEST)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            env={**PASSIVE, **os.environ, **library_settings(os.environ)},
            start_new_session=True,
        )
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        with process, _stop_on_interrupt(process.terminate):
            last = last_event(process.stdout, bar)
    if last.get("type") == "stopped":
        has_checkpoint = any((output / CHECKPOINTS).glob("*"))
        resumed = "goes on from its checkpoint" if has_checkpoint else "begins anew: there is no checkpoint yet"
        errors.print(f"stopped after train step {last['step']}: the same command {resumed}")
        raise typer.Exit(ExitCode.INTERRUPTED)
    if last.get("type") != "finished":
        reason = str(last.get("message") or "the training process ended").rstrip(".")
        raise Rejected(f"{reason}; its log is {log}")
    return last


@contextmanager
def _stop_on_interrupt(stop: Callable[[], None]) -> Generator[None]:
    """An interrupt or a request to end stops the training, and goes on reading its events."""
    before = {
        number: signal.signal(number, lambda _number, _frame: stop()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def last_event(lines: Iterable[bytes], bar: Bar) -> JsonObject:
    """Read a training's events to their end, and show the train steps; empty when there is none.

    The last one gets what was found in the data, which the training reports at its start.
    """
    event: JsonObject = {}
    findings: list[str] = []
    for line in lines:
        event = decode(line)
        if event.get("type") == "started":
            findings = event.get("findings", [])
        if event.get("type") == "progressed":
            metrics: dict[str, float] = event["metrics"]
            shown = ("loss", "accuracy", "auc", "margin", "holdout_accuracy", "holdout_auc", "holdout_win_rate")
            note = " ".join(f"{name} {metrics[name]:.3f}" for name in shown if name in metrics)
            bar(event["step"], event["total_steps"], f"step {event['step']}/{event['total_steps']} {note}")
    return event | {"findings": findings}


def finish(last: JsonObject, output: Path) -> None:
    """Put the model and its documents in their places; the result's file, which comes last, says that all is there."""
    model, documents = output / MODEL, output / DOCUMENTS
    shutil.rmtree(model, ignore_errors=True)
    Path(last["directory"]).rename(model)
    tokenizer = output / TOKENIZER
    shutil.rmtree(tokenizer, ignore_errors=True)
    tokenizer.mkdir()
    for file in documents.iterdir():
        file.replace(output / file.name if file.name in OWN_DOCUMENTS else model / file.name)
    for name in TOKENIZER_FILES:
        if (model / name).is_file():
            shutil.copyfile(model / name, tokenizer / name)
    evaluation: JsonObject = last.get("evaluation") or {}
    improvement = {name: value for name, value in evaluation.items() if name == "improvement_over_baseline"}
    result = {
        "model": str(model),
        "kind": last["kind"],
        "samples": last["samples"],
        "metrics": last["metrics"],
        "scores": evaluation.get("benchmark_scores", {}) | improvement,
        "peak_memory_gb": last["peak_memory_gb"],
        "findings": last["findings"],
    }
    if stop := last.get("health_stop"):
        result["health_stop"] = stop["message"]
    write_whole(output / RESULT_FILE, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def tidy(output: Path) -> None:
    """Remove what a complete training needs no more."""
    for name in LEFT:
        if (output / name).is_dir():
            shutil.rmtree(output / name)
        else:
            (output / name).unlink(missing_ok=True)
