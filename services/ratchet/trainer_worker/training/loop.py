"""The loop of `sft`, `dpo`, `kto` and `reward_model`: batches by index, schedule, checkpoints and resume.

The examples stay with the objective; the loop only shuffles their indices. So it serves every loss, and no collator of
a library decides which tokens learn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from ratchet.bus.message import JsonObject
from ratchet.core.contract.training import HealthStop
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.training_options import COSINE
from ratchet.trainer_worker.errors import Diverged, StopRequested, Unhealthy
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Run, TrainStep
from ratchet.trainer_worker.training.learner.health import asked_limits, described
from ratchet.trainer_worker.training.learner.last_healthy import LastHealthy, read_state, write_state
from ratchet.trainer_worker.training.learner.optimizer import (
    ADAM_BETAS,
    FirstGradients,
    Schedule,
    optimizer_of,
    set_rate,
)
from ratchet.trainer_worker.training.learner.ranking import auc
from ratchet.trainer_worker.training.learner.watch import LoopLimits, Watch
from ratchet.trainer_worker.training.policy import TrainedPolicy
from ratchet.trainer_worker.training.ranks import ALONE, Ranks

WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0
WARMUP_STEPS = 20
EVALUATIONS = 5
"""How often a training is judged by what is held out, where it does not say after how many train steps."""
HEALTH = "health.json"
"""In a checkpoint."""


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
class Lesson:
    """What a job trains on, and how it goes through it."""

    objective: Objective
    examples: int
    samples: int
    """Examples as a job counts them."""
    pass_tokens: int
    """Most tokens that go through the model at once."""
    in_order: bool = False
    """Keep the order of the examples in every epoch."""
    keep: Callable[[Path], None] | None = None
    """Writes what a resumed training needs besides the loop's own state."""
    ranks: Ranks = ALONE
    """Those that share the passes of `objective`."""
    evaluate: Callable[[], Mapping[str, float]] | None = None
    """Judges the policy as it is now on what is held out; None where nothing is."""


@dataclass(frozen=True, slots=True)
class Trained:
    """How the loop ended."""

    metrics: dict[str, float]
    """Of the last train step."""
    effective: JsonObject
    """The common hyperparameters, as they trained."""
    health_stop: HealthStop | None = None
    """Why it ended before its last train step, with the last healthy weights."""


