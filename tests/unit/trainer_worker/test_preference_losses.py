"""DPO and KTO losses: equal to values worked out by hand, and to TRL's own on the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import KTOTrainer

from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.preferences import (
    KtoWeights,
    PairLogprobs,
    dpo_loss,
    kto_loss,
    score_all,
    sequence_logprobs,
)
from ratchet.trainer_worker.training.learner.rows import Row
from tests.support.tiny_models import write_tiny_model
from tests.support.trainer_runs import toy_model

PROMPT, CHOSEN, REJECTED = [1, 5, 6], [[7, 8, 9], [4, 4]], [[3, 3], [9, 8, 7, 6]]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def exact(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_dpo_loss_and_its_rewards_are_those_worked_out_by_hand() -> None:
    scores = PairLogprobs(exact(-10.0, -4.0), exact(-12.0, -3.0), exact(-11.0, -4.0), exact(-11.5, -5.0))
    made = dpo_loss(scores, beta=0.5)
    # 0.5 * (-10 + 11), 0.5 * (-12 + 11.5); 0.5 * (-4 + 4), 0.5 * (-3 + 5)
    assert made.rewards_chosen_P.tolist() == pytest.approx([0.5, 0.0], abs=1e-12)
    assert made.rewards_rejected_P.tolist() == pytest.approx([-0.25, 1.0], abs=1e-12)
    assert made.margins.tolist() == pytest.approx([0.75, -1.0], abs=1e-12)
    # log(1 + exp(-0.75)), log(1 + exp(1))
    assert made.loss_P.tolist() == pytest.approx([0.3868703, 1.3132617], abs=1e-6)


@pytest.mark.parametrize(("beta", "smoothing"), [(0.1, 0.0), (0.5, 0.0), (0.5, 0.1), (2.0, 0.4)])
def test_beta_scales_rewards_and_smoothing_mixes_in_the_opposite(beta: float, smoothing: float) -> None:
    chosen, rejected = exact(-10.0).requires_grad_(), exact(-12.0).requires_grad_()
    made = dpo_loss(PairLogprobs(chosen, rejected, exact(-11.0), exact(-11.5)), beta, smoothing)
    margin = beta * 1.5
    expected = -(1 - smoothing) * math.log(sigmoid(margin)) - smoothing * math.log(sigmoid(-margin))
    assert made.loss_P.item() == pytest.approx(expected, abs=1e-6)
    assert made.margins.item() == pytest.approx(margin, abs=1e-9)
    made.loss_P.sum().backward()  # pyright: ignore[reportUnknownMemberType] - torch leaves it untyped
    pull = beta * ((1 - smoothing) * sigmoid(-margin) - smoothing * sigmoid(margin))
    assert chosen.grad is not None
    assert rejected.grad is not None
    assert (chosen.grad.item(), rejected.grad.item()) == (pytest.approx(-pull), pytest.approx(pull))


def test_the_kto_loss_is_the_one_worked_out_by_hand() -> None:
    log_ratios = exact(1.0, -2.0, 0.5).requires_grad_()
    liked = torch.tensor([True, True, False])
    mismatched = exact(0.75, -0.25, 0.25).requires_grad_()
    made = kto_loss(log_ratios, liked, mismatched, KtoWeights(beta=0.5, desirable=0.75, undesirable=1.5))
    assert made.reference_point.item() == pytest.approx(0.25)
    expected = [
        0.75 * (1 - sigmoid(0.5 * (1.0 - 0.25))),
        0.75 * (1 - sigmoid(0.5 * (-2.0 - 0.25))),
        1.5 * (1 - sigmoid(0.5 * (0.25 - 0.5))),
    ]
    assert made.loss_L.tolist() == pytest.approx(expected, abs=1e-6)
    assert made.rewards_L.tolist() == pytest.approx([0.5, -1.0, 0.25], abs=1e-9)
    made.loss_L.sum().backward()  # pyright: ignore[reportUnknownMemberType] - torch leaves it untyped
    assert mismatched.grad is None
    assert log_ratios.grad is not None
    # Weight times beta times the slope of the sigmoid at the example's distance from the reference point.
    weighted = [(0.75, 0.375), (0.75, -1.125), (1.5, 0.125)]
    slopes = [weight * 0.5 * sigmoid(distance) * sigmoid(-distance) for weight, distance in weighted]
    assert log_ratios.grad.tolist() == pytest.approx([-slopes[0], -slopes[1], slopes[2]], abs=1e-9)


def test_the_reference_point_is_never_below_zero() -> None:
    made = kto_loss(exact(0.0), torch.tensor([True]), exact(-3.0), KtoWeights(beta=0.1))
    assert made.reference_point.item() == 0.0
    assert made.loss_L.item() == pytest.approx(0.5)


# ------------------------------------------------------------------------------------------------- the same as TRL's
def row(answer: Sequence[int]) -> Row:
    ids = [*PROMPT, *answer]
    mask = [False] * len(PROMPT) + [True] * len(answer)
    return Row.of("t", ids, mask)


def two_policies() -> tuple[Any, Any, Scorer, Scorer]:
    policy, reference = toy_model(1), toy_model(2)
    return policy, reference, Scorer(policy), Scorer(reference)


def trl_config(kind: Any, folder: Path, **more: Any) -> Any:
    return kind(
        output_dir=str(folder),
        bf16=False,
        use_cpu=True,
        activation_checkpointing=False,
        report_to="none",
        max_length=None,
        beta=0.3,
        disable_tqdm=True,
        **more,
    )


def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415 - slow to import, and only these two tests need it

    return AutoTokenizer.from_pretrained(str(write_tiny_model(folder, ["a b"], vocabulary=270)))  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_dpo_equals_trl_on_the_same_rows(tmp_path: Path, smoothing: float) -> None:
    """TRL's sigmoid loss has no label smoothing; its `aot` loss on one pair is the same formula with it."""
    policy, reference, scorer, reference_scorer = two_policies()
    chosen, rejected = [[row(ids)] for ids in CHOSEN], [[row(ids)] for ids in REJECTED]
    own, _ = sequence_logprobs(scorer, [*chosen, *rejected])
    start = score_all(reference_scorer, [*chosen, *rejected])
    made = dpo_loss(PairLogprobs(own[:2], own[2:], start[:2], start[2:]), beta=0.3, label_smoothing=smoothing)
    columns = {"prompt_ids": [PROMPT] * 2, "chosen_ids": CHOSEN, "rejected_ids": REJECTED}
    kind = "aot" if smoothing else "sigmoid"
    trainer = DPOTrainer(
        model=policy,
        ref_model=reference,
        args=trl_config(DPOConfig, tmp_path, loss_type=[kind], label_smoothing=smoothing),
        train_dataset=Dataset.from_dict({"prompt": ["a"], "chosen": ["a"], "rejected": ["b"]}),
        processing_class=tokenizer(tmp_path / "tokenizer"),
    )
    for index in range(2):
        one = {name: values[index] for name, values in columns.items()}
        theirs: Any = trainer.compute_loss(trainer.model, trainer.data_collator([one]))
        assert made.loss_P[index].item() == pytest.approx(theirs.item(), abs=1e-5)


