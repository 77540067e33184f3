"""What the training process writes about its policy, beside the weights: effective configuration and tokenizer."""

from __future__ import annotations

import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.contract.policy_manifest import ADAPTER
from ratchet.stores.policies import TOKENIZER_FILES
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Outcome
from ratchet.trainer_worker.training.policy import TrainedPolicy

CONFIG = "config.json"
PACKAGES = ("ratchet-rl", "torch", "transformers", "tokenizers", "peft", "trl", "accelerate")
"""Whose versions decide what a training computes."""


def write_documents(directory: Path, spec: JobSpec, policy: TrainedPolicy, outcome: Outcome) -> None:
    """Fill `directory`, which is made."""
    directory.mkdir()
    body = msgspec.json.encode(effective_configuration(spec, policy, outcome))
    (directory / CONFIG).write_bytes(msgspec.json.format(body, indent=1))
    if policy.kind == ADAPTER:
        _write_tokenizer(directory, Path(spec.base), policy)


def effective_configuration(spec: JobSpec, policy: TrainedPolicy, outcome: Outcome) -> JsonObject:
    """Everything that a second run needs to be the same: what was asked for, and what that came to."""
    return {
        "algorithm": spec.config.algorithm,
        "role": spec.role,
        "training_job_id": spec.training_job_id,
        "attempt": spec.attempt,
        "base_model": spec.base_name,
        "dataset": msgspec.to_builtins(spec.config.dataset),
        "holdout_size": spec.holdout,
        "hyperparameters": outcome.effective,
        "requested_hyperparameters": msgspec.to_builtins(spec.config.hyperparameters),
        "threads": spec.threads,
        "device": str(policy.device),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
    }


def _write_tokenizer(directory: Path, base: Path, policy: TrainedPolicy) -> None:
    """The base's own files, byte for byte, where they lie in a directory."""
    files = [base / name for name in TOKENIZER_FILES if (base / name).is_file()]
    for path in files:
        shutil.copyfile(path, directory / path.name)
    if not files:
        policy.tokenizer.save_pretrained(str(directory))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
