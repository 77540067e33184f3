"""Whether a request is a job that can run here. Every reason against it is a sentence for the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ratchet.core.contract.snapshot import EXECUTIONS, LABELS, PAIRS, TRAJECTORIES
from ratchet.core.contract.training import Evaluation, TrainingConfig, TrainingRequest
from ratchet.core.rules.algorithms import ALGORITHMS, dataset_format
from ratchet.core.rules.arms import ROLE
from ratchet.core.rules.engines import ADAPTERS_ONLY, ANY_ROLE
from ratchet.core.rules.training_options import Amounts, evaluation_problems, training_problems
from ratchet.rl_coordinator.jobs.domain.planning import AUTO

REQUESTER_CHARACTERS = 500
"""Longest name of who asks: it stands in logs and lists, with the key that it came with."""
STREAM = "nats_stream"
"""The source of a dataset of what a stream still holds."""
STREAM_NAME = "RL_TRAJECTORIES"
"""That stream."""
TRANSFORMS = frozenset({"identity", "negate"})


@dataclass(frozen=True, slots=True)
class Abilities:
    """What this installation offers."""

    training_enabled: bool
    algorithms: frozenset[str]
    amounts: Amounts
    engines: Mapping[str, str] = field(default_factory=dict[str, str])
    """The kind of engine that serves a role; `*` for every other one."""


def problems(request: TrainingRequest, abilities: Abilities) -> list[str]:
    """Everything that keeps the request from running; empty when it can run.

    A setting of the contract that no job honours is refused, rather than dropped silently; see `_placement` as well.
    """
    if not abilities.training_enabled:
        return ["training is disabled here (RATCHET_COORDINATOR_TRAINING_ENABLED)"]
    reasons: list[str] = []
    if not ROLE.fullmatch(request.role):
        reasons.append(f"role {request.role!r} is not of the form [a-z0-9_-]{{1,64}}")
    if not request.requester.isprintable() or len(request.requester) > REQUESTER_CHARACTERS:
        reasons.append(f"requester must have at most {REQUESTER_CHARACTERS} characters, all of them printable")
    reasons += config_problems(request.training_config, abilities)
    reasons += serving_problems(request.role, request.training_config, abilities)
    reasons += [*judging_problems(request.training_config.algorithm, request.evaluation)]
    return reasons


def judging_problems(algorithm: str, evaluation: Evaluation | None) -> Iterator[str]:
    """Why the result of a training cannot be evaluated as requested."""
    yield from evaluation_problems(algorithm, evaluation)
    if evaluation is not None and evaluation.enabled is not False:
        if evaluation.metrics:
            yield "evaluation.metrics: what is measured follows from the algorithm and is always reported; leave it out"
        if evaluation.benchmark_tasks:
            yield "evaluation.benchmark_tasks: a job runs no benchmarks, the deployer's gates do; leave it out"


def as_asked(request: TrainingRequest) -> TrainingRequest:
    """The request of a job without the snapshot that the coordinator exported for it."""
    config = request.training_config
    if config.dataset.source == "s3":
        return request
    return replace(request, training_config=replace(config, dataset=replace(config.dataset, snapshot=None)))


def config_problems(config: TrainingConfig, abilities: Abilities) -> list[str]:
    """Everything that keeps the configuration from running here."""
    reasons: list[str] = []
    name, size = config.algorithm, config.dataset.sample_size
    if name == AUTO:  # what the planner proposes is checked once it has
        given = ["algorithm auto chooses its data: name an algorithm for dataset.snapshot"]
        return [*(given if config.dataset.snapshot is not None else []), *_source(config), *_placement(config)]
    if name not in abilities.algorithms:
        offered = ", ".join(sorted(abilities.algorithms))
        reasons.append(f"algorithm {name!r} is not offered by this installation's workers (offered: {offered})")
    else:
        reasons += training_problems(config)
        most, asked = abilities.amounts.most, config.dataset.min_rows
        least = abilities.amounts.least(name, asked and 1)
        if config.dataset.snapshot is None and size > most:
            reasons.append(f"dataset.sample_size {size} is more than the {most} that a snapshot is chosen from")
        if config.dataset.snapshot is None and size < least:
            reasons.append(f"dataset.sample_size {size}: {name} needs at least {least}")
        if config.dataset.snapshot is None and size < (asked or 0):
            reasons.append(f"dataset.min_rows {asked} is more than dataset.sample_size {size}")
        if ALGORITHMS[name].writes_bundle and config.dataset.source == "s3":
            reasons.append(f"{name}: each search has a snapshot of its own; leave dataset.snapshot out")
    return [*reasons, *_source(config), *_selection(config), *_fitting_filter(config), *_placement(config)]


def serving_problems(role: str, config: TrainingConfig, abilities: Abilities) -> Iterator[str]:
    """Why the role's engine could not hold what the training makes. A reward model is served by none."""
    kind = abilities.engines.get(role, abilities.engines.get(ANY_ROLE))
    known = ALGORITHMS.get(config.algorithm)
    if config.hyperparameters.full_finetune and kind in ADAPTERS_ONLY and not (known and known.makes_reward_model):
        yield (
            f"full_finetune makes a whole model, and the engine of {role} ({kind}) holds adapters of its one base "
            "model only: leave full_finetune out to train an adapter"
        )


