"""Every hyperparameter that an algorithm has reaches what trains, and only values of its own type get that far."""

from __future__ import annotations

import threading
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace

from ratchet.core.contract import TrainingRequest
from ratchet.core.contract.training import EvaluationResults, HealthLimits, Hyperparameters, Lora, ResourceUsage
from ratchet.core.errors import InvalidMessage
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.defaults import DEFAULTS
from ratchet.core.rules.figures import FIGURES
from ratchet.core.rules.training_options import COSINE
from ratchet.core.service.contracts import load_contracts
from ratchet.trainer_worker.job import METRICS_FILE
from ratchet.trainer_worker.training.algorithms import dpo, kto, load_train, ppo
from ratchet.trainer_worker.training.child_run import ChildRun
from ratchet.trainer_worker.training.learner.losses import Objective
from ratchet.trainer_worker.training.learner.update import RAMP_STEPS, UpdateOptions
from ratchet.trainer_worker.training.loop import WARMUP_STEPS, WEIGHT_DECAY
from ratchet.trainer_worker.training.policy import load_policy
from tests.support.snapshot_rows import call, label_row, pair_row, trajectory_row
from tests.support.tiny_models import chat_texts, write_tiny_model
from tests.support.toy_preferences import parrot_chats, parrot_labels, parrot_pairs
from tests.support.trainer_runs import RecordingRun, job_spec
from tests.support.training import request
from tools.docs.training_reference import training_page

