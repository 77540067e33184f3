"""Supervised fine-tuning with TRL, on assistant tokens only, fed by our own rows and collator."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from ratchet.messages.training import Hyperparameters
from ratchet.trainer_worker.algorithms.base import Outcome, Run, Step
from ratchet.trainer_worker.chats import ChatCounts, ChatRows, Conversation
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.learner.logprobs import Scorer
from ratchet.trainer_worker.learner.rows import Row
from ratchet.trainer_worker.policy import TrainedPolicy
from ratchet.trainer_worker.snapshot import LoggedTrajectory

ADAPTER_LEARNING_RATE, FULL_LEARNING_RATE = 2e-4, 2e-5
BATCH_SIZE, EPOCHS, MAX_LENGTH = 16, 3, 4096
"""Defaults; `max_length` is also bounded by the positions that the model has."""
WEIGHT_DECAY, ADAM_BETA2 = 0.01, 0.98
WARMUP_STEPS = 20
IGNORED = -100
"""Label of tokens that do not learn, as transformers counts them."""


def train(spec: JobSpec, policy: TrainedPolicy, trajectories: Sequence[LoggedTrajectory], run: Run) -> Outcome:
    """See `algorithms.base.Algorithm`."""
    hyper = spec.config.hyperparameters
    model: Any = policy.model
    positions = getattr(model.config, "max_position_embeddings", None) or MAX_LENGTH
    chats = ChatRows(policy.tokenizer, min(hyper.max_length or MAX_LENGTH, positions))
    rows = chats.rows([Conversation(one.trajectory_id, one.messages, one.tools) for one in trajectories])
    samples = len({row.trajectory_id for row in rows})
    with tempfile.TemporaryDirectory(prefix="sft-") as folder:
        progress = _Progress(run)
        trainer = _MaskedTrainer(
            scorer=Scorer(policy.model, bf16=policy.bf16),
            rows=rows,
            model=model,
            args=_arguments(hyper, policy, len(rows), Path(folder)),
            data_collator=_Collator(rows),
            train_dataset=Dataset.from_dict({"row": list(range(len(rows)))}),
            processing_class=policy.tokenizer,
            callbacks=[progress],
        )
        trainer.remove_callback(PrinterCallback)
        run.started(samples, _total_steps(hyper, len(rows)))
        resume = str(run.resume.directory) if run.resume else None
        trainer.train(resume_from_checkpoint=resume)
    if progress.stopped_at is not None:
        return Outcome(samples=samples, stopped_at=progress.stopped_at)
    metrics = _count_metrics(chats.counts, rows) | progress.last
    return Outcome(samples=samples, metrics=metrics, probe_prompt=min((_prompt(row) for row in rows), key=len))


@dataclass(frozen=True, slots=True)
class _Collator:
    """Names the rows of a batch, and labels so that the trainer counts the tokens that learn."""

    rows: Sequence[Row]

    def __call__(self, features: Sequence[dict[str, int]]) -> dict[str, Tensor]:
        chosen = [self.rows[feature["row"]] for feature in features]
        width = max(len(row.token_ids) for row in chosen)
        labels = torch.full((len(chosen), width), IGNORED)
        for line, row in zip(labels, chosen, strict=True):
            ids, mask = torch.tensor(row.token_ids), torch.tensor(row.loss_mask)
            line[: len(ids)] = ids.masked_fill(~mask, IGNORED)
        return {"row": torch.tensor([feature["row"] for feature in features]), "labels": labels}


class _MaskedTrainer(SFTTrainer):  # pyright: ignore[reportUntypedBaseClass]
    """TRL's trainer with the loss on our rows: only learning positions reach the vocabulary."""

    def __init__(self, *, scorer: Scorer, rows: Sequence[Row], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._scorer = scorer
        self._rows = rows

    def compute_loss(
        self,
        model: Any,  # noqa: ARG002 - the scorer holds it
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Negative log-likelihood per learning token of the whole (accumulated) batch."""
        assert not return_outputs, "there is no evaluation loop here"  # noqa: S101
        scores = self._scorer.score([self._rows[index] for index in inputs["row"].tolist()])
        metrics: Any = self._metrics["train"]
        metrics["policy_entropy"].append(float(scores.entropy_N.detach().mean()))
        count = len(scores.logprobs_N) if num_items_in_batch is None else num_items_in_batch
        return -scores.logprobs_N.sum() / count

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Without TRL's model card, which the checkpoint of a job has no use for."""
        cast("Any", super(SFTTrainer, self))._save_checkpoint(model, trial)  # noqa: SLF001 - one class further up


class _Progress(TrainerCallback):
    """Reports train steps, hands checkpoints over, and ends the training once a stop was asked for and saved."""

    def __init__(self, run: Run) -> None:
        self._run = run
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
        names = ("loss", "grad_norm", "learning_rate", "policy_entropy")
        self.last = {name: float(logs[name]) for name in names if name in logs}
        epochs = max(1, state.num_train_epochs)
        epoch = min(epochs, math.floor(logs.get("epoch", 0.0)) + 1)
        step = state.global_step
        self._run.stepped(Step(step, state.max_steps, epoch, epochs, self.last))
        if step < state.max_steps and (self._run.stop_requested() or self._run.checkpoint_due(step)):
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Move the trainer's files into a checkpoint of the job."""
        source = Path(cast("str", args.output_dir), f"checkpoint-{state.global_step}")
        self._run.save(state.global_step, partial(_move_files, source))
        source.rmdir()
        # Only now: the trainer saves its control flags too, and would stop at once after a resume.
        if self._run.stop_requested():
            self.stopped_at = state.global_step
            control.should_training_stop = True


def _move_files(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        shutil.move(path, target / path.name)


def _arguments(hyper: Hyperparameters, policy: TrainedPolicy, rows: int, folder: Path) -> SFTConfig:
    total = _total_steps(hyper, rows)
    rate = FULL_LEARNING_RATE if hyper.full_finetune else ADAPTER_LEARNING_RATE
    warmup = min(WARMUP_STEPS, total // 10) if hyper.warmup_steps is None else hyper.warmup_steps
    accumulation = hyper.gradient_accumulation or 1
    model: Any = policy.model
    return SFTConfig(
        output_dir=str(folder),
        per_device_train_batch_size=hyper.batch_size or BATCH_SIZE,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=hyper.epochs or EPOCHS,
        max_steps=hyper.max_steps or -1,
        learning_rate=hyper.learning_rate or rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        warmup_steps=warmup,
        weight_decay=WEIGHT_DECAY,
        adam_beta2=ADAM_BETA2,
        optim="adamw_torch_fused",
        max_grad_norm=1.0 if hyper.max_grad_norm is None else hyper.max_grad_norm,
        seed=hyper.seed or 0,
        data_seed=hyper.seed or 0,
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


def _total_steps(hyper: Hyperparameters, rows: int) -> int:
    if hyper.max_steps:
        return hyper.max_steps
    passes = math.ceil(rows / (hyper.batch_size or BATCH_SIZE))
    return (hyper.epochs or EPOCHS) * math.ceil(passes / (hyper.gradient_accumulation or 1))


def _prompt(row: Row) -> list[int]:
    """What precedes the first token that learns."""
    return row.token_ids[: row.loss_mask.index(True)]


def _count_metrics(counts: ChatCounts, rows: Sequence[Row]) -> dict[str, float]:
    return {
        "rows": len(rows),
        "trained_tokens": sum(row.trained for row in rows),
        "split_conversations": counts.split,
        "unrenderable_conversations": sum(counts.unrenderable.values()),
        "truncated_rows": counts.truncated,
    }
