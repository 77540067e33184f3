"""What the tests of trainings share."""

from __future__ import annotations

import pytest
import torch

import ratchet.trainer_worker.training.loop  # noqa: F401 - before the tests, so that no search for garbage covers torch
from ratchet.core.contract.snapshot import PairRow
from ratchet.trainer_worker.training.child_run import read_snapshot
from tests.support.tiny_models import chat_texts, write_tiny_model
from tests.support.toy_preferences import parrot_chats, parrot_pairs
from tests.support.trainer_runs import write_pairs


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="package")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model that knows the letters of the parrots' chats."""
    return str(write_tiny_model(tmp_path_factory.mktemp("base"), chat_texts(parrot_chats()), vocabulary=330))


@pytest.fixture(scope="package")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[PairRow]:
    return read_snapshot(write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.parquet", parrot_pairs()), PairRow)
