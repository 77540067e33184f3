"""RLOO and the reward model beside TRL's own trainers, with the same flags, on the very same rows.

Those of GRPO are in test_losses.py, those of DPO and KTO in test_preference_losses.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import RLOOConfig, RLOOTrainer
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer

from ratchet.core.contract.training import Hyperparameters
from ratchet.trainer_worker.training.algorithms.reward_model import BradleyTerry
from ratchet.trainer_worker.training.learner.advantages import RLOO, Scored, Shaping, trajectory_advantages
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.losses import Objective, Tokens, policy_loss, row_weights
from ratchet.trainer_worker.training.learner.rewards import ReadPair, read_at_end
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.policy import load_policy
from tests.support.tiny_models import write_tiny_model
from tests.support.trainer_runs import job_spec

REWARDS = [1.0, 0.0, 0.25, 0.5]
"""Of four tries at one prompt."""
LONGEST = 6
CONFIG: dict[str, Any] = {"report_to": "none", "use_cpu": True, "bf16": False, "activation_checkpointing": False}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), ["some text"])


def gradients(model: Any) -> dict[str, torch.Tensor]:
    own = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return own


# -------------------------------------------------------------------------------------------------------------- RLOO
@pytest.fixture(scope="module")
def model(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")


@pytest.fixture(scope="module")
def played(model: Any, directory: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    """TRL's trainer, and what it made of four tries at one prompt: rows, log-probabilities, advantages."""
    trainer = RLOOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: REWARDS[: len(completions)],
        args=RLOOConfig(
            output_dir=str(tmp_path_factory.mktemp("rloo")),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=LONGEST,
            epsilon=0.2,
            epsilon_high=0.28,
            beta=0.0,
            **CONFIG,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["some text"] * 4}),
        processing_class=AutoTokenizer.from_pretrained(directory),
    )
    torch.manual_seed(5)
    model.train()
    inputs: Any = trainer._generate_and_score_completions([{"prompt": "some text"}] * 4)
    return trainer, inputs


def rows_of(inputs: dict[str, Any]) -> list[Row]:
    """What TRL played, as rows."""
    made: list[Row] = []
    for place in range(4):
        prompt = inputs["prompt_ids"][place][inputs["prompt_mask"][place].bool()].tolist()
        answer = inputs["completion_ids"][place][inputs["completion_mask"][place].bool()].tolist()
        made.append(Row.of(f"t{place}", [*prompt, *answer], [False] * len(prompt) + [True] * len(answer)))
    return made


def test_the_advantages_of_rloo_equal_trls(played: tuple[Any, dict[str, Any]]) -> None:
    scored = [Scored(f"t{place}", "one task", reward) for place, reward in enumerate(REWARDS)]
    own = trajectory_advantages(scored, RLOO, Shaping()).values
    assert [own[f"t{place}"] for place in range(4)] == pytest.approx(played[1]["advantages"].tolist(), abs=1e-6)


def test_the_gradient_of_rloo_on_its_own_policys_rows_equals_trls(
    model: Any, played: tuple[Any, dict[str, Any]]
) -> None:
    """TRL has one ratio for a whole answer and does not divide by its length: for us `constant` normalisation, whose
    divisor is the only difference. Where ratios are 1, one for the answer and one for each token are the same.
    """
    trainer, inputs = played
    trainer._compute_loss(model, inputs).backward()
    theirs = gradients(model)
    rows = rows_of(inputs)
    sizes = torch.tensor([row.trained for row in rows])
    logprobs = Scorer(model).score(rows).logprobs_N
    weights = row_weights("constant", [row.trajectory_id for row in rows], sizes.tolist(), 1)
    tokens = Tokens(
        logprobs_N=logprobs,
        proximal_N=logprobs.detach(),
        behavior_N=logprobs.detach(),
        advantages_N=inputs["advantages"].repeat_interleave(sizes),
        weights_N=torch.tensor(weights).repeat_interleave(sizes),
        row_N=torch.arange(4).repeat_interleave(sizes),
        rows=4,
    )
    plain = Objective(importance_cap=None, rejection_window=None, kl_beta=0.0)
    policy_loss(tokens, plain).value.backward()
    ours = gradients(model)
    assert ours.keys() == theirs.keys()
    assert max(float(gradient.abs().max()) for gradient in theirs.values()) > 1e-3
    for name, gradient in ours.items():
        assert torch.allclose(gradient, theirs[name], atol=1e-5), name


def test_log_probabilities_of_trls_rows_equal_trls(model: Any, played: tuple[Any, dict[str, Any]]) -> None:
    rows = rows_of(played[1])
    with torch.no_grad():
        parts = Scorer(model).score(rows).logprobs_N.split([row.trained for row in rows])
    assert [float(part.sum()) for part in parts] == pytest.approx(played[1]["old_logps"].tolist(), abs=1e-4)


# ------------------------------------------------------------------------------------------------------ reward model
PAIRS = [([9, 8, 7], [5, 6]), ([4, 4, 4, 4], [11, 12, 13])]
"""(chosen, rejected) behind the same prompt."""
PROMPT = [1, 20, 21]


@pytest.mark.parametrize("center", [0.0, 0.05])
def test_the_loss_and_gradient_of_a_reward_model_equal_trls(directory: Path, tmp_path: Path, center: float) -> None:
    hyper = Hyperparameters(full_finetune=True, center_rewards_coefficient=center or None)
    torch.manual_seed(1)
    policy = load_policy(job_spec("reward_model", base=str(directory), hyper=hyper))
    model: Any = policy.model
    trainer = RewardTrainer(
        model=model,
        args=RewardConfig(
            output_dir=str(tmp_path), center_rewards_coefficient=center or None, max_length=None, **CONFIG
        ),
        train_dataset=Dataset.from_dict({"chosen": ["some text"], "rejected": ["text"]}),
        processing_class=policy.tokenizer,
    )
    batch = [{"chosen_ids": [*PROMPT, *chosen], "rejected_ids": [*PROMPT, *rejected]} for chosen, rejected in PAIRS]
    model.eval()
    theirs: Any = trainer.compute_loss(model, trainer.data_collator(batch))
    theirs.backward()
    their_gradients = gradients(model)

    def read(answer: list[int]) -> Row:
        ids = [*PROMPT, *answer]
        return read_at_end(Row.of("t", ids, [False] * len(PROMPT) + [True] * len(answer)), policy.pad)

    objective = BradleyTerry(
        Scorer(model), [ReadPair(read(one), read(other), (len(one), len(other))) for one, other in PAIRS], center
    )
    ours = sum(loss.total for loss in objective.losses([0, 1])) / len(PAIRS)
    assert isinstance(ours, torch.Tensor)
    ours.backward()
    own_gradients = gradients(model)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    assert own_gradients.keys() == their_gradients.keys()
    for name, gradient in own_gradients.items():
        assert torch.allclose(gradient, their_gradients[name], atol=1e-5), name
