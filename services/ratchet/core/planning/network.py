"""The planner's network in numpy: what services run. `trainer_worker` trains the same weights in torch.

A decoder (GRU) emits sub-tasks from the encoded instruction: a type each, a complexity, and whether the plan stops. A
pointer head scores every ordered pair of them; decoding uses the pairs that lead to an earlier sub-task alone, so that
every plan is a DAG. A head scores each capable worker for a sub-task, by the worker's figures and not by its name.

Shapes: `_F` features of a text, `_H` hidden, `_T` types, `_N` sub-tasks, `_W` workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.core.contract.workflows import MODEL_TYPES, MOST_SUB_TASKS, Plan, SubTask
from ratchet.core.planning.base import Choice, with_floor
from ratchet.core.planning.encoder import FEATURES, Array, encode
from ratchet.core.planning.plans import MOST_DEPTH

HIDDEN = 48
SELECTION = 32
"""Hidden numbers of the heads of selection and critic."""
WORKER_FEATURES = len(MODEL_TYPES) + 4


def shapes(types: int) -> dict[str, tuple[int, ...]]:
    """Every tensor of the network, for so many task types."""
    pairs = 2 * MOST_SUB_TASKS - 1
    return {
        "plan.text": (FEATURES, HIDDEN),
        "plan.text_bias": (HIDDEN,),
        "plan.previous": (types + 1, HIDDEN),
        "plan.input": (HIDDEN, 3 * HIDDEN),
        "plan.recurrent": (HIDDEN, 3 * HIDDEN),
        "plan.input_bias": (3 * HIDDEN,),
        "plan.recurrent_bias": (3 * HIDDEN,),
        "plan.type": (HIDDEN, types),
        "plan.type_bias": (types,),
        "plan.stop": (HIDDEN,),
        "plan.stop_bias": (1,),
        "plan.complexity": (HIDDEN,),
        "plan.complexity_bias": (1,),
        "plan.query": (HIDDEN, HIDDEN),
        "plan.key": (HIDDEN, HIDDEN),
        "plan.distance": (pairs,),
        "select.text": (FEATURES, SELECTION),
        "select.type": (types + 1, SELECTION),
        "select.complexity": (SELECTION,),
        "select.worker": (WORKER_FEATURES, SELECTION),
        "select.bias": (SELECTION,),
        "select.type_worker": (types + 1, WORKER_FEATURES),
        "select.out": (SELECTION,),
        "critic.text": (FEATURES, SELECTION),
        "critic.type": (types + 1, SELECTION),
        "critic.place": (4, SELECTION),
        "critic.bias": (SELECTION,),
        "critic.out": (SELECTION,),
        "critic.out_bias": (1,),
    }


def fresh_weights(types: int, seed: int) -> dict[str, Array]:
    """What a training starts with that continues no planner."""
    random = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    for name, shape in shapes(types).items():
        scale = (
            0.0
            if name.endswith("bias")
            else 1.0
            if name == "plan.text"
            else 0.3
            if name.endswith(".text")
            else 1.0 / math.sqrt(shape[0])
        )
        weights[name] = (random.standard_normal(shape) * scale).astype(np.float32)
    weights["plan.distance"] *= np.float32(0.0)
    weights["select.type_worker"] *= np.float32(0.0)
    return weights


def worker_features(choice: Choice) -> Array:
    """[W, WORKER_FEATURES]: model type, price, latency, and the measured share of success with whether there is one."""
    features = np.zeros((len(choice.workers), WORKER_FEATURES), np.float32)
    for row, worker, measured in zip(features, choice.workers, choice.measured, strict=True):
        if worker.model_type in MODEL_TYPES:
            row[MODEL_TYPES.index(worker.model_type)] = 1.0
        row[-4] = (math.log10(worker.cost_per_token + 1e-9) + 6.0) / 3.0
        row[-3] = (math.log10(worker.latency_ms + 1.0) - 3.0) / 2.0
        row[-2] = measured.success - 0.8 if measured else 0.0
        row[-1] = float(measured is not None)
    return features


@dataclass(frozen=True, slots=True)
class PlanHead:
    """Plans by the weights `plan.*`."""

    weights: Mapping[str, Array]
    task_types: tuple[str, ...]

    def plan(self, instruction: str) -> Plan:
        """The likeliest plan: types one after the other, then dependencies."""
        types, states_NH, chosen = self._decode(encode(instruction))
        pairs_NN = sigmoid(pair_scores(self.weights, states_NH))
        complexities = sigmoid(states_NH @ self.weights["plan.complexity"] + self.weights["plan.complexity_bias"])
        depends, edges = _dependencies(pairs_NN)
        chosen += edges
        sub_tasks = tuple(
            SubTask(
                task_type=self.task_types[kind],
                instruction=step_instruction(instruction, self.task_types[kind], index, len(types)),
                depends_on=depends[index],
                complexity=round(float(complexities[index]), 4),
            )
            for index, kind in enumerate(types)
        )
        confidence = math.exp(sum(math.log(max(probability, 1e-12)) for probability in chosen) / len(chosen))
        return Plan(sub_tasks=sub_tasks, made_by="model", confidence=min(1.0, confidence))

    def _decode(self, text_F: Array) -> tuple[list[int], Array, list[float]]:
        """Types, states, and the probabilities of what was chosen."""
        weights = self.weights
        state = np.tanh(text_F @ weights["plan.text"] + weights["plan.text_bias"])
        previous = len(self.task_types)
        types: list[int] = []
        states: list[Array] = []
        chosen: list[float] = []
        while True:
            state = gru(weights, state, weights["plan.previous"][previous])
            stop = float(sigmoid(state @ weights["plan.stop"] + weights["plan.stop_bias"][0]))
            if types and (stop > 0.5 or len(types) == MOST_SUB_TASKS):
                chosen.append(stop if stop > 0.5 else 1.0)
                return types, np.stack(states), chosen
            if types:
                chosen.append(1.0 - stop)
            probabilities = softmax(state @ weights["plan.type"] + weights["plan.type_bias"])
            previous = int(probabilities.argmax())
            chosen.append(float(probabilities[previous]))
            types.append(previous)
            states.append(state)


def step_instruction(instruction: str, task_type: str, index: int, steps: int) -> str:
    """What a worker is asked to do for a sub-task that a model planned, which has a type and no words of its own: all
    of it, because tools read nothing else (`workflows.domain.asking`)."""
    if steps == 1:
        return instruction
    step = task_type.replace("_", " ")
    return (
        f"Do this one step of the task below, and answer with its result alone: {step} (step {index + 1} of {steps})."
        f"\n\n{instruction}"
    )


def _dependencies(pairs_NN: Array) -> tuple[list[tuple[int, ...]], list[float]]:
    """Earlier sub-tasks that each one depends on, none too deep; and the probabilities of what was chosen."""
    depths: list[int] = []
    depends: list[tuple[int, ...]] = []
    chosen: list[float] = []
    for index in range(len(pairs_NN)):
        row = pairs_NN[index, :index]
        before = tuple(int(other) for other in np.flatnonzero(row > 0.5) if depths[other] < MOST_DEPTH)
        chosen += [float(row[other]) if other in before else 1.0 - float(row[other]) for other in range(index)]
        depends.append(before)
        depths.append(1 + max((depths[other] for other in before), default=0))
    return depends, chosen


@dataclass(frozen=True, slots=True)
class NetworkSelector:
    """Chooses workers by the weights `select.*`."""

    weights: Mapping[str, Array]
    task_types: tuple[str, ...]

    def propensities(self, choice: Choice) -> list[float]:
        """The softmax of the workers' scores, with the floor."""
        return with_floor([float(share) for share in softmax(self.scores(choice))])

    def scores(self, choice: Choice) -> Array:
        """[W]."""
        weights, task = self.weights, choice.sub_task
        kind = type_number(task.task_type, self.task_types)
        features = worker_features(choice)
        context = encode(choice.instruction) @ weights["select.text"] + weights["select.type"][kind]
        context = context + np.float32(task.complexity) * weights["select.complexity"] + weights["select.bias"]
        hidden = np.tanh(context + features @ weights["select.worker"])
        return hidden @ weights["select.out"] + features @ weights["select.type_worker"][kind]


