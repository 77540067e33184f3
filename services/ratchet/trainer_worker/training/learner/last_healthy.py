"""Weights that learn, in files: those of a checkpoint, with what a resumed training needs to go on bit for bit; and the
newest that were found healthy, in memory where they are few.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

MEMORY_BYTES = 1 << 30
"""More weights than that are kept in a file."""
FILE_STEPS = 50
"""Train steps between two writes of such a file; the first weights that learnt something are written at once."""
FILE, WEIGHTS, STATE = "healthy.safetensors", "trainable.safetensors", "state.pt"


def write_state(directory: Path, learns: Mapping[str, nn.Parameter], **state: Any) -> None:
    """Put weights, random state and `state` (of any type that torch stores) into a checkpoint."""
    save_file({name: parameter.detach().contiguous() for name, parameter in learns.items()}, directory / WEIGHTS)
    cuda_rng = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    torch.save({**state, "rng": torch.get_rng_state(), "cuda_rng": cuda_rng}, directory / STATE)


def read_state(directory: Path, learns: Mapping[str, nn.Parameter]) -> dict[str, Any]:
    """Take weights and random state of a checkpoint; returns the rest of its state."""
    weights = load_file(directory / WEIGHTS)
    with torch.no_grad():
        for name, parameter in learns.items():
            parameter.copy_(weights[name])
    state: dict[str, Any] = torch.load(directory / STATE, weights_only=True)
    torch.set_rng_state(state["rng"])
    if state["cuda_rng"]:
        torch.cuda.set_rng_state_all(state["cuda_rng"])
    return state


class LastHealthy:
    """Copies of the parameters that learn. Use it as a context: its file goes away with it."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], memory_bytes: int = MEMORY_BYTES) -> None:
        self._parameters = dict(named)
        size = sum(parameter.numel() * parameter.element_size() for parameter in self._parameters.values())
        self.in_memory = size <= memory_bytes
        self._copies: dict[str, Tensor] = {}
        self._folder = None if self.in_memory else tempfile.TemporaryDirectory(prefix="healthy-")
        self.step: int | None = None
        """Train steps that the kept weights have behind them; None before any are kept."""

    def __enter__(self) -> LastHealthy:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def keep(self, step: int) -> None:
        """The present weights, after `step` train steps, are healthy. Before the first one nothing was learnt."""
        if step < 1 or (self._folder is not None and self.step is not None and step - self.step < FILE_STEPS):
            return
        if self._folder is None:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    if name in self._copies:
                        self._copies[name].copy_(parameter)
                    else:
                        self._copies[name] = parameter.detach().to("cpu", copy=True)
        else:
            tensors = {name: parameter.detach().contiguous() for name, parameter in self._parameters.items()}
            save_file(tensors, Path(self._folder.name) / FILE)
        self.step = step

    def restore(self) -> int | None:
        """Put the kept weights back; returns their number of train steps, None when none were kept."""
        if self.step is None:
            return None
        kept = self._copies if self._folder is None else load_file(Path(self._folder.name) / FILE)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(kept[name])
        return self.step

    def save(self, directory: Path) -> None:
        """Put the copies beside a checkpoint's own weights. A file is too large to be written twice: a training that
        is resumed keeps its next healthy weights.
        """
        if self.step is not None and self.in_memory:
            save_file(self._copies, directory / FILE, {"step": str(self.step)})

    def load(self, directory: Path) -> None:
        """Take the copies of a checkpoint, if it has any."""
        if not self.in_memory or not (directory / FILE).is_file():
            return
        with safe_open(directory / FILE, framework="pt") as file:
            self._copies = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            self.step = int(file.metadata()["step"])
