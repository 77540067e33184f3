"""What the tests of trainings share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

import ratchet.trainer_worker.training.loop  # noqa: F401 - for the libraries that it loads


@pytest.fixture(scope="package", autouse=True)
def one_thread_and_no_search_for_garbage_in_libraries() -> Iterator[None]:
    """Every end of a training collects garbage, which takes half a second over the modules of torch alone."""
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
