"""One update of a policy: epochs of train steps over fixed rows, resumable bit for bit.

Shapes: _N trained tokens of a micro-batch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ratchet.core.rules.training_options import LINEAR
from ratchet.trainer_worker.errors import Diverged
from ratchet.trainer_worker.training.learner.health import Vitals
from ratchet.trainer_worker.training.learner.last_healthy import read_state, write_state
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.losses import Loss, Objective, Tokens, policy_loss, row_weights
from ratchet.trainer_worker.training.learner.optimizer import Schedule, optimizer_of, set_rate
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.learner.start import FixedRows, behavior_logprobs, effective_sample_size

RAMP_STEPS = 8
"""Most train steps until the full learning rate, where a job names none."""


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """How an update goes through the rows."""

    learning_rate: float
    batch_size: int
    """Trajectories per train step, over all its micro-batches."""
    epochs: int
    max_steps: int | None = None
    accumulation: int = 1
    """Micro-batches per train step."""
    max_grad_norm: float = 1.0
    ramp_steps: int | None = None
    """Train steps until the full learning rate; None: a tenth of them, at most `RAMP_STEPS`."""
    scheduler: str = LINEAR
    weight_decay: float = 0.0
    seed: int = 0
    normalization: str = "trajectory"
    constant_tokens: int = 1
    """Divisor of the `constant` normalisation."""
    entropy_coefficient: float = 0.0
    objective: Objective = field(default_factory=Objective)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the forward and backward passes of one train step say about the policy before its update."""

    metrics: dict[str, float]
    vitals: Vitals
    shifts: Mapping[str, float]
    """Mean change of each trajectory's log-probabilities since the start, in nats per token."""


class Update:
    """Owns the optimiser and the order of the data. `done` counts finished train steps.

    A train step is `measure`, then `apply`.
    """

    def __init__(self, scorer: Scorer, fixed: FixedRows, options: UpdateOptions) -> None:
        self._scorer = scorer
        self.fixed = fixed
        self.options = options
        self._policy = [p for p in scorer.model.parameters() if p.requires_grad]
        self._optimizer = optimizer_of(self._policy, options.learning_rate, options.weight_decay)
        self._members: dict[str, list[int]] = {}
        for index, row in enumerate(fixed.rows):
            self._members.setdefault(row.trajectory_id, []).append(index)
        self.steps_per_epoch = math.ceil(len(self._members) / options.batch_size)
        self.total = min(options.max_steps or 10**9, options.epochs * self.steps_per_epoch)
        self.schedule = Schedule.of(options.scheduler, options.ramp_steps, self.total, RAMP_STEPS)
        self.done = 0

    def epoch_of(self, number: int) -> int:
        """Epoch of train step `number` (both counted from 1)."""
        return (number - 1) // self.steps_per_epoch + 1

    def measure(self) -> Measured:
        """Gradients and figures of the next train step. Raises `Diverged` when they are no numbers."""
        number = self.done + 1
        ranks = self._scorer.ranks
        if not ranks.alone:  # every rank drops out other things, the same in a training that is resumed with as many
            torch.manual_seed(random.Random(f"{self.options.seed}-{number}-{ranks.index}").getrandbits(63))
        measured = self._measured(self._batch(number), backward=True)
        self._scorer.ranks.add_gradients(self._policy)
        norm = float(nn.utils.clip_grad_norm_(self._policy, self.options.max_grad_norm))
        _check_finite(measured.metrics | {"grad_norm": norm}, f"at train step {number}")
        return Measured(
            measured.metrics | {"grad_norm": norm, "learning_rate": self._rate(number)},
            replace(measured.vitals, grad_norm=norm),
            measured.shifts,
        )

    @torch.no_grad()
    def measure_end(self) -> Measured:
        """The figures of the last train step's rows under the weights that it made. Raises `Diverged` when they are no
        numbers.
        """
        measured = self._measured(self._batch(self.done), backward=False)
        _check_finite(measured.metrics, f"after train step {self.done}")
        return measured

    def apply(self) -> None:
        """Take the optimiser's step with the gradients that were measured."""
        number = self.done + 1
        set_rate(self._optimizer, self._rate(number))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.done = number

    def _rate(self, number: int) -> float:
        return self.options.learning_rate * self.schedule.share(number)

    def save(self, directory: Path) -> None:
        """Write weights, optimiser, random state and everything fixed at the start."""
        write_state(directory, dict(self.named()), done=self.done, optimizer=self._optimizer.state_dict())
        self.fixed.save(directory)

    def load(self, directory: Path) -> None:
        """Go on where `save` was called."""
        state = read_state(directory, dict(self.named()))
        self._optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What learns, by name."""
        yield from ((name, p) for name, p in self._scorer.model.named_parameters() if p.requires_grad)

    def _batch(self, number: int) -> list[int]:
        """Indices of the rows of a train step: all rows of some trajectories, in an order fixed by seed and epoch."""
        epoch, place = divmod(number - 1, self.steps_per_epoch)
        order = sorted(self._members)
        random.Random(f"{self.options.seed}-{epoch}").shuffle(order)
        size = self.options.batch_size
        return [index for name in order[place * size : (place + 1) * size] for index in self._members[name]]

    def _measured(self, chosen: Sequence[int], *, backward: bool) -> Measured:
        """The rows of a train step, one pass after the other, with or without their gradients.

        Of several ranks each runs its passes; what they say of the policy is put together.
        """
        rows = [self.fixed.rows[index] for index in chosen]
        tokens = sum(row.trained for row in rows)
        weights = row_weights(
            self.options.normalization,
            [row.trajectory_id for row in rows],
            [row.trained for row in rows],
            self.options.constant_tokens,
        )
        size = math.ceil(len(chosen) / max(1, self.options.accumulation))
        done: list[int] = []
        losses: list[Loss] = []
        entropy, several = 0.0, not self._scorer.ranks.alone
        for begin in range(0, len(chosen), size):
            # By the weights the gradients of passes that fit into memory add up to the step's.
            for places in self._scorer.passes([[row] for row in rows[begin : begin + size]]):
                part = [chosen[begin + place] for place in places]
                loss, total, own = self._one_pass(part, [weights[begin + place] for place in places], tokens)
                if backward:
                    total.backward()  # pyright: ignore[reportUnknownMemberType] - torch leaves it untyped
                losses.append(loss.of_numbers() if several else replace(loss, value=loss.value.detach()))
                entropy += own
                done += part
        parts = self._scorer.ranks.gather((losses, done, entropy))
        losses = [loss for theirs, _, _ in parts for loss in theirs]
        done = [index for _, theirs, _ in parts for index in theirs]
        entropy = sum(theirs for _, _, theirs in parts)
        metrics = _step_metrics(losses, tokens)
        metrics["policy_entropy"] = entropy / tokens
        metrics["tokens"] = sum(row.length for row in rows)
        shifts_R = torch.cat([loss.shift_R for loss in losses]).tolist()
        shifts = _trajectory_shifts([self.fixed.rows[index] for index in done], shifts_R)
        return Measured(metrics, self._vitals(metrics, chosen), shifts)

    def _one_pass(self, part: Sequence[int], weights: Sequence[float], step_tokens: int) -> tuple[Loss, Tensor, float]:
        """(policy loss, what to minimise, summed entropy) of one pass; values are shares of the train step's."""
        options, fixed = self.options, self.fixed
        rows = [fixed.rows[index] for index in part]
        scores = self._scorer.score(rows, entropy_gradient=options.entropy_coefficient > 0)
        sizes, device = torch.tensor([row.trained for row in rows]), self._scorer.device
        tokens = Tokens(
            logprobs_N=scores.logprobs_N,
            proximal_N=self._gather(fixed.proximal, part),
            behavior_N=behavior_logprobs(rows).to(device),
            advantages_N=self._gather(fixed.advantages, part),
            weights_N=torch.tensor(weights).repeat_interleave(sizes).to(device),
            row_N=torch.arange(len(rows)).repeat_interleave(sizes).to(device),
            rows=len(rows),
            reference_N=None if fixed.reference is None else self._gather(fixed.reference, part),
        )
        loss = policy_loss(tokens, options.objective)
        total = loss.value
        if options.entropy_coefficient:
            total = total - options.entropy_coefficient * scores.entropy_N.sum() / step_tokens
        return loss, total, float(scores.entropy_N.detach().sum())

    def _vitals(self, metrics: Mapping[str, float], chosen: Sequence[int]) -> Vitals:
        """What is judged of a train step, beside what the same tokens were at the start."""
        fixed = self.fixed
        behavior_N = behavior_logprobs([fixed.rows[index] for index in chosen])
        start_N = torch.cat([fixed.proximal[index] for index in chosen]) - behavior_N
        return Vitals(
            ess=metrics["ess"],
            start_ess=effective_sample_size(start_N.tolist()),
            approx_kl=metrics["approx_kl"],
            entropy=metrics["policy_entropy"],
            start_entropy=float(torch.cat([fixed.entropies[index] for index in chosen]).mean()),
        )

    def _gather(self, column: Sequence[Tensor], part: Sequence[int]) -> Tensor:
        return torch.cat([column[index] for index in part]).to(self._scorer.device)


