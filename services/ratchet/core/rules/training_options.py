"""Which combinations of options a training can have; a refusal is a sentence that says why."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ratchet.core.contract.snapshot import PAIRS, TRAJECTORIES
from ratchet.core.contract.training import (
    Compute,
    Evaluation,
    HealthLimits,
    Hyperparameters,
    TrainingConfig,
    TrainingRequest,
)
from ratchet.core.errors import ConfigError
from ratchet.core.rules.algorithms import ALGORITHMS, BUILT_IN, Algorithm, dataset_format

NORMALIZATIONS = ("trajectory", "token", "constant")
BOTH, IMPORTANCE, REJECTION, NONE = CORRECTIONS = ("both", "importance", "rejection", "none")
"""Corrections for an engine that sampled a little differently: weights of tokens, rejection of rows."""
TOKEN, SEQUENCE = RATIOS = ("token", "sequence")
SURROGATES = ("ppo", "cispo")
SCALES = ("group", "none")
LINEAR, CONSTANT, COSINE = SCHEDULERS = ("linear", "constant", "cosine")

_POSITIVE = (
    "learning_rate",
    "batch_size",
    "epochs",
    "max_steps",
    "gradient_accumulation",
    "max_length",
    "pass_tokens",
    "max_grad_norm",
    "importance_cap",
    "beta",
)
_NOT_NEGATIVE = (
    "clip_epsilon",
    "clip_epsilon_high",
    "kl_beta",
    "entropy_coefficient",
    "warmup_steps",
    "negative_advantage_scale",
    "desirable_weight",
    "undesirable_weight",
    "center_rewards_coefficient",
)
_CHOICES: Mapping[str, Sequence[str]] = {
    "loss_normalization": NORMALIZATIONS,
    "off_policy_correction": CORRECTIONS,
    "ratio": RATIOS,
    "surrogate": SURROGATES,
    "scale_rewards": SCALES,
    "lr_scheduler": SCHEDULERS,
}
_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    **dict.fromkeys(_POSITIVE, (lambda value: value > 0, "be above 0")),
    **dict.fromkeys(_NOT_NEGATIVE, (lambda value: value >= 0, "not be negative")),
    **dict.fromkeys(("gamma", "gae_lambda", "weight_decay"), (lambda value: 0 <= value <= 1, "lie in 0..1")),
}
"""Hyperparameter -> whether a value lies in its range, and the range in words."""
_MOST: Mapping[str, int] = {
    **dict.fromkeys(("batch_size", "gradient_accumulation"), 1_000_000),  # snapshots hold 200,000 rows by default
    "epochs": 100_000,
    **dict.fromkeys(("max_steps", "warmup_steps"), 1_000_000_000),
    **dict.fromkeys(("max_length", "pass_tokens"), 2**26),  # no model takes a row that is nearly as long
    "seed": 2**32 - 1,  # of some generators of random numbers
    "learning_rate": 10,
}
"""Hyperparameter -> the most that it may be: beyond it something overflows, or the number is a slip of the pen."""
LEAST_RATE = 1e-9
"""A train step changes a weight by about the learning rate, and float32 holds .02 to 2e-9."""
LEAST_PATH = 1e-5
"""A training whose learning rates sum up to less moves no weight by more: bfloat16, in which models are served, holds
.02 to 6e-5."""
MOST_RANK = 1024
"""Of an adapter that is trained, imported or served: engines allocate by the rank before they read weights."""


MOST_HELD_OUT = 0.5
"""Of the data of a job."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """The least and the most data of a job."""

    most: int
    """Rows of any job: a snapshot is chosen from no more trajectories."""
    fewest: int
    """Rows of a job that learns from rewards, preferences or thumbs."""
    pairs: int = 0
    """Rows of a job that learns from preferences, where it names no number itself."""
    human_share: float = 0.0
    """Of those, the least share of people's, where it names none itself."""

    def least(self, algorithm: str, asked: int | None = None) -> int:
        """Fewest rows that the algorithm is run on: what was `asked` for, but no fewer than it needs.

        Imitation takes a single one; who has tasks may have none.
        """
        learns_from = dataset_format(algorithm)
        if learns_from == TRAJECTORIES and ALGORITHMS[algorithm].writes_bundle:
            return asked or 0
        imitates = learns_from == TRAJECTORIES and not ALGORITHMS[algorithm].needs_token_ids
        needed = 1 if imitates or learns_from is None else max(1, self.fewest)
        return max(needed, self.pairs if asked is None and learns_from == PAIRS else asked or 0)


