"""The learning rate of every train step, and what decays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ratchet.core.rules.training_options import SCHEDULERS
from ratchet.trainer_worker.errors import NoGradient
from ratchet.trainer_worker.training.learner.optimizer import MIN_RATE, FirstGradients, Schedule, optimizer_of, set_rate


def shares(scheduler: str, asked: int | None, total: int, most: int = 8) -> list[float]:
    schedule = Schedule.of(scheduler, asked, total, most)
    made = [schedule.share(number) for number in range(1, total + 1)]
    assert schedule.mean_share == pytest.approx(sum(made) / total)
    return made


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("total", [1, 3, 9])
def test_a_short_job_has_its_full_learning_rate_from_the_first_step(scheduler: str, total: int) -> None:
    assert shares(scheduler, None, total)[0] == 1.0


@pytest.mark.parametrize(("total", "ramp"), [(20, 2), (80, 8), (400, 8)])
def test_a_ramp_is_a_tenth_of_the_steps_up_to_the_most(total: int, ramp: int) -> None:
    made = shares("linear", None, total)
    assert made[:ramp] == pytest.approx([number / ramp for number in range(1, ramp + 1)])
    assert max(made) == made[ramp - 1] == 1.0


@pytest.mark.parametrize(("norms", "refused"), [([0.0] * 10, 10), ([0.0] * 9 + [1e-3], None), ([1e-20] * 3, 3)])
def test_a_training_without_any_gradient_ends_after_its_first_steps(norms: list[float], refused: int | None) -> None:
    first, total = FirstGradients(), 200 if len(norms) == 10 else len(norms)
    for number, norm in enumerate(norms, 1):
        if number == refused:
            with pytest.raises(NoGradient, match=f"first {refused} train steps"):
                first.add(number, total, norm)
        else:
            first.add(number, total, norm)


def test_each_scheduler_falls_in_its_own_way() -> None:
    linear, constant, cosine = (shares(name, 0, 100) for name in ("linear", "constant", "cosine"))
    assert constant == [1.0] * 100
    assert linear[50] == cosine[50] == pytest.approx((1 + MIN_RATE) / 2)
    assert cosine[25] > linear[25] > linear[75] > cosine[75]
    assert cosine[-1] < linear[-1] < MIN_RATE + 0.01


@pytest.mark.parametrize(("ramp", "total"), [(8, 3), (3, 3), (2, 1)])
def test_a_ramp_as_long_as_the_job_is_refused(ramp: int, total: int) -> None:
    with pytest.raises(ValueError, match=f"warmup_steps {ramp} is no less than the {total} train step"):
        Schedule.of("linear", ramp, total, 8)


def test_one_step_of_ramp_is_none() -> None:
    assert shares("linear", 1, 1) == [1.0]


def test_matrices_decay_and_vectors_do_not() -> None:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(1.0)
    optimizer = optimizer_of(layer.parameters(), 1.0, 0.5)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    set_rate(optimizer, 0.1)
    optimizer.step()
    assert layer.weight.tolist() == [[pytest.approx(0.95)] * 2] * 2
    assert layer.bias.tolist() == [1.0, 1.0]
