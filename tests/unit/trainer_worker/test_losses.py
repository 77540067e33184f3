"""The policy objective: equal to TRL's on identical rows, and to hand-computed values where TRL has no equal."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from datasets import Dataset
from hypothesis import given as drawn, settings, strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.losses import (
    PULL_BOUND,
    RATIO_BOUND,
    Loss,
    Objective,
    Tokens,
    bounded_k3,
    policy_loss,
    pull,
    row_weights,
)
from ratchet.trainer_worker.training.learner.rows import Row
from tests.support.tiny_models import write_tiny_model

PLAIN = Objective(importance_cap=None, rejection_window=None, kl_beta=0.0)


def tokens(logp: list[float], prox: list[float], mu: list[float], adv: list[float], **changes: Any) -> Tokens:
    n = len(logp)
    values: dict[str, Any] = {
        "logprobs_N": torch.tensor(logp, requires_grad=True),
        "proximal_N": torch.tensor(prox),
        "behavior_N": torch.tensor(mu),
        "advantages_N": torch.tensor(adv),
        "weights_N": torch.full((n,), 1.0 / n),
        "row_N": torch.zeros(n, dtype=torch.long),
        "rows": 1,
    }
    return Tokens(**{**values, **changes})


def test_ppo_clip_by_hand() -> None:
    """Ratios 1.5 and .5: a gain is capped at 1.28, a loss at .8."""
    logp = [math.log(1.5), math.log(0.5)]
    loss = policy_loss(tokens(logp, [0.0, 0.0], [0.0, 0.0], [1.0, -1.0]), PLAIN)
    assert loss.value.item() == pytest.approx(-(1.28 - 0.8) / 2)
    assert int(loss.clipped) == 2


def test_dual_clip_bounds_what_one_bad_token_can_cost() -> None:
    """At ratios of 2 and 50, of which the second is beyond the bound of 3: it costs 3, and has no gradient."""
    given = tokens([math.log(2.0), math.log(50.0)], [0.0, 0.0], [0.0, 0.0], [-1.0, -1.0])
    loss = policy_loss(given, PLAIN)
    assert loss.value.item() == pytest.approx((2.0 + 3.0) / 2)
    loss.value.backward()
    assert given.logprobs_N.grad is not None
    assert given.logprobs_N.grad.tolist() == pytest.approx([1.0, 0.0])


def test_the_importance_weight_is_truncated_and_detached() -> None:
    given = tokens([0.0, 0.0], [0.0, 0.0], [math.log(0.1), math.log(0.8)], [1.0, 1.0])
    loss = policy_loss(given, Objective(importance_cap=2.0, rejection_window=None, kl_beta=0.0))
    assert loss.value.item() == pytest.approx(-(2.0 + 1.25) / 2)
    loss.value.backward()
    assert given.logprobs_N.grad is not None
    assert given.logprobs_N.grad.tolist() == pytest.approx([-1.0, -0.625])


def test_few_rare_tokens_that_were_learnt_keep_the_effective_sample_size() -> None:
    """Three of 600 went from .02 to .98: their whole weights, 49 each, would make it .08, below the limit of health."""
    given = tokens([math.log(0.98)] * 3 + [0.0] * 597, [0.0] * 600, [math.log(0.02)] * 3 + [0.0] * 597, [1.0] * 600)
    loss = policy_loss(given, PLAIN)
    assert float(loss.weight_sum) ** 2 / (600 * float(loss.weight_square_sum)) > 0.99


def test_cispo_by_hand() -> None:
    """Weights 1.5 and .5 with a bound of 1.28, times the log-probability; its gradient is the weighted advantage."""
    given = tokens([math.log(1.5), math.log(0.5)], [0.0, 0.0], [0.0, 0.0], [1.0, -1.0])
    loss = policy_loss(given, replace(PLAIN, surrogate="cispo"))
    assert loss.value.item() == pytest.approx(-(1.28 * math.log(1.5) - 0.5 * math.log(0.5)) / 2)
    loss.value.backward()
    assert given.logprobs_N.grad is not None
    assert given.logprobs_N.grad.tolist() == pytest.approx([-0.64, 0.25])
    assert int(loss.clipped) == 1


def test_the_ratio_of_a_row_is_the_geometric_mean_of_its_tokens_ratios() -> None:
    """2 and .5 in one row are 1, so nothing is clipped; each token has half of the row's gradient."""
    given = tokens([math.log(2.0), math.log(0.5)], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0])
    loss = policy_loss(given, replace(PLAIN, ratio="sequence"))
    assert (loss.value.item(), int(loss.clipped)) == (pytest.approx(-1.0), 0)
    loss.value.backward()
    assert given.logprobs_N.grad is not None
    assert given.logprobs_N.grad.tolist() == pytest.approx([-0.5, -0.5])