def run_loop(spec: JobSpec, policy: TrainedPolicy, run: Run, lesson: Lesson) -> Trained:
    """Train `policy` in place until it is complete, or no longer healthy.

    Raises `StopRequested` once a stop was asked for and saved, `Unhealthy` when none of the weights are worth keeping,
    `Diverged` for a loss or gradient that is not finite, and `NoGradient`.
    """
    learns = [(name, parameter) for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
    stop: HealthStop | None = None
    with LastHealthy(learns) as healthy:
        loop = _Loop(spec, policy, run, lesson, dict(learns), healthy)
        run.started(lesson.samples, loop.total)
        if run.resume:
            loop.load(run.resume.directory)
        try:
            loop.run()
        except _Broken as broken:
            stop = described(broken.stop, healthy.restore())
            if stop.kept_step is None:
                raise Unhealthy(stop) from broken
    return Trained(loop.last, loop.effective(), stop)


class _Broken(Exception):
    """A figure is beyond its limit: the loop ends here."""

    def __init__(self, stop: HealthStop) -> None:
        super().__init__(stop.figure)
        self.stop = stop


class _Loop:
    """One training: its optimizer, schedule and place in the data. `done` counts finished train steps."""

    def __init__(
        self,
        spec: JobSpec,
        policy: TrainedPolicy,
        run: Run,
        lesson: Lesson,
        learns: Mapping[str, nn.Parameter],
        healthy: LastHealthy,
    ) -> None:
        hyper, options = spec.config.hyperparameters, spec.loop
        self._policy, self._run, self._lesson = policy, run, lesson
        self._learns, self._healthy = learns, healthy
        self._size, self._accumulation = spec.batch_size, hyper.gradient_accumulation or 1
        self._seed = hyper.seed or 0
        algorithm = ALGORITHMS[spec.config.algorithm]
        self._epochs, self._max_steps = hyper.epochs or algorithm.default_epochs, hyper.max_steps
        self._steps_per_epoch = math.ceil(math.ceil(lesson.examples / self._size) / self._accumulation)
        self.total = self._max_steps or self._epochs * self._steps_per_epoch
        ratio = options.warmup_ratio
        warmup = hyper.warmup_steps if ratio is None else math.ceil(ratio * self.total)
        self._schedule = Schedule.of(hyper.lr_scheduler or COSINE, warmup, self.total, WARMUP_STEPS)
        self._rate = algorithm.learning_rate_of(hyper)
        self._decay = WEIGHT_DECAY if hyper.weight_decay is None else hyper.weight_decay
        self._clip = MAX_GRAD_NORM if hyper.max_grad_norm is None else hyper.max_grad_norm
        self._optimizer = optimizer_of(learns.values(), self._rate, self._decay)
        self._eval_steps = options.eval_steps or math.ceil(self.total / EVALUATIONS)
        self._watch = Watch(asked_limits(LoopLimits, spec.config.health), hyper.max_grad_norm or MAX_GRAD_NORM)
        self._gradients = FirstGradients()
        self.done = 0
        self.last: dict[str, float] = {}

    def run(self) -> None:
        """Make all train steps that are left."""
        while self.done < self.total:
            metrics = self._step()
            number, scores = self.done, dict[str, float]()
            if self._lesson.evaluate is not None and (number % self._eval_steps == 0 or number == self.total):
                scores = dict(self._lesson.evaluate())
            self.last = {name: value for name, value in metrics.items() if name != "tokens"}
            epoch, epochs = self._epoch_of(number), self._epoch_of(self.total)
            self._run.stepped(TrainStep(number, self.total, epoch, epochs, {**self.last, **scores, **metrics}))
            if scores:
                # Judge the present weights by what is held out.
                if stop := self._watch.judge_held_out(self.done, scores):
                    raise _Broken(stop)
                if self._watch.improves(scores) and self._watch.limits is not None:
                    self._healthy.keep(self.done)
            if number < self.total and (self._run.stop_requested() or self._run.checkpoint_due(number)):
                self._run.save(number, self._write)
                if self._run.stop_requested():
                    raise StopRequested
        self._judge_end()

    def load(self, directory: Path) -> None:
        """Go on where a checkpoint was written."""
        state = read_state(directory, self._learns)
        self._optimizer.load_state_dict(state["optimizer"])
        self.done, self._gradients = state["done"], FirstGradients(math.inf)
        self._watch.decode((directory / HEALTH).read_bytes())
        self._healthy.load(directory)

    def effective(self) -> JsonObject:
        return {
            **self._policy.effective(),
            "batch_size": self._size,
            "gradient_accumulation": self._accumulation,
            "epochs": self._epochs,
            "max_steps": self._max_steps,
            **self._schedule.effective(self._rate),
            "max_grad_norm": self._clip,
            "seed": self._seed,
            "weight_decay": self._decay,
            "adam_betas": [*ADAM_BETAS],
            "health": asdict(self._watch.limits) if self._watch.limits else None,
            "bf16": self._policy.bf16,
            "pass_tokens": self._lesson.pass_tokens,
        }

    def _write(self, directory: Path) -> None:
        """Write all that a resumed training needs to go on bit for bit, and to judge as this one."""
        write_state(directory, self._learns, done=self.done, optimizer=self._optimizer.state_dict())
        (directory / HEALTH).write_bytes(self._watch.encode())
        self._healthy.save(directory)
        if self._lesson.keep is not None:
            self._lesson.keep(directory)

    def _epoch_of(self, number: int) -> int:
        return (number - 1) // self._steps_per_epoch + 1

    def _batches(self, number: int) -> list[list[int]]:
        """The examples of a train step, one micro-batch after the other, in an order fixed by seed and epoch."""
        epoch, place = divmod(number - 1, self._steps_per_epoch)
        order = list(range(self._lesson.examples))
        if not self._lesson.in_order:
            random.Random(f"{self._seed}-{epoch}").shuffle(order)
        first = place * self._accumulation * self._size
        own = order[first : first + self._accumulation * self._size]
        return [own[start : start + self._size] for start in range(0, len(own), self._size)]

    def _step(self) -> dict[str, float]:
        """One train step: gradients of the mean over the items of its examples, judged before anything is learnt."""
        number, objective, ranks = self.done + 1, self._lesson.objective, self._lesson.ranks
        batches = self._batches(number)
        chosen = [index for batch in batches for index in batch]
        items = sum(map(objective.items, chosen))
        self._policy.model.train()  # the scorer sets what its passes need
        value, sums = 0.0, dict[str, Mean]()
        better, worse = list[float](), list[float]()
        for loss in (loss for batch in batches for loss in objective.losses(batch)):
            share = loss.total / items
            share.backward()  # pyright: ignore[reportUnknownMemberType] - torch leaves it untyped
            value += float(share.detach())
            _add(sums, loss.metrics)
            better += loss.better
            worse += loss.worse
        ranks.add_gradients(self._learns.values())
        parts = ranks.gather((value, sums, better, worse))
        loss_of_all, every = sum(part[0] for part in parts), dict[str, Mean]()
        for part in parts:
            _add(every, part[1])
        norm = float(nn.utils.clip_grad_norm_(self._learns.values(), self._clip or math.inf))
        if not (math.isfinite(loss_of_all) and math.isfinite(norm)):
            raise Diverged(f"loss {loss_of_all}, gradient norm {norm} at train step {number}")
        self._gradients.add(number, self.total, min(norm, self._clip or math.inf))
        metrics = {name: mean.total / mean.count for name, mean in every.items() if mean.count}
        self._judge(loss_of_all, norm, metrics.get("policy_entropy"))
        ranked = [score for part in parts for score in part[2]], [score for part in parts for score in part[3]]
        if all(ranked):
            metrics["auc"] = auc(*ranked)
        if "rewards_chosen" in metrics and "rewards_rejected" in metrics:
            metrics["margin"] = metrics["rewards_chosen"] - metrics["rewards_rejected"]
        rate = self._rate * self._schedule.share(number)
        set_rate(self._optimizer, rate)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.done = number
        tokens = float(sum(map(objective.tokens, chosen)))
        return {"loss": loss_of_all, "grad_norm": norm, "learning_rate": rate, **metrics, "tokens": tokens}

    def _judge(self, loss: float, norm: float | None, entropy: float | None) -> None:
        """Judge the weights that `done` train steps made, by the next one. Nothing learnt is nothing broken."""
        if stop := self._watch.judge(self.done + (norm is not None), loss, norm, entropy):
            raise _Broken(stop)
        if self._lesson.evaluate is None and norm is not None and self._watch.limits is not None:
            self._healthy.keep(self.done)

    @torch.no_grad()
    def _judge_end(self) -> None:
        """Judge the last weights, which no train step follows: by the newest examples, now that they are learnt."""
        batch, objective = self._batches(self.done)[-1], self._lesson.objective
        items = sum(map(objective.items, batch))
        if items:
            own = sum(float(loss.total) for loss in objective.losses(batch))
            loss = sum(self._lesson.ranks.gather(own)) / items
            if not math.isfinite(loss):
                raise Diverged(f"weights of train step {self.done} give no finite numbers: loss {loss}")
            self._judge(loss, None, None)


def _add(sums: dict[str, Mean], metrics: Mapping[str, Mean]) -> None:
    for name, mean in metrics.items():
        before = sums.get(name, Mean(0.0, 0))
        sums[name] = Mean(before.total + mean.total, before.count + mean.count)