ASKED: dict[str, Any] = {
    "learning_rate": 3e-4,
    "batch_size": 3,
    "epochs": 5,
    "seed": 17,
    "lora": Lora(r=3, alpha=7, dropout=0.125, target_modules=["q_proj", "v_proj"], use_rslora=True, use_dora=True),
    "full_finetune": True,
    "max_steps": 5,
    "gradient_accumulation": 2,
    "max_length": 90,
    "pass_tokens": 40,
    "warmup_steps": 4,
    "lr_scheduler": "constant",
    "weight_decay": 0.125,
    "max_grad_norm": 0.375,
    "clip_epsilon": 0.15,
    "clip_epsilon_high": 0.35,
    "kl_beta": 0.02,
    "entropy_coefficient": 0.03,
    "importance_cap": 3.5,
    "rejection_window": [0.001, 1000.0],
    "loss_normalization": "token",
    "off_policy_correction": "both",
    "ratio": "sequence",
    "surrogate": "cispo",
    "scale_rewards": "none",
    "center_rewards_coefficient": 0.05,
    "advantage_floor": 0.05,
    "negative_advantage_scale": 0.75,
    "gamma": 0.9,
    "gae_lambda": 0.8,
    "beta": 0.25,
    "label_smoothing": 0.1,
    "desirable_weight": 1.25,
    "undesirable_weight": 0.75,
}
"""One value for each, none of them a default."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("base"), chat_texts(parrot_chats()), vocabulary=330, layers=1))


@pytest.fixture(scope="module")
def examples() -> dict[str, list[Any]]:
    chats = parrot_chats()[:8]
    calls = [call([3, 4, 5, 6 + number], [7, 8], [-6.0, -6.0]) for number in range(8)]
    logged = zip(chats, calls, strict=True)
    return {
        "trajectories": [
            trajectory_row(
                n, task_key=f"k{n // 2}", reward=float(n % 2), success=n % 2 == 1, messages=chat, calls=[answered]
            )
            for n, (chat, answered) in enumerate(logged)
        ],
        "pairs": [pair_row(n, **one) for n, one in enumerate(parrot_pairs()[:8])],
        "labels": [label_row(n, **one) for n, one in enumerate(parrot_labels()[:8])],
    }


OF_WEIGHTS = {name: algorithm for name, algorithm in ALGORITHMS.items() if algorithm.trains_weights}
OF_SEARCHES = {"validation_score", "candidates", "calls", "spent_tokens", "spent_usd"}


def effective(algorithm: str, base: str, data: list[Any], folder: Path, **asked: Any) -> dict[str, Any]:
    """What trained after one train step, as it will be stored."""
    wire = msgspec.json.encode(Hyperparameters(**asked))
    spec = job_spec(algorithm, base=base, hyper=msgspec.json.decode(wire, type=Hyperparameters))
    torch.manual_seed(0)
    policy = load_policy(spec)
    return load_train(algorithm)(spec, policy, data, RecordingRun(folder, algorithm)).effective


@pytest.mark.parametrize("algorithm", sorted(OF_WEIGHTS))
def test_each_value_that_is_asked_for_is_the_one_that_trains(
    algorithm: str, base: str, examples: dict[str, list[Any]], tmp_path: Path
) -> None:
    data = examples[ALGORITHMS[algorithm].learns_from]
    asked = {name: value for name, value in ASKED.items() if name in ALGORITHMS[algorithm].all_hyperparameters}
    assert asked.keys() == ALGORITHMS[algorithm].all_hyperparameters
    # A full fine-tune has no adapter: two runs for the one contradiction.
    adapter = {name: value for name, value in asked.items() if name != "full_finetune"}
    reported = effective(algorithm, base, data, tmp_path, **adapter)
    lora = asked["lora"]
    expected = adapter | {"lora": msgspec.structs.asdict(lora), "full_finetune": False}
    assert {name: reported[name] for name in expected} == expected
    # What no request names shapes a training as well.
    unnamed = {"adam_betas": [0.9, 0.98], "min_lr_rate": None}  # the scheduler asked for is constant
    assert {name: reported[name] for name in unnamed} == unnamed
    # Five train steps, of which four are a ramp: shares of .25, .5, .75, 1 and 1.
    assert reported["mean_learning_rate"] == pytest.approx(3e-4 * 0.7)
    assert "health" in reported
    without_limit = {"full_finetune": True, "batch_size": 8, "epochs": 1}
    assert effective(algorithm, base, data, tmp_path / "full", **without_limit)["full_finetune"] is True


def test_every_figure_that_a_training_prints_has_a_sentence_and_no_other(
    base: str, examples: dict[str, list[Any]], tmp_path: Path
) -> None:
    """Those of train steps as the metrics file has them, of results and of hold-outs."""
    printed = set(ResourceUsage.__struct_fields__) | OF_SEARCHES
    for name, algorithm in OF_WEIGHTS.items():
        gradient = algorithm.needs_token_ids
        watched = HealthLimits(independent_metric="success") if gradient else None
        spec = job_spec(name, base=base, hyper=Hyperparameters(batch_size=4, max_steps=1))
        spec = replace(spec, config=replace(spec.config, health=watched), holdout=0.25 if algorithm.holds_out else 0.0)
        folder = tmp_path / name
        folder.mkdir()
        with closing(ChildRun(spec, folder, BytesIO(), threading.Event(), threading.Event())) as run:
            outcome = load_train(name)(spec, load_policy(spec), examples[algorithm.learns_from], run)
        (line,) = (folder / METRICS_FILE).read_text().splitlines()
        of_step = msgspec.json.decode(line).keys() - {"step", "epoch", "seconds"}
        assert "tokens_per_second" in of_step, name
        printed |= of_step | outcome.metrics.keys() | scores_of(outcome.evaluation)
    assert printed == set(FIGURES)
    for name, figure in FIGURES.items():
        assert figure.sentence.count(";") >= 2, name


def scores_of(evaluation: EvaluationResults | None) -> set[str]:
    """Names of what a hold-out gave."""
    if evaluation is None:
        return set()
    own = {name for name, value in msgspec.structs.asdict(evaluation).items() if value is not None}
    return (own - {"benchmark_scores"}) | {*(evaluation.benchmark_scores or {})}


@pytest.mark.parametrize("algorithm", ["rloo", "sft"])
def test_a_bound_of_the_gradient_bounds_what_a_train_step_changes(
    algorithm: str, base: str, examples: dict[str, list[Any]], tmp_path: Path
) -> None:
    """Adam divides by the gradient's own size, so only a bound far below its epsilon (1e-8) shows in the weights."""
    changes: list[float] = []
    for bound in (1.0, 1e-9):
        hyper = Hyperparameters(
            learning_rate=1e-2, batch_size=8, max_steps=1, warmup_steps=0, full_finetune=True, max_grad_norm=bound
        )
        spec = job_spec(algorithm, base=base, hyper=hyper)
        policy = load_policy(spec)
        before = [weight.detach().clone() for weight in policy.trainable()]
        run = RecordingRun(tmp_path / str(bound), algorithm)
        load_train(algorithm)(spec, policy, examples["trajectories"], run)
        pairs = zip(policy.trainable(), before, strict=True)
        changes.append(max(float((weight.detach() - old).abs().max()) for weight, old in pairs))
        assert run.steps[0].metrics["grad_norm"] > 1e-3
    assert changes[0] > 5e-3
    assert changes[1] < 0.05 * changes[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", "0.001"),
        ("batch_size", 2.5),
        ("epochs", True),
        ("seed", "7"),
        ("beta", [0.1]),
        ("label_smoothing", "none"),
        ("desirable_weight", {}),
        ("full_finetune", 1),
        ("rejection_window", [0.9, "1.1"]),
    ],
)
def test_a_value_of_another_type_is_refused_on_the_wire(name: str, value: Any) -> None:
    body = msgspec.to_builtins(request())
    body["training_config"]["hyperparameters"][name] = value
    with pytest.raises(InvalidMessage, match=name):
        load_contracts().read(TrainingRequest.TOPIC, msgspec.json.encode(body))


