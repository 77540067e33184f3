"""The models that the demo begins with: a drilled base model, and a bad policy to offer. `make demo-base` makes them.

Their weights lie in this package as halves (float16). `digests.json` has the sha256 of each file; every use checks it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from ratchet.core.errors import DigestMismatch

FOLDER = Path(__file__).parent / "models"
DIGESTS = "digests.json"
BASE = "base.safetensors"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
"""The bad policy, as PEFT names the files of an adapter on the base model."""
CONFIG = ("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "target_modules", "bias")
"""What the adapter's configuration says: all else are PEFT's defaults."""


def write_shipped(base: Path, bad: Path) -> None:
    """Replace the package's files by the weights of a model's directory and of an adapter's."""
    FOLDER.mkdir(exist_ok=True)
    for source, name in ((base / "model.safetensors", BASE), (bad / ADAPTER, ADAPTER)):
        halves = {key: weight.astype(np.float16) for key, weight in load_file(source).items()}
        save_file(halves, FOLDER / name, {"format": "pt"})
    config = json.loads((bad / ADAPTER_CONFIG).read_text())
    kept = {name: config[name] for name in CONFIG} | {"base_model_name_or_path": BASE}
    (FOLDER / ADAPTER_CONFIG).write_text(json.dumps(kept, indent=1) + "\n")
    digests = {name: _digest(FOLDER / name) for name in (BASE, ADAPTER, ADAPTER_CONFIG)}
    (FOLDER / DIGESTS).write_text(json.dumps(digests, indent=1) + "\n")


def copy_base(directory: Path, folder: Path = FOLDER) -> None:
    """Write the base model's weights to a directory, in float32. Raises `DigestMismatch`."""
    weights = {name: weight.astype(np.float32) for name, weight in load_file(_checked(folder, BASE)).items()}
    save_file(weights, directory / "model.safetensors", {"format": "pt"})


def copy_bad_policy(directory: Path) -> None:
    """Write the bad policy's files to a directory. Raises `DigestMismatch`."""
    for name in (ADAPTER, ADAPTER_CONFIG):
        shutil.copyfile(_checked(FOLDER, name), directory / name)


def _checked(folder: Path, name: str) -> Path:
    file = folder / name
    if json.loads((folder / DIGESTS).read_text())[name] != _digest(file):
        raise DigestMismatch(f"{file} is not the file that was shipped: `make demo-base` makes it again")
    return file


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
