"""The planner's network in torch: the weights and numbers of `core.planning.network`, with gradients.

Shapes: `_B` workflows, `_N` sub-tasks (padded), `_F` features of a text, `_H` hidden, `_T` types, `_D` decisions, `_W`
workers (padded).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ratchet.core.contract.workflows import MOST_SUB_TASKS
from ratchet.core.planning.base import FLOOR
from ratchet.core.planning.encoder import Array
from ratchet.core.planning.network import HIDDEN


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the head says of plans whose types are given."""

    type_logits_BNT: Tensor
    stop_logits_BM: Tensor
    """M = N + 1: before each sub-task, and after the last one."""
    complexities_BN: Tensor
    pair_logits_BNN: Tensor
    """Of every ordered pair: row depends on column. Nothing is masked."""


class Network(nn.Module):
    """All weights by the names of the file, a dot as two underscores."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        super().__init__()
        self.weights = nn.ParameterDict(
            {name.replace(".", "__"): nn.Parameter(torch.tensor(weights[name])) for name in sorted(weights)}
        )

    def weight(self, name: str) -> Tensor:
        """By the name that the file has."""
        return self.weights[name.replace(".", "__")]

    def arrays(self) -> dict[str, Array]:
        """For the file."""
        return {name.replace("__", "."): weight.detach().numpy().copy() for name, weight in self.weights.items()}

    def decode(self, texts_BF: Tensor, types_BN: Tensor) -> Decoded:
        """Teacher-forced; `types_BN` has any type where a plan has ended."""
        state = torch.tanh(texts_BF @ self.weight("plan.text") + self.weight("plan.text_bias"))
        beginning = torch.full((len(texts_BF), 1), self.weight("plan.previous").shape[0] - 1)
        inputs_BMH = self.weight("plan.previous")[torch.cat([beginning, types_BN], dim=1)]
        states: list[Tensor] = []
        for index in range(inputs_BMH.shape[1]):
            state = self._gru(state, inputs_BMH[:, index])
            states.append(state)
        states_BMH = torch.stack(states, dim=1)
        states_BNH = states_BMH[:, :-1]
        return Decoded(
            type_logits_BNT=states_BNH @ self.weight("plan.type") + self.weight("plan.type_bias"),
            stop_logits_BM=states_BMH @ self.weight("plan.stop") + self.weight("plan.stop_bias"),
            complexities_BN=torch.sigmoid(
                states_BNH @ self.weight("plan.complexity") + self.weight("plan.complexity_bias")
            ),
            pair_logits_BNN=self._pairs(states_BNH),
        )

    def _gru(self, state_BH: Tensor, input_BH: Tensor) -> Tensor:
        given = input_BH @ self.weight("plan.input") + self.weight("plan.input_bias")
        kept = state_BH @ self.weight("plan.recurrent") + self.weight("plan.recurrent_bias")
        given_reset, given_update, given_new = given.split(HIDDEN, dim=-1)
        kept_reset, kept_update, kept_new = kept.split(HIDDEN, dim=-1)
        update = torch.sigmoid(given_update + kept_update)
        fresh = torch.tanh(given_new + torch.sigmoid(given_reset + kept_reset) * kept_new)
        return (1 - update) * fresh + update * state_BH

    def _pairs(self, states_BNH: Tensor) -> Tensor:
        queries, keys = states_BNH @ self.weight("plan.query"), states_BNH @ self.weight("plan.key")
        places = torch.arange(states_BNH.shape[1])
        distances = self.weight("plan.distance")[places[:, None] - places[None, :] + MOST_SUB_TASKS - 1]
        return queries @ keys.transpose(1, 2) / math.sqrt(HIDDEN) + distances

    def selection_logprobs(self, batch: Choices, floor: bool = True) -> Tensor:
        """[D, W]: log-probabilities, -inf where there is no such worker; those of the served policy have its floor."""
        types_D = batch.types_D
        context = batch.texts_DF @ self.weight("select.text") + self.weight("select.type")[types_D]
        context = (
            context + batch.complexities_D[:, None] * self.weight("select.complexity") + self.weight("select.bias")
        )
        hidden = torch.tanh(context[:, None] + batch.workers_DWP @ self.weight("select.worker"))
        by_type_DP = self.weight("select.type_worker")[types_D]
        scores = hidden @ self.weight("select.out") + (batch.workers_DWP * by_type_DP[:, None]).sum(dim=-1)
        logprobs = torch.log_softmax(scores.masked_fill(~batch.capable_DW, -torch.inf), dim=-1)
        if not floor:
            return logprobs
        counts = batch.capable_DW.sum(dim=-1)
        floors = (0.5 / counts).clamp(max=FLOOR)  # as base.floor_of
        rest = 1.0 - floors * counts
        mixed = floors[:, None] + rest[:, None] * logprobs.exp()
        return mixed.log().masked_fill(~batch.capable_DW, -torch.inf)

    def values(self, batch: Choices) -> Tensor:
        """[D]: what the critic expects from this sub-task on."""
        hidden = batch.texts_DF @ self.weight("critic.text") + self.weight("critic.type")[batch.types_D]
        hidden = torch.tanh(hidden + batch.places_DP @ self.weight("critic.place") + self.weight("critic.bias"))
        return hidden @ self.weight("critic.out") + self.weight("critic.out_bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Decisions as tensors, in the order of executions and of each one's sub-tasks."""

    texts_DF: Tensor
    types_D: Tensor
    complexities_D: Tensor
    places_DP: Tensor
    """Complexity, place in the plan, sub-tasks that are left, and earlier ones that failed."""
    workers_DWP: Tensor
    capable_DW: Tensor
    chosen_D: Tensor
    logged_D: Tensor
    """Log-probability of the chosen one, as the selector that was asked had it."""

    def __len__(self) -> int:
        return len(self.types_D)

    def at(self, places: Tensor) -> Choices:
        """Some of them."""
        return Choices(**{name: getattr(self, name)[places] for name in self.__slots__})
