"""The number format follows from the times of two products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from ratchet.local.number_format import ROUNDS, chosen, fastest_format


class Clock:
    """Moves on by what each product takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def takes(self, seconds: Sequence[float]) -> Callable[[], None]:
        left = iter(seconds)

        def work() -> None:
            self.now += next(left)

        return work


@pytest.mark.parametrize(
    ("rough_s", "exact_s", "name"),
    [(1.0, 2.0, "bfloat16"), (1.0, 1.1, "float32"), (4.0, 1.0, "float32")],
)
def test_bfloat16_has_to_be_clearly_faster(rough_s: float, exact_s: float, name: str) -> None:
    clock = Clock()
    assert chosen(clock.takes([rough_s] * ROUNDS), clock.takes([exact_s] * ROUNDS), clock.read) == name


def test_other_load_and_the_first_product_change_nothing() -> None:
    clock = Clock()
    disturbed = [0.1, *[9.0] * (ROUNDS - 2), 1.0]
    assert chosen(clock.takes(disturbed), clock.takes([2.0] * ROUNDS), clock.read) == "bfloat16"


def test_products_are_timed_by_one_thread() -> None:
    """Several wait for each other on a busy machine, and the wait would be measured."""
    threads, measured = torch.get_num_threads(), set[int]()
    torch.set_num_threads(2)
    try:
        chosen(lambda: measured.add(torch.get_num_threads()), lambda: None, Clock().read)
        assert (measured, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(threads)


def test_this_processor_has_a_format() -> None:
    assert fastest_format() in {"bfloat16", "float32"}