def test_kl_is_that_of_the_tokens_whose_reference_was_scored() -> None:
    given = tokens([0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0], reference_N=torch.tensor([math.nan, math.log(2.0)]))
    loss = policy_loss(given, PLAIN)
    assert (float(loss.kl), loss.kl_tokens) == (pytest.approx(1 - math.log(2.0)), 1)
    assert math.isfinite(loss.value.item())
    none = policy_loss(tokens([0.0], [0.0], [0.0], [1.0]), PLAIN)
    assert (float(none.kl), none.kl_tokens) == (0.0, 0)


@settings(max_examples=30, deadline=None)
@drawn(
    st.sampled_from(["token", "sequence"]),
    st.sampled_from(["ppo", "cispo"]),
    st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2), st.floats(-2, 2)), min_size=4, max_size=12),
    st.randoms(use_true_random=False),
)
def test_rows_may_come_in_any_order_and_in_any_passes(
    ratio: str, surrogate: str, values: list[tuple[float, float, float]], random: Any
) -> None:
    """Of four rows: all in one pass, or each in its own, the sums are the same."""
    objective = Objective(ratio=ratio, surrogate=surrogate, rejection_window=(0.5, 2.0))
    row = sorted(n % 4 for n in range(len(values)))
    order = list(range(len(values)))
    random.shuffle(order)

    def of(indices: list[int], rows: list[int]) -> Loss:
        logp, prox, mu = zip(*(values[index] for index in indices), strict=True)
        adv = [1.0 if row[index] % 2 else -1.0 for index in indices]
        known = {"row_N": torch.tensor(rows), "rows": max(rows) + 1, "reference_N": torch.zeros(len(indices))}
        return policy_loss(
            tokens(list(logp), list(prox), list(mu), adv, weights_N=torch.ones(len(indices)), **known), objective
        )

    whole = of(list(range(len(values))), row)
    mixed = of(order, [row[index] for index in order])
    apart = [of(own, [0] * len(own)) for own in ([n for n in range(len(row)) if row[n] == one] for one in range(4))]
    for name in ("value", "clipped", "rejected", "kl", "moved", "weight_sum", "weight_square_sum"):
        expected = float(getattr(whole, name).detach())
        assert float(getattr(mixed, name).detach()) == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert sum(float(getattr(one, name).detach()) for one in apart) == pytest.approx(expected, rel=1e-4, abs=1e-4)


TERMS: dict[str, tuple[Objective, dict[str, Any]]] = {
    "ratio of tokens": (PLAIN, {"advantages_N": torch.ones(3)}),
    "ratio of rows": (replace(PLAIN, ratio="sequence"), {"advantages_N": torch.ones(3)}),
    "cispo": (replace(PLAIN, surrogate="cispo"), {"advantages_N": torch.ones(3)}),
    "kl": (replace(PLAIN, kl_beta=0.1), {"reference_N": torch.tensor([-1.0, -1.0, -1.0])}),
}


