"""Is this a job that can be run? Every reason why not, as sentences for whoever asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ratchet.contract.snapshot import PAIRS
from ratchet.contract.training import Dataset, Evaluation, TrainingConfig, TrainingRequest
from ratchet.rules.algorithms import ALGORITHMS, dataset_format
from ratchet.rules.arms import ROLE
from ratchet.rules.training_options import (
    Amounts,
    evaluation_problems,
    training_problems,
)

STABLE_NAMES = frozenset({"stable", "current stable"})
"""Values of `base_model` that mean: continue from what serves the role when the job starts."""
TRANSFORMS = frozenset({"identity", "negate"})


@dataclass(frozen=True, slots=True)
class Abilities:
    """What this installation offers."""

    training_enabled: bool
    algorithms: frozenset[str]
    amounts: Amounts


def continues_stable(base_model: str) -> bool:
    """Whether `base_model` stands for the role's stable policy."""
    return base_model.strip().lower() in STABLE_NAMES


def problems(request: TrainingRequest, abilities: Abilities) -> list[str]:
    """Everything that keeps the request from being run; empty when it can be."""
    if not abilities.training_enabled:
        return ["training is disabled here (RATCHET_COORDINATOR_TRAINING_ENABLED)"]
    role = [] if ROLE.fullmatch(request.role) else [f"role {request.role!r} is not of the form [a-z0-9_-]{{1,64}}"]
    config = config_problems(request.training_config, abilities)
    return [*role, *config, *evaluation_problems(request), *_judged(request.evaluation)]


def config_problems(config: TrainingConfig, abilities: Abilities) -> list[str]:
    """Everything that keeps the configuration from being run here."""
    found: list[str] = []
    if config.algorithm not in abilities.algorithms:
        offered = ", ".join(sorted(abilities.algorithms))
        found.append(
            f"algorithm {config.algorithm!r} is not offered by this installation's workers (offered: {offered})"
        )
    else:
        found.extend(training_problems(config))
        found.extend(_amount(config, abilities.amounts))
    for check in _CHECKS:
        found.extend(check(config))
    return found


def _judged(evaluation: Evaluation | None) -> Iterator[str]:
    """What the contract has and no job does is refused, rather than dropped without a word; here and in `_placed`."""
    if evaluation is None or evaluation.enabled is False:
        return
    if evaluation.metrics:
        yield "evaluation.metrics: what is measured follows from the algorithm and is always reported; leave it out"
    if evaluation.benchmark_tasks:
        yield "evaluation.benchmark_tasks: a job runs no benchmarks, the deployer's held-out gate does; leave it out"


def _placed(config: TrainingConfig) -> Iterator[str]:
    compute, checkpointing = config.compute, config.checkpointing
    if compute is not None and compute.gpu_type not in (None, "any"):
        yield f"compute.gpu_type {compute.gpu_type!r}: jobs are placed by pool, whatever its GPUs are; leave it out"
    if checkpointing is not None and checkpointing.storage_path is not None:
        yield "checkpointing.storage_path: checkpoints lie in this installation's bucket, by digest; leave it out"


def _source(config: TrainingConfig) -> Iterator[str]:
    dataset = config.dataset
    if dataset.source == "nats_stream" or dataset.stream_name is not None:
        yield "dataset.source nats_stream, stream_name: streams are trained on from ClickHouse, where they are stored"
    if dataset.source == "s3" and dataset.snapshot is None:
        yield "dataset.source s3 needs dataset.snapshot (uri and digest of a snapshot manifest)"
    if dataset.source == "local":
        yield "dataset.source local: workers read snapshots from the object store, not local files; import them first"
    if dataset.snapshot is not None and dataset.source != "s3":
        yield f"dataset.snapshot is given, but dataset.source is {dataset.source}, not s3"
    if dataset.snapshot is not None and _selects(dataset):
        yield "dataset.snapshot is already selected: filter and reward_transform cannot be applied to it"


def _amount(config: TrainingConfig, amounts: Amounts) -> Iterator[str]:
    asked, least = config.dataset.sample_size, amounts.least(config.algorithm)
    if config.dataset.snapshot is not None:
        return
    if asked > amounts.most:
        yield f"dataset.sample_size {asked} is more than the {amounts.most} that a snapshot is chosen from"
    if asked < least:
        yield f"dataset.sample_size {asked}: {config.algorithm} needs at least {least}"


def _selects(dataset: Dataset) -> bool:
    return dataset.filter is not None or dataset.reward_transform not in (None, "identity")


def _selection(config: TrainingConfig) -> Iterator[str]:
    transform, chosen = config.dataset.reward_transform, config.dataset.filter
    if transform is not None and transform not in TRANSFORMS:
        yield f"reward_transform {transform!r} is unknown (known: {', '.join(sorted(TRANSFORMS))})"
    if transform == "negate" and not ALGORITHMS[config.algorithm].needs_token_ids:
        yield f"reward_transform negate does nothing for {config.algorithm}, which does not learn from rewards"
    dates = chosen.date_range if chosen else None
    if dates and dates.start and dates.end and dates.start >= dates.end:
        yield "dataset.filter.date_range.start is not before its end"


def _pairs(config: TrainingConfig) -> Iterator[str]:
    """Pairs have no reward, no length and no profile that a filter could ask for."""
    chosen = config.dataset.filter
    if chosen is None or dataset_format(config.algorithm) != PAIRS:
        return
    for name in ("min_reward", "max_trajectory_length", "exclude_subordinate_profiles"):
        if getattr(chosen, name) is not None:
            yield f"dataset.filter.{name} does nothing for {config.algorithm}, which learns from preference pairs"


_CHECKS: Sequence[Callable[[TrainingConfig], Iterator[str]]] = (_source, _selection, _pairs, _placed)