@pytest.mark.parametrize("algorithm", sorted(OF_WEIGHTS))
def test_the_batch_that_a_retry_halves_is_the_one_that_an_algorithm_takes(
    algorithm: str, base: str, examples: dict[str, list[Any]], tmp_path: Path
) -> None:
    data = examples[ALGORITHMS[algorithm].learns_from]
    assert effective(algorithm, base, data, tmp_path)["batch_size"] == ALGORITHMS[algorithm].default_batch_size


PAGE = training_page()
GRADIENT, LOSS, LORA = UpdateOptions(1e-4, 128, 1), Objective(), Lora()


def default_of(name: str) -> str:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    return row.split(" | ")[3]


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("clip_epsilon", f"{LOSS.clip_low:g}"),
        ("clip_epsilon_high", f"{LOSS.clip_high:g}, or clip_epsilon when given"),
        ("gamma", f"{ppo.GAMMA:g}"),
        ("gae_lambda", f"{ppo.GAE_LAMBDA:g}"),
        ("entropy_coefficient", f"{ppo.ENTROPY_COEFFICIENT:g}"),
        ("beta", f"{dpo.BETA:g}"),
        ("kl_beta", f"{LOSS.kl_beta:g}"),
        ("importance_cap", f"{LOSS.importance_cap:g}"),
        ("rejection_window", str(list(LOSS.rejection_window or ()))),
        ("loss_normalization", GRADIENT.normalization),
        ("warmup_steps", f"a tenth of all steps, at most {WARMUP_STEPS}; policy gradients at most {RAMP_STEPS}"),
        ("lr_scheduler", f"{COSINE}; policy gradients {GRADIENT.scheduler}"),
        ("weight_decay", f"{WEIGHT_DECAY:g}; policy gradients {GRADIENT.weight_decay:g}"),
        ("lora", f"r {LORA.r}, alpha {LORA.alpha:g}, dropout {LORA.dropout:g}, {LORA.target_modules}"),
    ],
)
def test_a_documented_default_is_the_trainers(name: str, default: str) -> None:
    assert default_of(name) == default


def test_dpo_and_kto_share_their_documented_defaults() -> None:
    assert dpo.BETA == kto.BETA


def test_the_page_shows_every_row_of_the_defaults() -> None:
    for name, row in DEFAULTS.items():
        rates = f"{row.learning_rate.adapter:g} | {row.learning_rate.full:g}"
        assert f"| `{name}` | {rates} | {row.batch_size} | {row.epochs} | {row.evidence}" in PAGE


def test_every_algorithm_that_trains_weights_has_a_row_of_defaults() -> None:
    assert {*DEFAULTS} == {name for name, one in ALGORITHMS.items() if one.trains_weights}