def _source(config: TrainingConfig) -> Iterator[str]:
    dataset = config.dataset
    if dataset.source == STREAM and dataset_format(config.algorithm) not in (TRAJECTORIES, LABELS, None):
        yield f"dataset.source {STREAM}: {config.algorithm} does not learn from trajectories, which the stream holds"
    if dataset.stream_name is not None and (dataset.source, dataset.stream_name) != (STREAM, STREAM_NAME):
        yield f"dataset.stream_name is {STREAM_NAME}, and goes with dataset.source {STREAM} alone"
    if dataset.source == "s3" and dataset.snapshot is None:
        yield "dataset.source s3 needs dataset.snapshot (uri and digest of a snapshot manifest)"
    if dataset.source == "local":
        yield (
            "dataset.source local: a file would go around opt-outs, erasures and the keys of roles; `ratchet import` "
            "it, and choose its trajectories by dataset.filter.sources"
        )
    if dataset.snapshot is not None and dataset.source != "s3":
        yield f"dataset.snapshot is given, but dataset.source is {dataset.source}, not s3"
    selects = dataset.filter is not None or dataset.reward_transform not in (None, "identity")
    if dataset.snapshot is not None and selects:
        yield "dataset.snapshot is already selected: filter and reward_transform cannot be applied to it"


def _selection(config: TrainingConfig) -> Iterator[str]:
    """Of an algorithm that is not known, nothing is said here: `config_problems` refuses it."""
    transform, chosen = config.dataset.reward_transform, config.dataset.filter
    is_known = dataset_format(config.algorithm) is not None
    if transform is not None and transform not in TRANSFORMS:
        yield f"reward_transform {transform!r} is unknown (known: {', '.join(sorted(TRANSFORMS))})"
    if transform == "negate" and is_known and not ALGORITHMS[config.algorithm].needs_token_ids:
        yield f"reward_transform negate does nothing for {config.algorithm}, which does not learn from rewards"
    dates = chosen.date_range if chosen else None
    if dates and dates.start and dates.end and dates.start >= dates.end:
        yield "dataset.filter.date_range.start is not before its end"
    low, high = (chosen.min_reward, chosen.max_reward) if chosen else (None, None)
    if low is not None and high is not None and low > high:
        yield f"dataset.filter.min_reward {low:g} is above max_reward {high:g}"


OF_TRAJECTORIES = (
    "min_reward",
    "max_reward",
    "max_trajectory_length",
    "exclude_subordinate_profiles",
    "max_staleness",
    "balance_domains",
)
OF_PAIRS = ("min_margin", "min_human_share")
OF_RATERS = ("excluded_raters",)
MEANINGLESS: Mapping[str, Sequence[str]] = {
    TRAJECTORIES: (*OF_PAIRS, *OF_RATERS),
    PAIRS: OF_TRAJECTORIES,
    LABELS: OF_PAIRS,
    EXECUTIONS: (
        *(*OF_TRAJECTORIES, *OF_PAIRS, *OF_RATERS),
        *("sources", "task_domains", "held_out"),
    ),
}
"""Format -> the filters that its rows lack what they ask for."""
LEARNS_FROM = {
    TRAJECTORIES: "trajectories",
    PAIRS: "preference pairs",
    LABELS: "thumbs",
    EXECUTIONS: "executions of workflows",
}


def _fitting_filter(config: TrainingConfig) -> Iterator[str]:
    """Pairs have no reward, no length and no profile that a filter could ask for; trajectories have no rater."""
    chosen, learns_from = config.dataset.filter, dataset_format(config.algorithm)
    if chosen is None or learns_from is None:
        return
    for name in MEANINGLESS[learns_from]:
        if getattr(chosen, name) is not None:
            kind = LEARNS_FROM[learns_from]
            yield f"dataset.filter.{name} does nothing for {config.algorithm}, which learns from {kind}"


def _placement(config: TrainingConfig) -> Iterator[str]:
    compute, checkpointing = config.compute, config.checkpointing
    if compute is not None and compute.gpu_type not in (None, "any"):
        yield f"compute.gpu_type {compute.gpu_type!r}: jobs are placed by pool, whatever its GPUs are; leave it out"
    if checkpointing is not None and checkpointing.storage_path is not None:
        yield "checkpointing.storage_path: checkpoints lie in this installation's bucket, by digest; leave it out"
