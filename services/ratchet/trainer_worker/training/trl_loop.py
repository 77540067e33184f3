"""TRL's training loop around a loss of our own: arguments, batches by index, progress, checkpoints and resume.

The examples stay with the objective; the trainer only shuffles their indices. So one loop serves every algorithm that
runs on TRL, and no collator of a library decides which tokens learn.
"""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from ratchet.bus.message import JsonObject
from ratchet.core.contract.training import HealthStop
from ratchet.core.rules.algorithms import LearningRates
from ratchet.trainer_worker.errors import Diverged, Unhealthy
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Run, TrainStep
from ratchet.trainer_worker.training.learner.health import described
from ratchet.trainer_worker.training.learner.last_healthy import LastHealthy
from ratchet.trainer_worker.training.learner.ranking import auc
from ratchet.trainer_worker.training.learner.watch import LoopLimits, Watch
from ratchet.trainer_worker.training.policy import TrainedPolicy
from ratchet.trainer_worker.training.ranks import ALONE, Ranks

WEIGHT_DECAY, ADAM_BETA2 = 0.01, 0.98
MAX_GRAD_NORM = 1.0
WARMUP_STEPS = 20
EVALUATIONS = 5
"""How often a training is judged by what is held out, where it does not say after how many train steps."""
HEALTH = "health.json"
"""In a checkpoint."""
SCHEDULER = "cosine_with_min_lr"
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
    "auc",
    "margin",
    "rewards_chosen",
    "rewards_rejected",
    "kl_divergence",
)
"""Metrics of a train step that are passed on."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A metric of some examples, so that those of several passes make the metric of all."""

    total: float
    count: int


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one pass."""

    total: Tensor
    """Summed over the items of the examples; the loop divides by all items of the accumulated batch."""
    metrics: Mapping[str, Mean]
    better: Sequence[float] = ()
    """Rewards of the answers that should rank higher, where it has any: no mean of passes is their AUC."""
    worse: Sequence[float] = ()
    """Of those that should rank lower."""


class Objective(Protocol):
    """What training minimises. Examples are known by their index."""

    def items(self, index: int) -> int:
        """How many terms of the mean an example has: its learning tokens, or one."""
        ...

    def tokens(self, index: int) -> int:
        """How many tokens of an example go through the model."""
        ...

    def losses(self, indices: Sequence[int]) -> Iterator[Loss]:
        """The losses of these examples with their gradient, in passes that fit into memory.

        A pass is computed when it is asked for, so that only one is held at a time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Defaults:
    """Of one algorithm, where a job leaves them out."""

    learning_rates: LearningRates
    epochs: int = 3


@dataclass(frozen=True, slots=True)
class TrlTraining:
    """What a job trains on, and how it goes through it."""

    objective: Objective
    examples: int
    samples: int
    """Examples as a job counts them."""
    defaults: Defaults
    pass_tokens: int
    """Most tokens that go through the model at once."""
    in_order: bool = False
    """Keep the order of the examples in every epoch."""
    keep: Callable[[Path], None] | None = None
    """Writes what a resumed training needs besides the trainer's own state."""
    ranks: Ranks = ALONE
    """Those that share the passes of `objective`."""
    evaluate: Callable[[], Mapping[str, float]] | None = None
    """Judges the policy as it is now on what is held out; None where nothing is."""


@dataclass(frozen=True, slots=True)
class Trained:
    """How the loop ended."""

    stopped_at: int | None
    metrics: dict[str, float]
    """Of the last train step."""
    effective: JsonObject
    """The common hyperparameters, read from what trained."""
    health_stop: HealthStop | None = None
    """Why it ended before its last train step, with the last healthy weights."""


