"""What the tests of trainings share."""

from __future__ import annotations

import pytest
import torch

import ratchet.trainer_worker.training.loop  # noqa: F401 - before the tests, so that no search for garbage covers torch


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
