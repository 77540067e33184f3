"""Curves are read from what trainings left, whatever else stands there, and join over attempts."""

from __future__ import annotations

from ratchet.core.rules.figures import Point, TrainStep, curves_of, finite, joined, train_steps


def test_the_figures_of_every_train_step_are_read() -> None:
    lines = (
        b'{"step": 1, "epoch": 1, "seconds": 0.5, "loss": 2}\n{"step": 2, "epoch": 1, "seconds": 0.25, "loss": 1.5}\n'
    )
    steps = [*train_steps(lines)]
    assert steps == [TrainStep(1, {"seconds": 0.5, "loss": 2.0}), TrainStep(2, {"seconds": 0.25, "loss": 1.5})]
    assert curves_of(steps)["loss"] == [Point(1, 2.0), Point(2, 1.5)]


def test_what_is_no_train_step_and_no_number_is_left_out() -> None:
    deep = b'{"step": 1, "loss": ' + b"[" * 100_000
    huge = b'{"step": 3, "loss": 1' + b"0" * 400 + b', "ess": 0.5}'
    broken = (
        b"",
        b"\xff",
        b"null",
        b"[1]",
        b'{"step": "1"}',
        b'{"step": true}',
        b'{"step": NaN}',
        b'{"step": 2, "lo',
        deep,
    )
    assert [*train_steps(b"\n".join(broken))] == []
    odd = b'{"step": 4, "loss": null, "ess": "1", "x": true, "<b>\\u001b": 1}'
    assert [*train_steps(huge + b"\n" + odd)] == [TrainStep(3, {"ess": 0.5}), TrainStep(4, {"<b>\x1b": 1.0})]


def test_attempt_from_a_checkpoint_replaces_what_was_lost_beyond_it() -> None:
    first = [TrainStep(number, {"loss": 1.0}) for number in (1, 2, 3, 4)]
    second = [TrainStep(number, {"loss": 0.5}) for number in (3, 4, 5)]
    assert joined([first, [], second]) == [*first[:2], *second]
    assert joined([]) == []


def test_only_finite_numbers_are_figures() -> None:
    odd = {"nan": float("nan"), "inf": float("-inf"), "yes": True, "text": "1", "none": None}
    assert finite({"step": 1, "loss": 0.5, **odd}) == {"loss": 0.5}