def training_problems(config: TrainingConfig, algorithms: Mapping[str, Algorithm] = ALGORITHMS) -> list[str]:
    """Why this training cannot be run; empty when it can."""
    try:
        algorithm = algorithms[config.algorithm]
    except KeyError:
        return [f"unknown algorithm {config.algorithm!r}; known are {', '.join(algorithms)}"]
    except ConfigError as error:
        return [str(error)]
    hyper, plain = config.hyperparameters, Hyperparameters()
    compute = config.compute or Compute()
    problems = [
        f"{algorithm.name} has no hyperparameter {name}"
        for name in Hyperparameters.__struct_fields__
        if getattr(hyper, name) != getattr(plain, name) and name not in algorithm.all_hyperparameters
    ]
    least = algorithm.least_batch_size
    if hyper.batch_size is not None and 0 < hyper.batch_size < least:
        problems.append(f"{algorithm.name} compares the answers of a batch: its batch_size must be {least} or more")
    for name, (holds, demand) in _RANGES.items():
        value: float | None = getattr(hyper, name)
        if value is not None and not holds(value):
            problems.append(f"{name} must {demand}, not {value:g}")
    problems += _excesses(hyper)
    problems += _contradictions(hyper)
    if compute.distributed:
        problems.append("compute.distributed: a training runs on one machine; gpu_count asks for more of its GPUs")
    if algorithm.makes_reward_model and hyper.lora is not None and hyper.lora.load_in_4bit:
        problems.append(f"{algorithm.name} puts a head of its own on the model: load_in_4bit is not for it")
    problems += _health_problems(config.health, algorithm)
    problems += _search_problems(config, algorithm)
    problems += _planner_problems(config, algorithm)
    if compute.mixed_precision == "fp16":
        problems.append("fp16 is not supported: use bf16, which needs no loss scaling")
    return problems


def ramp_problem(warmup_steps: int | None, steps: int) -> str | None:
    """Why a ramp is none: it is as long as a training of so many train steps; None for one that ends before."""
    if warmup_steps is None or warmup_steps < 2 or warmup_steps < steps:
        return None
    return (
        f"warmup_steps {warmup_steps} is no less than the {steps} train step{'' if steps == 1 else 's'} of this"
        " training, which would learn at a fraction of its rate: ask for fewer, or leave warmup_steps out"
    )


def most_steps(config: TrainingConfig, rows: int) -> int:
    """Train steps of a training on so many rows, if it leaves none out. Policy gradients end with their epochs."""
    hyper, algorithm = config.hyperparameters, ALGORITHMS[config.algorithm]
    size = (hyper.batch_size or algorithm.default_batch_size) * (hyper.gradient_accumulation or 1)
    steps = (hyper.epochs or algorithm.default_epochs) * math.ceil(rows / size)
    asked = hyper.max_steps or steps
    return min(steps, asked) if algorithm.needs_token_ids else asked


def too_few_steps(config: TrainingConfig, steps: int) -> str | None:
    """A sentence about a training of so many train steps where they are too few to show anything; else None.

    Of ten cycles of one train step each on public tasks no single one showed a gain (docs/learning.md).
    """
    algorithm, hyper = ALGORITHMS[config.algorithm], config.hyperparameters
    if not algorithm.trains_weights:
        return None
    has_rate = hyper.learning_rate is not None or algorithm.default_learning_rates is not None
    path = steps * algorithm.learning_rate_of(hyper) if has_rate else math.inf  # a package's own code knows it
    if steps > 1 and path >= LEAST_PATH:
        return None
    moved = f" and moves no weight by more than {path:.2g}" if has_rate else ""
    cure = "ask for more epochs, for a smaller batch_size" if steps == 1 else "ask for a higher learning_rate"
    return (
        f"This training has {steps} train step{'' if steps == 1 else 's'}{moved}: expect no difference that an"
        f" evaluation could show; {cure}, or bring more data."
    )