@pytest.mark.parametrize("term", TERMS)
def test_every_term_of_the_policy_loss_has_a_gradient_at_every_token(term: str) -> None:
    """At the first train step, where the policy is its own proximal one; the entropy bonus is `Update`'s."""
    objective, columns = TERMS[term]
    given = tokens([-0.3, -0.5, -0.1], [-0.3, -0.5, -0.1], [-0.3, -0.5, -0.1], [0.0, 0.0, 0.0], **columns)
    policy_loss(given, objective).value.backward()
    assert given.logprobs_N.grad is not None
    assert bool((given.logprobs_N.grad != 0).all())


def test_rows_outside_the_window_do_not_learn_and_are_counted() -> None:
    """Geometric means: row 0 has 1.05, row 1 has 1.2."""
    mu = [math.log(1 / 1.05), math.log(1 / 1.05), math.log(1 / 1.2)]
    given = tokens([0.0] * 3, [0.0] * 3, mu, [1.0] * 3, row_N=torch.tensor([0, 0, 1]), rows=2)
    loss = policy_loss(given, Objective(importance_cap=None, rejection_window=(0.9, 1.1), kl_beta=0.0))
    assert loss.value.item() == pytest.approx(-2 / 3)
    assert int(loss.rejected) == 1


def test_k3_is_zero_at_the_reference_and_positive_elsewhere() -> None:
    assert bounded_k3(torch.tensor([0.3]), torch.tensor([0.3])).item() == pytest.approx(0.0)
    assert bounded_k3(torch.tensor([0.0]), torch.tensor([math.log(2.0)])).item() == pytest.approx(2 - math.log(2) - 1)


@pytest.mark.parametrize("pushed", [0.0, 3.0, 15.0], ids=["not", "a little", "far"])
def test_kl_estimate_is_near_the_exact_one_once_a_rare_token_is_learnt(pushed: float) -> None:
    """64 draws of the old policy, one of a token that it hardly ever draws, and whose odds then grew by `pushed`."""
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -9.0])
    moved = logits + torch.tensor([0.8, -0.6, 0.3, -0.4, pushed])
    old, new = torch.log_softmax(logits, -1), torch.log_softmax(moved, -1)
    drawn = torch.multinomial(old.exp(), 63, replacement=True, generator=torch.Generator().manual_seed(0))
    drawn = torch.cat([drawn, torch.tensor([4])])
    estimate = float(bounded_k3(old[drawn], new[drawn]).mean())
    exact = float((old.exp() * (old - new)).sum())
    assert estimate == pytest.approx(exact, rel=0.6)


def test_one_token_is_never_the_whole_estimate() -> None:
    """Its odds grew by e^20: plain k3 would be half a thousand millions."""
    assert float(bounded_k3(torch.tensor([-20.0]), torch.tensor([0.0]))) < RATIO_BOUND


def pulls(differences: list[float]) -> list[float]:
    """Gradients of the pull at so many nats above the reference."""
    logprobs = torch.tensor(differences, requires_grad=True)
    pull(logprobs, torch.zeros(len(differences))).sum().backward()
    assert logprobs.grad is not None
    return logprobs.grad.tolist()


def test_the_pull_of_the_reference_is_the_gradient_of_the_kl() -> None:
    """Weighted by what pi draws, against autograd through KL(pi || reference) over the whole vocabulary."""
    logits = torch.tensor([1.0, 0.2, -0.5, -2.0], requires_grad=True)
    reference = torch.log_softmax(torch.tensor([-0.3, 0.4, 0.1, 0.6]), -1)
    pi = torch.log_softmax(logits, -1)
    (exact,) = torch.autograd.grad((pi.exp() * (pi - reference)).sum(), logits, retain_graph=True)
    (drawn,) = torch.autograd.grad((pi.detach().exp() * pull(pi, reference)).sum(), logits)
    assert drawn.tolist() == pytest.approx(exact.tolist(), abs=1e-6)


def test_one_extreme_token_does_not_own_the_pull() -> None:
    """At 15 nats below, where k3 would pull 3 million times as hard as at 1."""
    assert pulls([1.0, -1.0, -15.0, 15.0]) == pytest.approx([1.0, -1.0, -PULL_BOUND, PULL_BOUND])


