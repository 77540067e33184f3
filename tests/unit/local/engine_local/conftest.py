"""One tiny random Llama, on disk and in memory, for all tests of the engine."""

from pathlib import Path

import pytest
import torch

from ratchet.local.engine_local.torch_policies import Served, Weights, load_weights, serve
from tests.support.tiny_models import write_tiny_model

TEXTS = ["where is my order K47", "it was sent on monday", 'look_up {"id":"K47"}', "I look it up for you."]


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), TEXTS)


@pytest.fixture(scope="session")
def weights(tiny_directory: Path) -> Weights:
    return load_weights(tiny_directory)


@pytest.fixture(scope="session")
def served(weights: Weights) -> Served:
    return serve(weights, None)
