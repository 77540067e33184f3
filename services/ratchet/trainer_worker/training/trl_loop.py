"""TRL's training loop around a loss of our own: arguments, batches by index, progress, checkpoints and resume.

The examples stay with the objective; the trainer only shuffles their indices. So one loop serves every algorithm that
runs on TRL, and no collator of a library decides which tokens learn.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from ratchet.bus.message import JsonObject
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Run, Step
from ratchet.trainer_worker.training.policy import TrainedPolicy

WEIGHT_DECAY, ADAM_BETA2 = 0.01, 0.98
WARMUP_STEPS = 20
MIN_RATE = 0.1
"""What the learning rate falls to, as a fraction of where it began."""
IGNORED = -100
"""Label of a position that the trainer does not count, as transformers has it."""
REPORTED = (
    "loss",
    "grad_norm",
    "learning_rate",
    "policy_entropy",
    "accuracy",
    "margin",
    "rewards_chosen",
    "rewards_rejected",
    "kl_divergence",
)
"""Metrics of a train step that are passed on."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one pass."""

    total: Tensor
    """Summed over the items of the examples; the loop divides by all items of the accumulated batch."""
    metrics: Mapping[str, float]


class Objective(Protocol):
    """What training minimises. Examples are known by their index."""

    def items(self, index: int) -> int:
        """How many terms of the mean an example has: its learning tokens, or one."""
        ...

    def loss(self, indices: Sequence[int]) -> Loss:
        """The loss of these examples, with gradient."""
        ...


@dataclass(frozen=True, slots=True)
class Defaults:
    """Of one algorithm, where a job leaves them out."""

    adapter_learning_rate: float
    full_learning_rate: float
    epochs: int = 3


@dataclass(frozen=True, slots=True)
class TrlTraining:
    """What a job trains on, and how it goes through it."""

    objective: Objective
    examples: int
    samples: int
    """Examples as a job counts them."""
    defaults: Defaults
    in_order: bool = False
    """Keep the order of the examples in every epoch."""
    keep: Callable[[Path], None] | None = None
    """Writes what a resumed training needs besides the trainer's own state."""


@dataclass(frozen=True, slots=True)
class Trained:
    """How the loop ended."""

    stopped_at: int | None
    metrics: dict[str, float]
    """Of the last train step."""
    effective: JsonObject
    """The common hyperparameters, read from what trained."""


def run_trl(spec: JobSpec, policy: TrainedPolicy, run: Run, training: TrlTraining) -> Trained:
    """Train `policy` in place until it is complete or a stop was asked for and saved."""
    hyper = spec.config.hyperparameters
    passes = math.ceil(training.examples / spec.batch_size)
    steps = (hyper.epochs or training.defaults.epochs) * math.ceil(passes / (hyper.gradient_accumulation or 1))
    total = hyper.max_steps or steps
    with tempfile.TemporaryDirectory(prefix="trl-") as folder:
        progress = _Progress(run, training.keep)
        args = _arguments(spec, policy, training, total, folder)
        trainer = _Trainer(
            objective=training.objective,
            model=policy.model,
            args=args,
            data_collator=_Collator(training.objective),
            train_dataset=Dataset.from_dict({"example": list(range(training.examples))}),
            processing_class=policy.tokenizer,
            callbacks=[progress],
        )
        trainer.remove_callback(PrinterCallback)
        run.started(training.samples, total)
        trainer.train(resume_from_checkpoint=str(run.resume.directory) if run.resume else None)
    effective = {
        **policy.effective(),
        "learning_rate": args.learning_rate,
        "batch_size": args.per_device_train_batch_size,
        "gradient_accumulation": args.gradient_accumulation_steps,
        "epochs": int(args.num_train_epochs),
        "max_steps": args.max_steps if args.max_steps > 0 else None,
        "warmup_steps": int(args.warmup_steps),
        "max_grad_norm": args.max_grad_norm,
        "seed": args.seed,
        "weight_decay": args.weight_decay,
        "adam_beta2": args.adam_beta2,
        "bf16": bool(args.bf16),
    }
    return Trained(progress.stopped_at, progress.last, effective)