def type_number(task_type: str, task_types: Sequence[str]) -> int:
    """Its place in the vocabulary; a type that the planner does not know stands after all of them."""
    return task_types.index(task_type) if task_type in task_types else len(task_types)


def gru(weights: Mapping[str, Array], state_H: Array, input_H: Array) -> Array:
    """The next state (Cho 2014, with the reset gate behind the matrix, as torch has it)."""
    given = input_H @ weights["plan.input"] + weights["plan.input_bias"]
    kept = state_H @ weights["plan.recurrent"] + weights["plan.recurrent_bias"]
    reset = sigmoid(given[:HIDDEN] + kept[:HIDDEN])
    update = sigmoid(given[HIDDEN : 2 * HIDDEN] + kept[HIDDEN : 2 * HIDDEN])
    fresh = np.tanh(given[2 * HIDDEN :] + reset * kept[2 * HIDDEN :])
    return (1 - update) * fresh + update * state_H


def pair_scores(weights: Mapping[str, Array], states_NH: Array) -> Array:
    """[N, N]: how much sub-task `i` depends on `j`, for every ordered pair; nothing is masked."""
    count = len(states_NH)
    queries, keys = states_NH @ weights["plan.query"], states_NH @ weights["plan.key"]
    places = np.arange(count)
    distances = weights["plan.distance"][places[:, None] - places[None, :] + MOST_SUB_TASKS - 1]
    return queries @ keys.T / np.float32(math.sqrt(HIDDEN)) + distances


def sigmoid(values: Array) -> Array:
    """Of each number, without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)), np.float32)


def softmax(values: Array) -> Array:
    """Shares that add up to 1."""
    powers = np.exp(values - values.max())
    return np.asarray(powers / powers.sum(), np.float32)
