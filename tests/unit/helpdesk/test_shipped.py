"""The models of the package are checked at each use, and are what the engine and the import take."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from ratchet.core.errors import DigestMismatch
from ratchet.core.stores.adapter_import import read_adapter
from ratchet_helpdesk import shipped
from ratchet_helpdesk.base_model import Shape, random_weights, write_base_model


def test_base_model_has_the_parameters_of_its_shape(tmp_path: Path) -> None:
    write_base_model(tmp_path, None, Shape())
    weights = load_file(tmp_path / "model.safetensors")
    vocabulary = json.loads((tmp_path / "config.json").read_text())["vocab_size"]
    expected = random_weights(Shape(), vocabulary, seed=0)
    assert {name: weight.shape for name, weight in weights.items()} == {name: w.shape for name, w in expected.items()}
    assert {weight.dtype for weight in weights.values()} == {np.dtype(np.float32)}


def test_bad_policy_passes_the_checks_of_an_import(tmp_path: Path) -> None:
    shipped.copy_bad_policy(tmp_path)
    assert read_adapter(tmp_path).config["r"] == 32


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    shutil.copytree(shipped.FOLDER, folder)
    with (folder / shipped.BASE).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    with pytest.raises(DigestMismatch, match="`make demo-base` makes it again"):
        shipped.copy_base(tmp_path, folder)