@dataclass(frozen=True, slots=True)
class _Collator:
    """Names the examples of a batch, and labels so that the trainer counts their items."""

    objective: Objective

    def __call__(self, features: Sequence[dict[str, int]]) -> dict[str, Tensor]:
        indices = [feature["example"] for feature in features]
        items = [self.objective.items(index) for index in indices]
        # The trainer shifts labels by one before it counts, so the first column is never an item.
        labels = torch.full((len(indices), 1 + max(items)), IGNORED)
        for line, count in zip(labels, items, strict=True):
            line[1 : 1 + count] = 0
        return {"example": torch.tensor(indices), "labels": labels}


class _Trainer(SFTTrainer):  # pyright: ignore[reportUntypedBaseClass]
    """TRL's trainer with the loss of an objective."""

    def __init__(self, *, objective: Objective, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._objective = objective

    def compute_loss(
        self,
        model: Any,  # noqa: ARG002 - the objective holds it
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Mean over the items of the whole (accumulated) batch."""
        assert not return_outputs, "there is no evaluation loop here"  # noqa: S101
        loss = self._objective.loss(inputs["example"].tolist())
        logged: Any = self._metrics["train"]
        for name, value in loss.metrics.items():
            logged[name].append(value)
        own = int((inputs["labels"][:, 1:] != IGNORED).sum())
        return loss.total / (own if num_items_in_batch is None else num_items_in_batch)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save without TRL's model card: the checkpoint of a job has no use for it."""
        cast("Any", super(SFTTrainer, self))._save_checkpoint(model, trial)  # noqa: SLF001 - one class further up


class _Progress(TrainerCallback):
    """Reports train steps, hands checkpoints over, and ends the training once a stop was asked for and saved."""

    def __init__(self, run: Run, keep: Callable[[Path], None] | None) -> None:
        self._run = run
        self._keep = keep
        self.stopped_at: int | None = None
        self.last: dict[str, float] = {}

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002 - the callback's signature
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **_: Any,
    ) -> None:
        """Pass on the metrics of a train step, and ask the trainer to save where a checkpoint is due."""
        if not logs or "loss" not in logs:
            return
        self.last = {name: float(logs[name]) for name in REPORTED if name in logs}
        epochs = max(1, state.num_train_epochs)
        epoch = min(epochs, math.floor(logs.get("epoch", 0.0)) + 1)
        step = state.global_step
        self._run.stepped(Step(step, state.max_steps, epoch, epochs, self.last))
        if step < state.max_steps and (self._run.stop_requested() or self._run.checkpoint_due(step)):
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Move the trainer's files into a checkpoint of the job."""
        source = Path(cast("str", args.output_dir), f"checkpoint-{state.global_step}")
        if self._keep is not None:
            self._keep(source)

        def move_files(target: Path) -> None:
            for path in sorted(source.iterdir()):
                shutil.move(path, target / path.name)

        self._run.save(state.global_step, move_files)
        source.rmdir()
        # Only now: the trainer saves its control flags too, and would stop at once after a resume.
        if self._run.stop_requested():
            self.stopped_at = state.global_step
            control.should_training_stop = True


def _arguments(spec: JobSpec, policy: TrainedPolicy, training: TrlTraining, total: int, folder: str) -> SFTConfig:
    hyper, defaults = spec.config.hyperparameters, training.defaults
    rate = defaults.full_learning_rate if hyper.full_finetune else defaults.adapter_learning_rate
    model: Any = policy.model
    return SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=spec.batch_size,
        gradient_accumulation_steps=hyper.gradient_accumulation or 1,
        num_train_epochs=hyper.epochs or defaults.epochs,
        max_steps=hyper.max_steps or -1,
        learning_rate=hyper.learning_rate or rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": MIN_RATE},
        warmup_steps=min(WARMUP_STEPS, total // 10) if hyper.warmup_steps is None else hyper.warmup_steps,
        weight_decay=WEIGHT_DECAY,
        adam_beta2=ADAM_BETA2,
        optim="adamw_torch_fused",
        max_grad_norm=1.0 if hyper.max_grad_norm is None else hyper.max_grad_norm,
        seed=hyper.seed or 0,
        data_seed=hyper.seed or 0,
        train_sampling_strategy="sequential" if training.in_order else "random",
        bf16=policy.bf16,
        use_cpu=policy.device.type == "cpu",
        activation_checkpointing=bool(model.is_activation_checkpointing),
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        dataloader_pin_memory=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        push_to_hub=False,
        disable_tqdm=True,
    )
