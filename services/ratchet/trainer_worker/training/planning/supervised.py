"""Phase 1, `planner_supervised`: imitates the plans and the choices of executions that succeeded.

loss = CE(types) + BCE(stop) + BCE(dependencies, of every ordered pair) + MSE(complexity) + CE(selection)
       + lambda x acyclicity
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from ratchet.core.contract.workflows import TASK_TYPES, WorkflowExecution
from ratchet.core.planning.dataset import variants
from ratchet.core.planning.encoder import Array
from ratchet.core.planning.files import NETWORK, Description, PlannerFile, read_file, save_planner
from ratchet.core.planning.learned import TEST, TRAIN, VALIDATION, execution_digest, part_of
from ratchet.core.planning.logged import decisions
from ratchet.core.planning.network import fresh_weights
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.planning.base import Report, Trained
from ratchet.trainer_worker.training.planning.batches import Plans, choices_of, plans_of
from ratchet.trainer_worker.training.planning.network import Choices, Network

LEAST_ROWS = 20
"""Executions below which a fifth of them validates nothing."""
LOSSES = ("types", "stop", "dependencies", "complexity", "selection", "acyclicity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """Hyperparameters."""

    learning_rate: float = 1e-3
    """Larger networks have 1e-4: this small one needs 200 epochs then for the loss that it has here after 40."""
    epochs: int = 60
    batch_size: int = 32
    variants: int = 1
    """Of each execution of the train part: `dataset.variants`, to learn from beside it."""
    acyclicity: float = 0.3
    """Lambda."""
    max_grad_norm: float = 1.0
    patience: int = 9
    """Epochs without a better validation loss, after which it stops; a third of it halves the learning rate."""


@dataclass(frozen=True, slots=True)
class _Split:
    """A part of the executions as tensors."""

    plans: Plans
    choices: Choices | None
    """Of sub-tasks that succeeded; None where there are none."""
    owner_D: Tensor
    """Which plan each choice belongs to."""


def train(
    rows: Sequence[WorkflowExecution], start: bytes | None, options: Supervised, seed: int, report: Report
) -> Trained:
    """A planner from the executions that succeeded; `start`: the file of the one that it continues.

    20 % validate: they choose the best epoch and lower the rate. Another 15 % test: they are looked at once, at
    the end, and judge the planner afterwards; a workflow's digest decides which part it is in. Raises `DataUnusable`
    where too few executions succeeded.
    """
    torch.manual_seed(seed)
    earlier = read_file(start) if start else None
    task_types = earlier.description.task_types if earlier else TASK_TYPES
    usable = [row for row in rows if _usable(row, task_types)]
    parts = {name: [row for row in usable if part_of(row.workflow_id) == name] for name in (TRAIN, VALIDATION, TEST)}
    if len(usable) < LEAST_ROWS or not parts[TRAIN] or not parts[VALIDATION]:
        raise DataUnusable(
            f"{len(usable)} of {len(rows)} executions succeeded with a plan of known types; {LEAST_ROWS} are needed"
        )
    network = Network(starting_weights(earlier, len(task_types), seed))
    drawn = random.Random(seed)
    made = [variant for row in parts[TRAIN] for variant in variants(row, options.variants, drawn)]
    learned_from = parts | {TRAIN: [*parts[TRAIN], *made]}
    splits = {name: _split(part, task_types) for name, part in learned_from.items() if part}
    epochs = _fit(network, splits[TRAIN], splits[VALIDATION], options, report)
    metrics = {"epochs": float(epochs), "samples": float(len(parts[TRAIN]))}
    for name in (VALIDATION, TEST):
        if name in splits:
            metrics |= {f"{name}_{figure}": value for figure, value in evaluate(network, splits[name]).items()}
    # Those that failed too: they were left out by their outcome, and a log of them alone would judge nothing fairly.
    learned = {execution_digest(row.workflow_id) for row in rows if part_of(row.workflow_id) != TEST}
    trained_on = learned | set(earlier.description.trained_on if earlier else ())
    description = Description(selector=NETWORK, task_types=task_types, trained_on=tuple(sorted(trained_on)))
    return Trained(save_planner(PlannerFile(description, network.arrays())), len(usable) - len(parts[TEST]), metrics)


def starting_weights(earlier: PlannerFile | None, types: int, seed: int) -> dict[str, Array]:
    """Those of the planner that is continued; fresh ones where it has none of that name."""
    weights = fresh_weights(types, seed)
    return weights | {name: earlier.tensors[name] for name in weights if earlier and name in earlier.tensors}


def _usable(row: WorkflowExecution, task_types: Sequence[str]) -> bool:
    return row.success and row.plan is not None and all(task.task_type in task_types for task in row.plan.sub_tasks)


def _split(rows: Sequence[WorkflowExecution], task_types: Sequence[str]) -> _Split:
    chosen = [
        (number, decision)
        for number, row in enumerate(rows)
        for decision in decisions(row)
        if decision.run.status == "succeeded"
    ]
    return _Split(
        plans=plans_of([(row.instruction, row.plan) for row in rows if row.plan], task_types),
        choices=choices_of([decision for _, decision in chosen], task_types) if chosen else None,
        owner_D=torch.tensor([number for number, _ in chosen], dtype=torch.int64),
    )


def _fit(network: Network, train: _Split, validation: _Split, options: Supervised, report: Report) -> int:
    optimizer = torch.optim.AdamW(network.parameters(), lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=max(1, options.patience // 3))
    best, best_epoch, best_weights = float("inf"), 0, copy.deepcopy(network.state_dict())
    epoch = 0
    for epoch in range(1, options.epochs + 1):
        mean = _epoch(network, optimizer, train, options)
        with torch.no_grad():
            held = float(total_loss(losses(network, validation.plans, validation.choices), options.acyclicity))
        schedule.step(held)
        report(epoch, options.epochs, {"loss": mean, "validation_loss": held})
        if held < best - 1e-4:
            best, best_epoch, best_weights = held, epoch, copy.deepcopy(network.state_dict())
        elif epoch - best_epoch >= options.patience:
            break
    network.load_state_dict(best_weights)
    return epoch


def _epoch(network: Network, optimizer: torch.optim.Optimizer, train: _Split, options: Supervised) -> float:
    total, batches = 0.0, torch.randperm(len(train.plans.lengths_B)).split(options.batch_size)
    for places in batches:
        owned = torch.isin(train.owner_D, places).nonzero()[:, 0]
        choices = train.choices.at(owned) if train.choices and len(owned) else None
        loss = total_loss(losses(network, train.plans.at(places), choices), options.acyclicity)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), options.max_grad_norm)
        optimizer.step()
        total += float(loss.detach())
    return total / len(batches)


def losses(network: Network, plans: Plans, choices: Choices | None) -> dict[str, Tensor]:
    """Each of `LOSSES`, a mean over what it is about."""
    decoded = network.decode(plans.texts_BF, plans.types_BN)
    present_BN = plans.present_BN
    steps = torch.arange(decoded.stop_logits_BM.shape[1])[None, :]
    lengths_B1 = plans.lengths_B[:, None]
    asked_BM = (steps > 0) & (steps <= lengths_B1)  # a plan has one sub-task at least: no choice before it
    pairs_BNN = ordered_pairs(present_BN)
    result = {
        "types": cross_entropy(decoded.type_logits_BNT[present_BN], plans.types_BN[present_BN]),
        "stop": binary_cross_entropy_with_logits(
            decoded.stop_logits_BM[asked_BM], (steps == lengths_B1).float()[asked_BM]
        ),
        "complexity": ((decoded.complexities_BN - plans.complexities_BN)[present_BN] ** 2).mean(),
        "acyclicity": acyclicity(torch.sigmoid(decoded.pair_logits_BNN) * pairs_BNN),
    }
    if pairs_BNN.any():
        result["dependencies"] = binary_cross_entropy_with_logits(
            decoded.pair_logits_BNN[pairs_BNN], plans.depends_BNN[pairs_BNN]
        )
    if choices is not None:
        logprobs = network.selection_logprobs(choices, floor=False)
        result["selection"] = -logprobs.gather(1, choices.chosen_D[:, None]).mean()
    return result


def total_loss(parts: Mapping[str, Tensor], acyclicity_weight: float) -> Tensor:
    """All of them, the penalty by its weight."""
    weighted = [part * (acyclicity_weight if name == "acyclicity" else 1.0) for name, part in parts.items()]
    return torch.stack(weighted).sum()


def ordered_pairs(present_BN: Tensor) -> Tensor:
    """[B, N, N]: two different sub-tasks that a plan has, in either order."""
    both = present_BN[:, :, None] & present_BN[:, None, :]
    return both & ~torch.eye(present_BN.shape[1], dtype=torch.bool)


def acyclicity(adjacency_BNN: Tensor) -> Tensor:
    """tr(exp(A o A)) - N, a mean over plans: 0 for a DAG alone (NOTEARS, Zheng 2018, equation 4)."""
    exponential = torch.linalg.matrix_exp(adjacency_BNN * adjacency_BNN)
    return (exponential.diagonal(dim1=1, dim2=2).sum(dim=1) - adjacency_BNN.shape[1]).mean()


@torch.no_grad()
def evaluate(network: Network, split: _Split) -> dict[str, float]:
    """Accuracy of types and of the end given what went before; F1 of dependencies; the choice; the penalty itself."""
    plans = split.plans
    decoded = network.decode(plans.texts_BF, plans.types_BN)
    present = plans.present_BN
    steps = torch.arange(decoded.stop_logits_BM.shape[1])[None, :]
    asked = (steps > 0) & (steps <= plans.lengths_B[:, None])
    ends = (decoded.stop_logits_BM > 0) == (steps == plans.lengths_B[:, None])
    pairs = ordered_pairs(present)
    guessed, true = decoded.pair_logits_BNN[pairs] > 0, plans.depends_BNN[pairs] > 0
    hits = float((guessed & true).sum())
    result = {
        "loss": float(total_loss(losses(network, plans, split.choices), 0.0)),
        "type_accuracy": float((decoded.type_logits_BNT.argmax(-1) == plans.types_BN)[present].float().mean()),
        "stop_accuracy": float(ends[asked].float().mean()),
        "dependency_f1": 2 * hits / max(1.0, float(guessed.sum() + true.sum())),
        "acyclicity": float(acyclicity(torch.sigmoid(decoded.pair_logits_BNN) * pairs)),
    }
    if split.choices is not None:
        chosen = network.selection_logprobs(split.choices).argmax(-1)
        result["selection_accuracy"] = float((chosen == split.choices.chosen_D).float().mean())
    return result
