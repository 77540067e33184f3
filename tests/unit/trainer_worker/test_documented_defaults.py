"""The defaults in the reference of training's options are those of the trainer."""

from __future__ import annotations

import pytest

from ratchet.core.contract.training import Lora
from ratchet.core.rules.algorithms import ALGORITHMS, GRADIENT_RATES, PREFERENCE_RATES, REWARD_RATES, SFT_RATES
from ratchet.trainer_worker.training.algorithms import dpo, kto, ppo
from ratchet.trainer_worker.training.learner.losses import Objective
from ratchet.trainer_worker.training.learner.update import UpdateOptions
from ratchet.trainer_worker.training.loop import EPOCHS, WARMUP_STEPS
from tools.docs.training_reference import training_page

PAGE = training_page()
GRADIENT, LOSS, LORA = UpdateOptions(GRADIENT_RATES.adapter, ALGORITHMS["rloo"].default_batch_size), Objective(), Lora()


def rate(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


def default_of(name: str) -> str:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    return row.split(" | ")[3]


@pytest.mark.parametrize(
    ("name", "default"),
    [
        (
            "learning_rate",
            f"sft {rate(SFT_RATES.adapter)}, reward_model {rate(REWARD_RATES.adapter)}, "
            f"dpo and kto {rate(PREFERENCE_RATES.adapter)}, others {rate(GRADIENT_RATES.adapter)}; "
            f"with full_finetune sft and reward_model {rate(SFT_RATES.full)}, "
            f"others {rate(GRADIENT_RATES.full)}",
        ),
        ("batch_size", f"{ALGORITHMS['sft'].default_batch_size}; policy gradients {GRADIENT.batch_size}"),
        ("epochs", f"{EPOCHS}; policy gradients {GRADIENT.epochs}"),
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
        ("warmup_steps", f"a tenth of all steps, at most {WARMUP_STEPS}; policy gradients {GRADIENT.ramp_steps}"),
        ("lora", f"r {LORA.r}, alpha {LORA.alpha:g}, dropout {LORA.dropout:g}, {LORA.target_modules}"),
    ],
)
def test_a_documented_default_is_the_trainers(name: str, default: str) -> None:
    assert default_of(name) == default


def test_dpo_and_kto_share_their_documented_defaults() -> None:
    assert REWARD_RATES.full == SFT_RATES.full
    assert len({ALGORITHMS[name].default_batch_size for name in ("sft", "dpo", "kto")}) == 1
    assert dpo.BETA == kto.BETA