def test_kto_equals_trl_on_the_same_rows(tmp_path: Path) -> None:
    policy, reference, scorer, reference_scorer = two_policies()
    answers, liked = [*CHOSEN, *REJECTED], torch.tensor([True, True, False, False])
    # TRL pairs each prompt with the completion before it in the batch, the first with the last.
    rows, crossed = [[row(ids)] for ids in answers], [[row(ids)] for ids in [answers[-1], *answers[:-1]]]
    own, other = sequence_logprobs(scorer, rows)[0], sequence_logprobs(scorer, crossed)[0]
    start, start_other = score_all(reference_scorer, rows), score_all(reference_scorer, crossed)
    weights = KtoWeights(beta=0.3, desirable=1.0, undesirable=0.8)
    made = kto_loss(own - start, liked, other - start_other, weights)
    columns = {"prompt_ids": [PROMPT] * 4, "completion_ids": answers, "label": liked.tolist()}
    columns["KL_completion_ids"] = [answers[-1], *answers[:-1]]
    trainer = KTOTrainer(
        model=policy,
        ref_model=reference,
        args=trl_config(
            KTOConfig,
            tmp_path,
            desirable_weight=1.0,
            undesirable_weight=0.8,
            per_device_train_batch_size=4,
            train_sampling_strategy="sequential",
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 4, "completion": ["b"] * 4, "label": [True, False] * 2}),
        processing_class=tokenizer(tmp_path / "tokenizer"),
    )
    batch = [{name: values[index] for name, values in columns.items()} for index in range(4)]
    theirs: Any = trainer.compute_loss(trainer.model, trainer.data_collator(batch))
    assert made.loss_L.mean().item() == pytest.approx(theirs.item(), abs=1e-5)