def _step_metrics(losses: Sequence[Loss], tokens: int) -> dict[str, float]:
    """Of a train step, from its micro-batches. What was not measured is not there."""
    now = float(sum(loss.weight_sum for loss in losses))
    square = float(sum(loss.weight_square_sum for loss in losses))
    moved = float(sum(loss.moved for loss in losses)) / tokens
    ess = now * now / (tokens * square)
    metrics = {
        "loss": float(sum(loss.value for loss in losses)),
        "clip_fraction": float(sum(loss.clipped for loss in losses)) / tokens,
        "rejected_mass": float(sum(loss.rejected for loss in losses)) / tokens,
        # Rounding may lift either a little beyond its bound. What is no number stays none.
        "approx_kl": 0.0 if moved < 0 else moved,
        "ess": 1.0 if ess > 1 else ess,
    }
    if known := sum(loss.kl_tokens for loss in losses):
        metrics["kl_divergence"] = float(sum(loss.kl for loss in losses)) / known
    return metrics


def _check_finite(metrics: Mapping[str, float], when: str) -> None:
    if broken := [f"{name} {value}" for name, value in metrics.items() if not math.isfinite(value)]:
        raise Diverged(f"{', '.join(broken)} {when}")


def _trajectory_shifts(rows: Sequence[Row], shifts_R: Sequence[float]) -> dict[str, float]:
    """Mean over the tokens of each trajectory, from those of its rows."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for row, shift in zip(rows, shifts_R, strict=True):
        sums[row.trajectory_id] = sums.get(row.trajectory_id, 0.0) + shift * row.trained
        counts[row.trajectory_id] = counts.get(row.trajectory_id, 0) + row.trained
    return {name: total / counts[name] for name, total in sums.items()}
