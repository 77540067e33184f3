"""One update of a policy: epochs of train steps over fixed rows, resumable bit for bit.

Shapes: _N trained tokens of a micro-batch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ratchet.trainer_worker.errors import Diverged
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.losses import (
    Critic,
    Loss,
    Objective,
    Tokens,
    policy_loss,
    row_weights,
    value_loss,
)
from ratchet.trainer_worker.training.learner.start import FixedRows, trained

WEIGHTS, STATE = "trainable.safetensors", "state.pt"
CRITIC_LEARNING_RATE = 1e-3
VALUE_CLIP = 0.2


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """How an update goes through the rows."""

    learning_rate: float
    batch_size: int
    """Trajectories per train step, over all its micro-batches."""
    epochs: int = 2
    max_steps: int | None = None
    accumulation: int = 1
    """Micro-batches per train step."""
    max_grad_norm: float = 1.0
    ramp_steps: int = 8
    """Train steps until the full learning rate: Adam starts fresh in every job."""
    seed: int = 0
    normalization: str = "trajectory"
    constant_tokens: int = 1
    """Divisor of the `constant` normalisation."""
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    objective: Objective = field(default_factory=Objective)


class Update:
    """Owns the optimiser and the order of the data. `done` counts finished train steps."""

    def __init__(self, scorer: Scorer, fixed: FixedRows, options: UpdateOptions, critic: Critic | None = None) -> None:
        self._scorer = scorer
        self._fixed = fixed
        self.options = options
        self._critic = critic
        self._policy = [p for p in scorer.model.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [{"params": self._policy, "rate": options.learning_rate}]
        if critic is not None:
            groups.append({"params": list(critic.parameters()), "rate": CRITIC_LEARNING_RATE})
        self._optimizer = torch.optim.AdamW(
            groups, lr=options.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        )
        self._members: dict[str, list[int]] = {}
        for index, row in enumerate(fixed.rows):
            self._members.setdefault(row.trajectory_id, []).append(index)
        self.steps_per_epoch = math.ceil(len(self._members) / options.batch_size)
        self.total = min(options.max_steps or 10**9, options.epochs * self.steps_per_epoch)
        self.done = 0
        self._weight_sums = [0.0, 0.0, 0.0]

    def epoch_of(self, number: int) -> int:
        """Epoch of train step `number` (both counted from 1)."""
        return (number - 1) // self.steps_per_epoch + 1

    def epoch_ess(self) -> float:
        """Effective sample size of the current policy against the logged one over the epoch so far."""
        total, squares, count = self._weight_sums
        return min(1.0, total * total / (count * squares)) if squares else 1.0

    def train_step(self) -> dict[str, float]:
        """One optimiser update; returns its metrics. Raises `Diverged` before it would store a NaN."""
        number = self.done + 1
        if (number - 1) % self.steps_per_epoch == 0:
            self._weight_sums = [0.0, 0.0, 0.0]
        # Ramp over the first steps, then a linear fall to a tenth.
        factor = min(1.0, number / max(1, self.options.ramp_steps)) * (1 - 0.9 * (number - 1) / self.total)
        for group in self._optimizer.param_groups:
            group["lr"] = group["rate"] * factor
        self._scorer.model.train()
        chosen = self._batch(number)
        weights = row_weights(
            self.options.normalization,
            [self._fixed.rows[index].trajectory_id for index in chosen],
            [self._fixed.rows[index].trained for index in chosen],
            self.options.constant_tokens,
        )
        metrics = self._backward(chosen, weights)
        norm = nn.utils.clip_grad_norm_(self._policy, self.options.max_grad_norm)
        if not math.isfinite(metrics["loss"]) or not math.isfinite(float(norm)):
            raise Diverged(f"loss {metrics['loss']}, gradient norm {float(norm)} at train step {number}")
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.done = number
        return metrics | {"grad_norm": float(norm), "learning_rate": self.options.learning_rate * factor}

    def save(self, directory: Path) -> None:
        """Write weights, optimiser, random state and everything fixed at the start."""
        save_file({name: p.detach().contiguous() for name, p in self._named()}, directory / WEIGHTS)
        state = {
            "done": self.done,
            "optimizer": self._optimizer.state_dict(),
            "weight_sums": self._weight_sums,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        torch.save(state, directory / STATE)
        self._fixed.save(directory)

    def load(self, directory: Path) -> None:
        """Go on where `save` was called."""
        weights = load_file(directory / WEIGHTS)
        with torch.no_grad():
            for name, parameter in self._named():
                parameter.copy_(weights[name])
        state: dict[str, Any] = torch.load(directory / STATE, weights_only=True)
        self._optimizer.load_state_dict(state["optimizer"])
        self._weight_sums = state["weight_sums"]
        self.done = state["done"]
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"]:
            torch.cuda.set_rng_state_all(state["cuda_rng"])

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from ((name, p) for name, p in self._scorer.model.named_parameters() if p.requires_grad)
        if self._critic is not None:
            yield from ((f"critic.{name}", p) for name, p in self._critic.named_parameters())

    def _batch(self, number: int) -> list[int]:
        """Indices of the rows of a train step: all rows of some trajectories, in an order fixed by seed and epoch."""
        epoch, place = divmod(number - 1, self.steps_per_epoch)
        order = sorted(self._members)
        random.Random(f"{self.options.seed}-{epoch}").shuffle(order)
        size = self.options.batch_size
        return [index for name in order[place * size : (place + 1) * size] for index in self._members[name]]

    def _backward(self, chosen: Sequence[int], weights: Sequence[float]) -> dict[str, float]:
        """Gradients of a train step, one micro-batch after the other; returns the step's metrics."""
        tokens = sum(self._fixed.rows[index].trained for index in chosen)
        size = math.ceil(len(chosen) / max(1, self.options.accumulation))
        pieces = [
            self._micro_batch(chosen[begin : begin + size], weights[begin : begin + size], tokens)
            for begin in range(0, len(chosen), size)
        ]
        losses = [loss for loss, _ in pieces]
        self._weight_sums[0] += (now := float(sum(loss.weight_sum for loss in losses)))
        self._weight_sums[1] += (square := float(sum(loss.weight_square_sum for loss in losses)))
        self._weight_sums[2] += tokens
        metrics = {
            "loss": float(sum(loss.value.detach() for loss in losses)),
            "clip_fraction": float(sum(loss.clipped for loss in losses)) / tokens,
            "rejected_mass": float(sum(loss.rejected for loss in losses)) / tokens,
            "kl_divergence": float(sum(loss.kl for loss in losses)) / tokens,
            "ess": min(1.0, now * now / (tokens * square)),  # rounding may lift it a little above
        }
        for _, extra in pieces:
            for name, value in extra.items():
                metrics[name] = metrics.get(name, 0.0) + value
        return metrics

    def _micro_batch(
        self, part: Sequence[int], weights: Sequence[float], step_tokens: int
    ) -> tuple[Loss, dict[str, float]]:
        """Forward and backward of one micro-batch; values are shares of the train step's."""
        options, fixed = self.options, self._fixed
        rows = [fixed.rows[index] for index in part]
        scores = self._scorer.score(rows, entropy_gradient=options.entropy_coefficient > 0)
        sizes, device = torch.tensor([row.trained for row in rows]), self._scorer.device
        tokens = Tokens(
            logprobs_N=scores.logprobs_N,
            proximal_N=self._gather(fixed.proximal, part),
            behavior_N=torch.cat([trained(row, row.behavior_logprobs) for row in rows]).to(device),
            advantages_N=self._gather(fixed.advantages, part),
            weights_N=torch.tensor(weights).repeat_interleave(sizes).to(device),
            row_N=torch.arange(len(rows)).repeat_interleave(sizes).to(device),
            rows=len(rows),
            reference_N=None if fixed.reference is None else self._gather(fixed.reference, part),
        )
        loss = policy_loss(tokens, options.objective)
        total = loss.value
        extra = {"policy_entropy": float(scores.entropy_N.detach().sum()) / step_tokens}
        if options.entropy_coefficient:
            total = total - options.entropy_coefficient * scores.entropy_N.sum() / step_tokens
        if self._critic is not None:
            values_N = self._critic(scores.hidden_NH)
            start_N, returns_N = self._gather(fixed.values, part), self._gather(fixed.returns, part)
            even_N = torch.full_like(values_N, 1.0 / step_tokens)
            critic_loss = value_loss(values_N, start_N, returns_N, even_N, VALUE_CLIP)
            total = total + options.value_coefficient * critic_loss
            extra["value_loss"] = float(critic_loss.detach())
        total.backward()  # pyright: ignore[reportUnknownMemberType] - torch leaves it untyped
        return loss, extra

    def _gather(self, column: Sequence[Tensor] | None, part: Sequence[int]) -> Tensor:
        assert column is not None  # noqa: S101 - with a critic, values and returns are there
        return torch.cat([column[index] for index in part]).to(self._scorer.device)