def _health_problems(health: HealthLimits | None, algorithm: Algorithm) -> Iterator[str]:
    if health is None:
        return
    if not algorithm.health_limits:
        yield f"{algorithm.name} does not watch its health: leave `health` out"
        return
    known = ", ".join(sorted(algorithm.health_limits))
    for name in HealthLimits.__struct_fields__:
        if name != "enabled" and getattr(health, name) is not None and name not in algorithm.health_limits:
            yield f"{algorithm.name} does not measure what health.{name} is a limit of; it has {known}"


def _search_problems(config: TrainingConfig, algorithm: Algorithm) -> Iterator[str]:
    search, name = config.prompts, algorithm.name
    if not algorithm.writes_bundle:
        if search is not None:
            yield f"prompts: {name} trains weights; leave `prompts` out"
        return
    base_model = config.base_model  # the coordinator resolves it to a manifest
    if base_model.strip().lower() != "stable" and not is_manifest(base_model):
        yield f"{name} starts from what serves the role: base_model (`--base-model`) must be `stable`"
    if config.compute is not None or config.checkpointing is not None:
        yield f"{name} asks models over the gateway: leave compute and checkpointing out"
    if search is None:
        yield f"{name} needs `prompts`: a reflector, train_tasks, validation_tasks and a budget"
        return
    upstream, slash, model = search.reflector.partition("/")
    if slash and not (upstream and model):
        yield f"prompts.reflector is UPSTREAM/MODEL, or a role or a policy: {search.reflector!r} is not"
    if search.train_tasks.sha256 == search.validation_tasks.sha256:
        yield "prompts: train_tasks and validation_tasks are the same file; a prompt is chosen by other tasks"


def _planner_problems(config: TrainingConfig, algorithm: Algorithm) -> Iterator[str]:
    if not algorithm.makes_planner:
        return
    base_model = config.base_model  # the coordinator resolves it to a manifest, where the role has one
    if base_model.strip().lower() != "stable" and not is_manifest(base_model):
        planner = "the planner that serves the role"
        yield f"{algorithm.name} starts from {planner}: base_model (`--base-model`) must be `stable`"
    if config.compute is not None or config.checkpointing is not None:
        yield f"{algorithm.name} takes a minute of one processor: leave compute and checkpointing out"


def is_manifest(base_model: str) -> bool:
    """Whether it is the uri of a stored manifest."""
    return base_model.startswith("s3://") and base_model.endswith(".json")


def request_problems(request: TrainingRequest) -> list[str]:
    """As `training_problems`, with the members of the request beside its configuration."""
    return training_problems(request.training_config) or evaluation_problems(
        request.training_config.algorithm, request.evaluation
    )


def evaluation_problems(name: str, evaluation: Evaluation | None) -> list[str]:
    """Why the algorithm cannot be evaluated as requested; empty when it can, and for an unknown one."""
    if evaluation is not None and evaluation.eval_steps is not None and not holdout_of(evaluation):
        return ["evaluation.eval_steps does nothing where evaluation.holdout_size holds nothing out"]
    if holdout_of(evaluation) > MOST_HELD_OUT:
        return [f"evaluation.holdout_size must be at most {MOST_HELD_OUT:g}: what is held out is not learnt from"]
    if not holdout_of(evaluation) or dataset_format(name) is None or ALGORITHMS[name].holds_out:
        return []
    able = ", ".join(algorithm.name for algorithm in BUILT_IN if algorithm.holds_out)
    return [f"{name} holds nothing out: evaluation.holdout_size is for {able}"]