def test_each_normalisation_weighs_rows_its_own_way() -> None:
    """Trajectory a has two rows of 1 and 3 tokens, b one row of 4."""
    names, trained = ["a", "a", "b"], [1, 3, 4]
    assert row_weights("trajectory", names, trained, 1) == pytest.approx([1 / 8, 1 / 8, 1 / 8])
    assert row_weights("trajectory", ["a", "b"], [1, 3], 1) == pytest.approx([1 / 2, 1 / 6])
    assert row_weights("token", names, trained, 1) == pytest.approx([1 / 8] * 3)
    assert row_weights("constant", names, trained, 10) == pytest.approx([1 / 30] * 3)


# ------------------------------------------------------------------------------------------------- equality with TRL
ROWS = [
    Row.of("a", [5, 6, 7, 8, 9, 10, 11], [False, False, True, True, False, True, True]),
    Row.of("b", [5, 6, 12, 13, 14], [False, False, True, True, True]),
    Row.of("c", [5, 6, 15, 16, 17, 18, 19], [False, False, False, True, True, True, False]),
]
ADVANTAGES = [0.8, -1.3, 0.4]
PROMPT, WIDTH = 2, 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = write_tiny_model(tmp_path_factory.mktemp("model"), ["some text"])
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")


@pytest.fixture(scope="module")
def trl(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A real GRPOTrainer; its own `_compute_loss` is what we compare with."""
    directory = write_tiny_model(tmp_path_factory.mktemp("trl"), ["some text"])
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda **_: [0.0],
        args=GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("out")),
            per_device_train_batch_size=3,
            num_generations=3,
            max_completion_length=WIDTH,
            epsilon=0.2,
            epsilon_high=0.28,
            delta=3.0,
            beta=0.0,
            report_to="none",
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["x"] * 3}),
        processing_class=AutoTokenizer.from_pretrained(directory),
    )


def padded(columns: list[list[float]]) -> torch.Tensor:
    return torch.tensor([column + [0.0] * (WIDTH - len(column)) for column in columns])


def per_token(row: Row, seed: int, spread: float, base: torch.Tensor) -> list[float]:
    """Made-up log-probabilities near the model's own, so that ratios lie on both sides of every clip."""
    noise = torch.randn(row.length, generator=torch.Generator().manual_seed(seed)) * spread
    return (base + noise).tolist()


def gradients(model: Any) -> dict[str, torch.Tensor]:
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return gradients


@dataclass(frozen=True)
class Columns:
    """For each token of each row, what the two policies would have said."""

    proximal: list[list[float]]
    behavior: list[list[float]]


def columns_near(model: Any, corrected: bool) -> Columns:
    with torch.no_grad():
        own: list[torch.Tensor] = []
        for row in ROWS:
            logits = model(input_ids=torch.tensor([row.token_ids.tolist()])).logits[0, :-1].float()
            chosen = torch.log_softmax(logits, -1).gather(-1, torch.tensor(row.token_ids[1:].tolist())[:, None])[:, 0]
            own.append(torch.cat([torch.zeros(1), chosen]))

    def noisy(seed: int, spread: float) -> list[list[float]]:
        return [per_token(row, seed, spread, base) for row, base in zip(ROWS, own, strict=True)]

    proximal = noisy(1, 0.3)
    return Columns(proximal, noisy(2, 0.5) if corrected else proximal)


@dataclass(frozen=True)
class Kind:
    """The same objective in TRL's words and in ours."""

    loss_type: str
    normalization: str
    surrogate: str = "ppo"
    ratio: str = "token"


KINDS = [
    Kind("grpo", "trajectory"),
    Kind("bnpo", "token"),
    Kind("dr_grpo", "constant"),
    Kind("cispo", "token", surrogate="cispo"),
    Kind("grpo", "trajectory", ratio="sequence"),
]
"""The last one is GSPO."""


def loss_of_trl(model: Any, trl: Any, columns: Columns, kind: Kind, corrected: bool) -> torch.Tensor:
    """TRL's flags: epsilon .2/.28, delta 3 (two-sided clip), importance ratio truncated at 2, and no beta: its penalty
    is k3, ours is not."""

    def answers(per_row: list[list[float]]) -> torch.Tensor:
        return padded([column[PROMPT:] for column in per_row])

    completions = [row.token_ids[PROMPT:].tolist() for row in ROWS]
    inputs = {
        "prompt_ids": torch.tensor([row.token_ids[:PROMPT].tolist() for row in ROWS]),
        "prompt_mask": torch.ones(3, PROMPT, dtype=torch.long),
        "completion_ids": padded([list(map(float, c)) for c in completions]).long(),
        "completion_mask": padded([[1.0] * len(c) for c in completions]).long(),
        "tool_mask": padded([[float(m) for m in row.loss_mask[PROMPT:]] for row in ROWS]).long(),
        "advantages": torch.tensor(ADVANTAGES),
        "old_per_token_logps": answers(columns.proximal),
        "importance_sampling_ratio": (answers(columns.proximal) - answers(columns.behavior)).exp().clamp(max=2.0),
        "num_items_in_batch": torch.tensor(10),
    }
    flags = {"loss_type": kind.loss_type, "use_vllm": corrected, "vllm_importance_sampling_correction": corrected}
    # TRL's bound of CISPO is the weight itself, ours is how far it may be above 1.
    flags |= {"importance_sampling_level": kind.ratio, "epsilon_high": 1.28 if kind.loss_type == "cispo" else 0.28}
    for name, value in flags.items():
        setattr(trl, name, value)
    trl.current_gradient_accumulation_steps = 1
    return trl._compute_loss(model, inputs)


def loss_of_ours(model: Any, columns: Columns, kind: Kind, corrected: bool) -> torch.Tensor:
    rows = [
        Row.of(row.trajectory_id, row.token_ids, row.loss_mask, [column[place] for place in row.trained_at])
        for row, column in zip(ROWS, columns.behavior, strict=True)
    ]

    def flat(per_row: list[list[float]]) -> torch.Tensor:
        pairs = [pair for row, c in zip(rows, per_row, strict=True) for pair in zip(c, row.loss_mask, strict=True)]
        return torch.tensor([value for value, learns in pairs if learns])

    sizes = torch.tensor([row.trained for row in rows])
    weights = row_weights(kind.normalization, [row.trajectory_id for row in rows], sizes.tolist(), WIDTH)
    tokens = Tokens(
        logprobs_N=Scorer(model).score(rows).logprobs_N,
        proximal_N=flat(columns.proximal),
        behavior_N=flat(columns.behavior),
        advantages_N=torch.tensor(ADVANTAGES).repeat_interleave(sizes),
        weights_N=torch.tensor(weights).repeat_interleave(sizes),
        row_N=torch.arange(3).repeat_interleave(sizes),
        rows=3,
    )
    objective = Objective(
        importance_cap=2.0 if corrected else None,
        rejection_window=None,
        kl_beta=0.0,
        ratio=kind.ratio,
        surrogate=kind.surrogate,
    )
    return policy_loss(tokens, objective).value


@pytest.mark.parametrize("kind", KINDS, ids=["grpo", "bnpo", "dr_grpo", "cispo", "gspo"])
@pytest.mark.parametrize("corrected", [False, True], ids=["on_policy", "importance_corrected"])
def test_loss_and_gradient_equal_trl(model: Any, trl: Any, kind: Kind, corrected: bool) -> None:
    model.train()
    columns = columns_near(model, corrected)
    theirs = loss_of_trl(model, trl, columns, kind, corrected)
    theirs.backward()
    their_gradients = gradients(model)
    ours = loss_of_ours(model, columns, kind, corrected)
    ours.backward()
    our_gradients = gradients(model)
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-5)
    assert our_gradients.keys() == their_gradients.keys()
    for name, gradient in our_gradients.items():
        assert (gradient - their_gradients[name]).norm() <= 1e-5 * their_gradients[name].norm(), name
