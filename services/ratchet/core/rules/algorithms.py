"""The training algorithms: one declaration each, from which everything else about an algorithm follows.

The coordinator checks requests and chooses data by it, the training process reads its data and finds its code by it,
and the reference is written from it. The code itself needs torch and is imported by the training process alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ratchet.core.contract.snapshot import EXECUTIONS, LABELS, PAIRS, TRAJECTORIES, DatasetFormat
from ratchet.core.contract.training import Hyperparameters
from ratchet.core.errors import ConfigError
from ratchet.core.plugins import Misfit, PluginTable
from ratchet.core.rules.defaults import DEFAULTS, LearningRates

COMMON = frozenset(
    {
        "learning_rate",
        "batch_size",
        "epochs",
        "seed",
        "lora",
        "full_finetune",
        "max_steps",
        "gradient_accumulation",
        "max_length",
        "pass_tokens",
        "warmup_steps",
        "lr_scheduler",
        "weight_decay",
        "max_grad_norm",
    }
)
"""Hyperparameters of every algorithm."""
CLIPPED = frozenset(
    {
        "clip_epsilon",
        "clip_epsilon_high",
        "kl_beta",
        "off_policy_correction",
        "importance_cap",
        "rejection_window",
        "ratio",
        "surrogate",
        "loss_normalization",
    }
)
"""Those of a clipped policy gradient."""
GROUPED = CLIPPED | {"advantage_floor", "negative_advantage_scale"}
"""Those of one whose advantages are estimated within groups of tries at one task."""


OF_LOSSES = frozenset({"max_loss_rise", "max_gradient_growth"})
"""Limits of `health` for a training whose losses can be compared from step to step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A training algorithm, as all services know it."""

    name: str
    train: str
    """`package.module:function` with the code, a `trainer_worker.training.algorithms.base.Train`."""
    learns_from: DatasetFormat
    hyperparameters: frozenset[str]
    """Those it has beside `COMMON`; a request that sets any other one is refused."""
    needs_token_ids: bool
    """It learns from the token ids and log-probabilities that the engine sampled: trajectories whose calls lack them
    are left out of its snapshots."""
    default_batch_size: int
    """`batch_size` of a job that names none."""
    default_learning_rates: LearningRates | None = None
    """None: only its code knows them, so that a job without `learning_rate` that diverged is not tried with half."""
    default_epochs: int = 3
    """`epochs` of a job that names none."""
    least_batch_size: int = 1
    holds_out: bool = False
    """It can be evaluated on a part of its data that is held out (`evaluation.holdout_size`)."""
    health_limits: frozenset[str] = frozenset()
    """The limits of a request's `health` by which it stops before a train step would break what it trains; empty: it
    has no stops."""
    makes_reward_model: bool = False
    """What it makes scores answers: nothing deploys, serves or continues it."""
    writes_bundle: bool = False
    """What it makes is a bundle, without a GPU and without torch: its jobs run in the pool `PROMPTS` and name what they
    search by (`prompts`); `train` is a `trainer_worker.training.prompts.base.Search`."""
    makes_planner: bool = False
    """What it makes is a bundle with a planner, from executions of workflows; `train` is a
    `trainer_worker.training.planning.base.TrainPlanner`."""
    compares_losses: bool = False
    """Its loss means the same at every train step, so that the step with the lowest one is the best so far; that of a
    policy gradient does not."""

    def learning_rate_of(self, hyperparameters: Hyperparameters) -> float:
        """The learning rate that a job trains with. Raises `ValueError` where neither it nor the algorithm has one."""
        if self.default_learning_rates is not None:
            return self.default_learning_rates.rate_of(hyperparameters)
        if hyperparameters.learning_rate is None:
            raise ValueError(f"{self.name} declares no default_learning_rates: ask for a learning_rate")
        return hyperparameters.learning_rate

    @property
    def all_hyperparameters(self) -> frozenset[str]:
        """Every hyperparameter that it has."""
        return COMMON | self.hyperparameters if self.trains_weights else self.hyperparameters

    @property
    def trains_weights(self) -> bool:
        """What it makes are weights of a model, which it starts from."""
        return not (self.writes_bundle or self.makes_planner)


PROMPTS = "prompts"
"""The pool of workers that write bundles: they need the extra of that name, and no torch."""
_BROUGHT = re.compile(r"[a-z0-9][a-z0-9_-]*\.[a-z0-9][a-z0-9_-]*")
"""As in the contract: no later built-in algorithm takes a name that is in use somewhere."""
_OURS = "ratchet.trainer_worker.training.algorithms"


def _policy_gradient(name: str, hyperparameters: frozenset[str]) -> Algorithm:
    return Algorithm(
        name=name,
        train=f"{_OURS}.{name}:train",
        learns_from=TRAJECTORIES,
        hyperparameters=hyperparameters,
        needs_token_ids=True,
        default_batch_size=DEFAULTS[name].batch_size,
        default_learning_rates=DEFAULTS[name].learning_rate,
        default_epochs=DEFAULTS[name].epochs,
        holds_out=True,
        health_limits=frozenset(
            {"min_ess", "max_kl", "max_entropy_rise", "min_entropy_share", "max_gradient_growth", "independent_metric"}
        ),
    )


def _planner(name: str, hyperparameters: frozenset[str], batch_size: int = 1) -> Algorithm:
    return Algorithm(
        name=name,
        train=f"ratchet.trainer_worker.training.planning.algorithms:{name}",
        learns_from=EXECUTIONS,
        hyperparameters=hyperparameters,
        needs_token_ids=False,
        default_batch_size=batch_size,
        makes_planner=True,
    )


BUILT_IN = (
    Algorithm(
        name="sft",
        train=f"{_OURS}.sft:train",
        learns_from=TRAJECTORIES,
        hyperparameters=frozenset(),
        needs_token_ids=False,
        default_batch_size=DEFAULTS["sft"].batch_size,
        default_learning_rates=DEFAULTS["sft"].learning_rate,
        default_epochs=DEFAULTS["sft"].epochs,
        holds_out=True,
        health_limits=OF_LOSSES | {"max_entropy_rise", "max_holdout_rise"},
        compares_losses=True,
    ),
    _policy_gradient("rloo", GROUPED),
    _policy_gradient("grpo", GROUPED | {"scale_rewards"}),
    _policy_gradient("reinforce", GROUPED),
    _policy_gradient("ppo", CLIPPED | {"gamma", "gae_lambda", "entropy_coefficient"}),
    Algorithm(
        name="dpo",
        train=f"{_OURS}.dpo:train",
        learns_from=PAIRS,
        hyperparameters=frozenset({"beta", "label_smoothing"}),
        needs_token_ids=False,
        default_batch_size=DEFAULTS["dpo"].batch_size,
        default_learning_rates=DEFAULTS["dpo"].learning_rate,
        default_epochs=DEFAULTS["dpo"].epochs,
        holds_out=True,
        health_limits=OF_LOSSES | {"max_entropy_rise", "max_holdout_rise"},
        compares_losses=True,
    ),
    Algorithm(
        name="reward_model",
        train=f"{_OURS}.reward_model:train",
        learns_from=PAIRS,
        hyperparameters=frozenset({"center_rewards_coefficient"}),
        needs_token_ids=False,
        default_batch_size=DEFAULTS["reward_model"].batch_size,
        default_learning_rates=DEFAULTS["reward_model"].learning_rate,
        default_epochs=DEFAULTS["reward_model"].epochs,
        holds_out=True,
        health_limits=OF_LOSSES | {"max_holdout_rise"},
        makes_reward_model=True,
        compares_losses=True,
    ),
    Algorithm(
        name="kto",
        train=f"{_OURS}.kto:train",
        learns_from=LABELS,
        hyperparameters=frozenset({"beta", "desirable_weight", "undesirable_weight"}),
        needs_token_ids=False,
        default_batch_size=DEFAULTS["kto"].batch_size,
        default_learning_rates=DEFAULTS["kto"].learning_rate,
        default_epochs=DEFAULTS["kto"].epochs,
        least_batch_size=2,  # it compares the answers of a batch
        holds_out=True,
        health_limits=OF_LOSSES | {"max_entropy_rise", "max_holdout_rise"},
        compares_losses=True,
    ),
    Algorithm(
        name="gepa",
        train="ratchet.trainer_worker.training.prompts.gepa_search:search",
        learns_from=TRAJECTORIES,
        hyperparameters=frozenset({"seed", "batch_size", "max_steps"}),
        needs_token_ids=False,
        default_batch_size=4,
        writes_bundle=True,
    ),
    _planner("planner_supervised", frozenset({"learning_rate", "batch_size", "epochs", "seed", "max_grad_norm"}), 32),
    _planner(
        "planner_ppo",
        frozenset({"learning_rate", "batch_size", "epochs", "seed", "max_grad_norm"})
        | {"clip_epsilon", "gamma", "gae_lambda", "entropy_coefficient"},
        256,
    ),
    _planner("selector_linucb", frozenset()),
    _planner("selector_thompson", frozenset()),
)


def _fit(name: str, candidate: object) -> Algorithm:
    if not isinstance(candidate, Algorithm):
        raise Misfit(f"it is a {type(candidate).__name__}, not a {__name__}.Algorithm")
    if candidate.name != name:
        raise Misfit(f"it is named {candidate.name!r}")
    if not _BROUGHT.fullmatch(name):
        raise Misfit("a name that a package brings has the form <package>.<name>, such as acme.simpo")
    unknown = sorted(candidate.hyperparameters - {*Hyperparameters.__struct_fields__})
    if unknown:
        raise Misfit(f"a request has no hyperparameters {', '.join(unknown)}")
    if candidate.learns_from not in (TRAJECTORIES, PAIRS, LABELS):
        raise Misfit(f"no snapshot has the format {candidate.learns_from!r}")
    if candidate.needs_token_ids and candidate.learns_from != TRAJECTORIES:
        raise Misfit(f"rows of the format {candidate.learns_from} have no token ids")
    if candidate.makes_planner or candidate.learns_from == EXECUTIONS:
        raise Misfit("planners of workflows are trained by Ratchet's own algorithms")
    if candidate.writes_bundle and candidate.learns_from != TRAJECTORIES:
        raise Misfit(f"an algorithm that writes bundles reads {TRAJECTORIES}")
    if not 1 <= candidate.least_batch_size <= candidate.default_batch_size:
        raise Misfit("its batch sizes must satisfy 1 <= least_batch_size <= default_batch_size")
    return candidate


ALGORITHMS: PluginTable[Algorithm] = PluginTable(
    "ratchet.algorithms", "algorithm", {algorithm.name: algorithm for algorithm in BUILT_IN}, _fit
)
"""By name. A new one is a file with its `train` and a declaration here, or a package with both."""


UNITS = {PAIRS: "preference pairs", LABELS: "labelled answers", EXECUTIONS: "executions of workflows"}
"""What a training counts, by the format of its dataset; trajectories otherwise."""


def unit_of(name: str | None) -> str:
    """What the trainings of an algorithm count."""
    return UNITS.get(dataset_format(name) or "", "trajectories")


def dataset_format(name: str | None) -> DatasetFormat | None:
    """What the algorithm of a stored job or policy learns from; None for one that this installation does not have."""
    try:
        return ALGORITHMS[name].learns_from if name is not None else None
    except (KeyError, ConfigError):
        return None