def holdout_of(evaluation: Evaluation | None) -> float:
    """The fraction of the data that is held out; 0 unless the request asks for one."""
    return 0.0 if evaluation is None or evaluation.enabled is False else evaluation.holdout_size or 0.0


def held_out_tasks(task_keys: Sequence[str], share: float, seed: int) -> frozenset[str]:
    """Tasks that together have at most that share of the tries, in an order drawn from `seed` and their keys alone: as
    far as its tries fit, a task is on the same side in every job of that seed.
    """
    room, held = round(share * len(task_keys)), set[str]()
    tries = Counter(task_keys)
    for key in sorted(tries, key=lambda key: hashlib.sha256(f"{seed}:{key}".encode()).digest()):
        if tries[key] <= room:
            held.add(key)
            room -= tries[key]
    return frozenset(held)


def split_problem(holdout: float, learn: int, held: int, what: str) -> str | None:
    """Why a hold-out of that fraction is none: it leaves nothing to learn from, or holds nothing out."""
    count = learn + held
    if not learn:
        return f"a holdout_size of {holdout:g} leaves none of {count} {what} to learn from"
    if holdout and not held:
        return (
            f"a holdout_size of {holdout:g} holds out none of {count} {what}: every group of {what} that share "
            "a prompt, a task or a try is larger than that; ask for a larger one, or for none"
        )
    return None


def _excesses(hyper: Hyperparameters) -> Iterator[str]:
    for name, most in _MOST.items():
        value: float | None = getattr(hyper, name)
        if value is not None and most < value < math.inf:
            yield f"{name} must be at most {most}, not {value}"
    for name in Hyperparameters.__struct_fields__:
        if getattr(hyper, name) == math.inf:
            yield f"{name} must be a finite number"
    if hyper.lora is not None and hyper.lora.r > MOST_RANK:
        yield f"lora.r must be at most {MOST_RANK}, not {hyper.lora.r}"


def _contradictions(hyper: Hyperparameters) -> Iterator[str]:
    if hyper.full_finetune and hyper.lora is not None:
        yield "full_finetune trains every weight: it goes with no lora"
    if hyper.lora is not None and (hyper.lora.r < 1 or not 0 <= hyper.lora.dropout < 1):
        yield "lora needs r of at least 1 and a dropout in 0..1"
    if hyper.label_smoothing is not None and not 0 <= hyper.label_smoothing < 0.5:
        yield f"label_smoothing must lie in 0..0.5, 0.5 not included, not {hyper.label_smoothing:g}"
    if hyper.desirable_weight == 0 and hyper.undesirable_weight == 0:
        yield "desirable_weight and undesirable_weight are both 0: nothing would be learnt"
    window = hyper.rejection_window
    if window is not None and (len(window) != 2 or not 0 <= window[0] < 1 < window[1]):
        yield f"rejection_window must be [low, high] around 1, not {window}"
    for name, choices in _CHOICES.items():
        value = getattr(hyper, name)
        if value not in (None, *choices):
            yield f"{name} must be one of {', '.join(choices)}, not {value!r}"
    if hyper.learning_rate is not None and 0 < hyper.learning_rate < LEAST_RATE:
        yield f"learning_rate {hyper.learning_rate:g} changes no weight: it is less than a float32 resolves"
    if hyper.max_steps is not None and (problem := ramp_problem(hyper.warmup_steps, hyper.max_steps)) is not None:
        yield problem
    yield from _left_out(hyper)


def _left_out(hyper: Hyperparameters) -> Iterator[str]:
    """Options that do nothing because of another one."""
    correction = hyper.off_policy_correction
    if hyper.importance_cap is not None and correction in (REJECTION, NONE):
        yield f"off_policy_correction {correction} makes no importance weights: importance_cap does nothing"
    if hyper.rejection_window is not None and correction in (IMPORTANCE, NONE):
        yield f"off_policy_correction {correction} rejects no rows: rejection_window does nothing"
    if hyper.surrogate == "cispo" and hyper.clip_epsilon is not None:
        yield "cispo weights have no lower bound: clip_epsilon does nothing; clip_epsilon_high is their upper one"
