"""Makes the page about training's options from the rules that check requests."""

from __future__ import annotations

import ast
import inspect

from ratchet.core.contract.training import Hyperparameters, Lora
from ratchet.core.rules.algorithms import BUILT_IN
from ratchet.core.rules.defaults import DEFAULTS
from tools.docs.http_reference import table

BY_ALGORITHM = "by algorithm, below"
WORDS = {
    "learning_rate": (BY_ALGORITHM, "Step size after warm-up."),
    "batch_size": (BY_ALGORITHM, "Examples, or trajectories, in a micro-batch; kto needs 2 or more."),
    "epochs": (BY_ALGORITHM, "How often training goes through the data."),
    "clip_epsilon": ("0.2", "The ratio to the policy at the start is clipped below 1 - this; above too, when given."),
    "clip_epsilon_high": ("0.28, or clip_epsilon when given", "The same above 1 + this."),
    "gamma": ("1", "Discount from turn to turn."),
    "gae_lambda": ("1", "Bias against variance of the critic's advantages, in 0..1."),
    "beta": ("0.1", "How far the policy may leave its reference."),
    "label_smoothing": ("0", "Share of pairs that are believed to be the wrong way round, below 0.5."),
    "desirable_weight": ("1", "Weight of answers with thumbs up."),
    "undesirable_weight": ("1", "Weight of answers with thumbs down."),
    "kl_beta": (
        "0.001",
        "Weight of the distance to the model without any adapter; of a full fine-tune, to the policy at the start.",
    ),
    "entropy_coefficient": (
        "0.001",
        "Weight of the policy's entropy, which keeps it from settling early; 0: none.",
    ),
    "seed": ("0", "Of the order of the data, and of new adapters."),
    "lora": ("r 16, alpha 32, dropout 0, all-linear", "Shape of a new adapter; in a request only (`--request`)."),
    "full_finetune": ("false", "Train every weight: the result is a model, not an adapter."),
    "max_steps": ("no bound", "Train steps at most."),
    "gradient_accumulation": ("1", "Micro-batches in a train step."),
    "max_length": (
        "the model's",
        "Longest row in tokens; longer ones are cut, or left out if cutting is no use.",
    ),
    "pass_tokens": (
        "what memory allows",
        "Most tokens that go through the model at once, padding included, if memory allows; a longer row goes alone. "
        "Changes memory and speed, not what is learnt.",
    ),
    "warmup_steps": (
        "a tenth of all steps, at most 20; policy gradients at most 8",
        "Steps until the full learning rate; a job of fewer than 10 steps has it from the first one.",
    ),
    "lr_scheduler": (
        "cosine; policy gradients linear",
        "How the learning rate falls behind the ramp, to a tenth: `linear`, `cosine`; `constant` stays.",
    ),
    "weight_decay": ("0.01; policy gradients 0", "Of AdamW, for matrices; biases and norms do not decay."),
    "max_grad_norm": ("1", "Longer gradients are shortened to this."),
    "advantage_floor": ("none", "Least advantage of a success, so that solved tasks keep their skill."),
    "negative_advantage_scale": ("1", "Factor of advantages below 0."),
    "importance_cap": ("2", "Bound of the correction for an engine that sampled a little differently."),
    "rejection_window": ("[0.9, 1.1]", "Rows whose mean importance ratio lies outside are masked."),
    "loss_normalization": (
        "trajectory",
        "`trajectory`, `token` or `constant`: the unit that counts the same everywhere.",
    ),
    "off_policy_correction": (
        "both",
        "`both`, `importance` (weights, up to importance_cap), `rejection` (of rows outside rejection_window), `none`.",
    ),
    "ratio": ("token", "`token`, or `sequence`: the geometric mean of a row's ratios, one for all its tokens (GSPO)."),
    "surrogate": ("ppo", "`ppo`, or `cispo`: the log-probability, weighted by the ratio up to 1 + clip_epsilon_high."),
    "scale_rewards": ("group", "Divide advantages by their `group`'s standard deviation, or by `none` (Dr. GRPO)."),
    "center_rewards_coefficient": ("0", "Weight of the squared sum of a pair's two rewards, to keep them around 0."),
}
"""By hyperparameter: default, meaning. A test compares the defaults with the trainer's."""


def _named(algorithms: list[str]) -> str:
    """Which they are, shortly where they are all, or all that train weights."""
    others = [algorithm.name for algorithm in BUILT_IN if algorithm.name not in algorithms]
    searches = [algorithm.name for algorithm in BUILT_IN if algorithm.writes_bundle]
    return f"all but {', '.join(others)}" if others == searches else ", ".join(algorithms) if others else "all"


def training_page() -> str:
    """Algorithms, and their hyperparameters. Raises `KeyError` for a hyperparameter without words."""
    members = Hyperparameters.__struct_fields__
    for name in {*members} ^ {*WORDS}:
        raise KeyError(f"tools/docs/training_reference.py and Hyperparameters disagree on {name}")
    annotated = [
        node for node in ast.walk(ast.parse(inspect.getsource(Hyperparameters))) if isinstance(node, ast.AnnAssign)
    ]
    types = {ast.unparse(member.target): ast.unparse(member.annotation).removesuffix(" | None") for member in annotated}
    algorithms = {
        name: [algorithm.name for algorithm in BUILT_IN if name in algorithm.all_hyperparameters] for name in members
    }
    rows = [
        (
            f"`{name}`",
            f"`{types[name]}`",
            _named(algorithms[name]),
            *WORDS[name],
        )
        for name in members
    ]
    defaults = [
        (
            f"`{name}`",
            *(f"{rate:g}" for rate in (row.learning_rate.adapter, row.learning_rate.full)),
            *(str(number) for number in (row.batch_size, row.epochs)),
            row.evidence,
        )
        for name, row in DEFAULTS.items()
    ]
    formats = [(f"`{algorithm.name}`", f"`{algorithm.learns_from}`") for algorithm in BUILT_IN]
    return (
        "\n\n".join(
            [
                "# Training reference",
                "Generated from `ratchet.core.rules.algorithms` by `make docs`; do not edit. How to use it: "
                "[guide for ML engineers](../guides/ml-engineer.md).",
                "## Algorithms",
                table(("algorithm", "learns from"), formats),
                "## Hyperparameters",
                "`ratchet train ROLE --set NAME=VALUE`, or `hyperparameters` of a request. "
                "A hyperparameter that the algorithm does not have is refused.",
                table(("name", "type", "of", "default", ""), rows),
                "## Defaults by algorithm",
                "A row changes with what it rests on. `ratchet plan` proposes the first one whose data a role has.",
                table(("algorithm", "adapter", "full_finetune", "batch_size", "epochs", "rests on"), defaults),
                f"A new adapter: {', '.join(f'`{name}`' for name in Lora.__struct_fields__)}.",
            ]
        )
        + "\n"
    )