def run_trl(spec: JobSpec, policy: TrainedPolicy, run: Run, training: TrlTraining) -> Trained:
    """Train `policy` in place until it is complete, a stop was asked for and saved, or it is no longer healthy.

    Raises `Unhealthy` when none of the weights are worth keeping, and `Diverged` for a loss or gradient that is no
    number.
    """
    hyper = spec.config.hyperparameters
    passes = math.ceil(training.examples / spec.batch_size)
    steps = (hyper.epochs or training.defaults.epochs) * math.ceil(passes / (hyper.gradient_accumulation or 1))
    total = hyper.max_steps or steps
    learns = [(name, parameter) for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
    watch = Watch(LoopLimits.of(spec.config.health), hyper.max_grad_norm or MAX_GRAD_NORM)
    stop: HealthStop | None = None
    with tempfile.TemporaryDirectory(prefix="trl-") as folder, LastHealthy(learns) as healthy:
        guard = _Guard(training, watch, healthy)
        progress = _Progress(run, training, guard, spec.loop.eval_steps or math.ceil(total / EVALUATIONS))
        args = _arguments(spec, policy, training, total, folder)
        trainer = _Trainer(
            objective=training.objective,
            ranks=training.ranks,
            trained=policy.trainable(),
            guard=guard,
            model=policy.model,
            args=args,
            data_collator=_Collator(training.objective),
            train_dataset=Dataset.from_dict({"example": list(range(training.examples))}),
            processing_class=policy.tokenizer,
            callbacks=[progress],
        )
        progress.trainer = trainer
        trainer.remove_callback(PrinterCallback)
        run.started(training.samples, total)
        if run.resume:
            guard.load(run.resume.directory)
        try:
            trainer.train(resume_from_checkpoint=str(run.resume.directory) if run.resume else None)
            if progress.stopped_at is None:
                trainer.judge_end()
        except _Broken as broken:
            stop = described(broken.stop, healthy.restore())
            if stop.kept_step is None:
                raise Unhealthy(stop) from broken
    return Trained(progress.stopped_at, progress.last, _effective(spec, policy, training, args, watch), stop)


def _effective(
    spec: JobSpec, policy: TrainedPolicy, training: TrlTraining, args: TrainingArguments, watch: Watch
) -> JsonObject:
    """See `Trained.effective`."""
    return {
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
        "lr_scheduler": spec.loop.lr_scheduler or SCHEDULER,
        "min_lr_rate": None if spec.loop.lr_scheduler else MIN_RATE,
        "adam_betas": [args.adam_beta1, args.adam_beta2],
        "health": asdict(watch.limits) if watch.limits else None,
        "bf16": policy.bf16,
        "pass_tokens": training.pass_tokens,
    }


class _Broken(Exception):
    """A figure is beyond its limit: the loop ends here."""

    def __init__(self, stop: HealthStop) -> None:
        super().__init__(stop.figure)
        self.stop = stop


@dataclass(slots=True)
class _Guard:
    """Judges the training, and keeps the weights that were found healthy. Raises `_Broken`."""

    training: TrlTraining
    watch: Watch
    healthy: LastHealthy

    def before_update(self, done: int, loss: float, norm: float | None, entropy: float | None) -> None:
        """Judge the weights that `done` train steps made, by the next one. Nothing learnt is nothing broken."""
        if stop := self.watch.judge(done + (norm is not None), loss, norm, entropy):
            raise _Broken(stop)
        if self.training.evaluate is None and norm is not None and self.watch.limits is not None:
            self.healthy.keep(done)

    def after_evaluation(self, done: int, scores: Mapping[str, float]) -> None:
        """Judge the weights that `done` train steps made, by what is held out."""
        if stop := self.watch.judge_held_out(done, scores):
            raise _Broken(stop)
        if self.watch.improves(scores) and self.watch.limits is not None:
            self.healthy.keep(done)

    def save(self, directory: Path) -> None:
        """All that a resumed training needs to judge as this one."""
        (directory / HEALTH).write_bytes(self.watch.encode())
        self.healthy.save(directory)

    def load(self, directory: Path) -> None:
        """Go on where `save` was called; a checkpoint of an earlier version has nothing to go on from."""
        if (directory / HEALTH).is_file():
            self.watch.decode((directory / HEALTH).read_bytes())
        self.healthy.load(directory)


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

    def __init__(
        self, *, objective: Objective, ranks: Ranks, trained: Sequence[nn.Parameter], guard: _Guard, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._objective = objective
        self._ranks = ranks
        self._trained = trained
        self._guard = guard
        self._loss = 0.0
        """Of the train step that is under way."""
        self._batch: list[int] = []
        """The examples of its newest micro-batch."""
        self.tokens = 0
        """That went through the model since they were last counted."""

    def training_step(
        self, model: Any, inputs: dict[str, Tensor], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Gradients of the mean over the items of the whole (accumulated) batch, pass by pass; returns that mean."""
        model.train()  # the trainer's own sign that it trains; the scorer sets what its passes need
        own = int((inputs["labels"][:, 1:] != IGNORED).sum())
        items = own if num_items_in_batch is None else num_items_in_batch
        indices: list[int] = self._ranks.of_leader(inputs["example"].tolist())
        self.tokens += sum(map(self._objective.tokens, indices))
        self._batch = indices
        value = torch.zeros((), device=self.args.device)
        metrics: dict[str, Mean] = {}
        better, worse = list[float](), list[float]()
        for loss in self._objective.losses(indices):
            share = loss.total / items
            self.accelerator.backward(share)
            value += share.detach()
            for name, one in loss.metrics.items():
                before = metrics.get(name, Mean(0.0, 0))
                metrics[name] = Mean(before.total + one.total, before.count + one.count)
            better += loss.better
            worse += loss.worse
        value, metrics, better, worse = self._of_all_ranks(value, metrics, better, worse)
        logged: Any = self._metrics["train"]
        if better and worse:
            logged["auc"].append(auc(better, worse))
        for name, mean in _averages(metrics).items():
            logged[name].append(mean)
        self._loss += float(value)
        return value

    def _of_all_ranks(
        self, value: Tensor, metrics: dict[str, Mean], better: list[float], worse: list[float]
    ) -> tuple[Tensor, dict[str, Mean], list[float], list[float]]:
        """What all ranks' passes came to; at the end of a train step, their gradients too.

        The trainer itself knows of no ranks: each of them has all of the data, and takes the same steps.
        """
        ranks = self._ranks
        if ranks.alone:
            return value, metrics, better, worse
        if self.accelerator.sync_gradients:
            ranks.add_gradients(self._trained)
        parts = ranks.gather((float(value), metrics, better, worse))
        every: dict[str, Mean] = {}
        for name, mean in (pair for part in parts for pair in part[1].items()):
            before = every.get(name, Mean(0.0, 0))
            every[name] = Mean(before.total + mean.total, before.count + mean.count)
        total = torch.full_like(value, sum(part[0] for part in parts))
        return total, every, [one for part in parts for one in part[2]], [one for part in parts for one in part[3]]

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The gradient's length, when all of a train step is computed and nothing of it learnt: here it is judged."""
        measured: Any = super()._get_grad_norm(model, grad_norm=grad_norm)
        norm = float(measured)
        loss, self._loss = self._loss, 0.0
        number = self.state.global_step + 1
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise Diverged(f"loss {loss}, gradient norm {norm} at train step {number}")
        logged: Any = self._metrics["train"]
        entropies: Sequence[float] = logged.get("policy_entropy", ())
        self._guard.before_update(number - 1, loss, norm, statistics.fmean(entropies) if entropies else None)
        return measured

    @torch.no_grad()
    def judge_end(self) -> None:
        """Judge the last weights, which no train step follows: by the newest examples, now that they are learnt."""
        items = sum(map(self._objective.items, self._batch))
        if items:
            own = sum(float(one.total) for one in self._objective.losses(self._batch))
            loss = sum(self._ranks.gather(own)) / items
            if not math.isfinite(loss):
                raise Diverged(f"weights of train step {self.state.global_step} give no finite numbers: loss {loss}")
            self._guard.before_update(self.state.global_step, loss, None, None)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save without TRL's model card: the checkpoint of a job has no use for it."""
        cast("Any", super(SFTTrainer, self))._save_checkpoint(model, trial)  # noqa: SLF001 - one class further up


def _averages(metrics: Mapping[str, Mean]) -> dict[str, float]:
    averages = {name: mean.total / mean.count for name, mean in metrics.items() if mean.count}
    if "rewards_chosen" in averages and "rewards_rejected" in averages:
        averages["margin"] = averages["rewards_chosen"] - averages["rewards_rejected"]
    return averages


class _Progress(TrainerCallback):
    """Reports train steps, hands checkpoints over, and ends the training once a stop was asked for and saved."""

    def __init__(self, run: Run, training: TrlTraining, guard: _Guard, eval_steps: int) -> None:
        self._run = run
        self._guard = guard
        self._keep = training.keep
        self._evaluate = training.evaluate
        self._eval_steps = eval_steps
        self.stopped_at: int | None = None
        self.last: dict[str, float] = {}
        self.trainer: _Trainer | None = None

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
        scores: Mapping[str, float] = {}
        if self._evaluate is not None and (step % self._eval_steps == 0 or step == state.max_steps):
            scores = self._evaluate()
        assert self.trainer is not None  # noqa: S101 - it calls this
        counted: dict[str, float] = {"tokens": self.trainer.tokens}
        self.trainer.tokens = 0
        self._run.stepped(TrainStep(step, state.max_steps, epoch, epochs, {**self.last, **scores, **counted}))
        if scores:
            self._guard.after_evaluation(step, scores)
        if step < state.max_steps and (self._run.stop_requested() or self._run.checkpoint_due(step)):
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Move the trainer's files into a checkpoint of the job."""
        source = Path(cast("str", args.output_dir), f"checkpoint-{state.global_step}")
        self._guard.save(source)
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
    hyper, defaults, loop = spec.config.hyperparameters, training.defaults, spec.loop
    warmup = min(WARMUP_STEPS, total // 10) if hyper.warmup_steps is None else hyper.warmup_steps
    return SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=spec.batch_size,
        gradient_accumulation_steps=hyper.gradient_accumulation or 1,
        num_train_epochs=hyper.epochs or defaults.epochs,
        max_steps=hyper.max_steps or -1,
        learning_rate=defaults.learning_rates.rate_of(hyper),
        lr_scheduler_type=loop.lr_scheduler or SCHEDULER,
        lr_scheduler_kwargs=None if loop.lr_scheduler else {"min_lr_rate": MIN_RATE},
        warmup_steps=warmup if loop.warmup_ratio is None else math.ceil(loop.warmup_ratio * total),
        weight_decay=WEIGHT_DECAY if loop.weight_decay is None else loop.weight_decay,
        adam_beta2=ADAM_BETA2,
        optim="adamw_torch_fused",
        max_grad_norm=MAX_GRAD_NORM if hyper.max_grad_norm is None else hyper.max_grad_norm,
        seed=hyper.seed or 0,
        data_seed=hyper.seed or 0,
        train_sampling_strategy="sequential" if training.in_order else "random",
        bf16=False,  # the scorer has the autocast, here as everywhere
        use_cpu=policy.device.type == "cpu",
        activation_checkpointing=False,  # the scorer recomputes what a pass needs
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
