"""An adapter that was made elsewhere, checked as files before anything loads it: a directory as PEFT writes one.

Nothing of it is executed: the configuration is JSON of which only known members are kept, and the weights are
safetensors, of which the header is read and every value must be finite. No torch.
"""

from __future__ import annotations

import json
import re
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ratchet.bus.message import JsonObject, decode
from ratchet.core.contract.policy_manifest import ADAPTER, PolicyManifest
from ratchet.core.errors import Rejected
from ratchet.core.rules.training_options import MOST_RANK
from ratchet.core.stores.policies import BlobStore, Policy, publish_policy, upload_files

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CONFIG_BYTES, HEADER_BYTES, WEIGHTS_BYTES = 1 << 20, 16 << 20, 16 << 30
"""Most bytes of each. An adapter of rank 256 on a model of 70 B parameters has 13 GB."""
PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})
"""Endings of files that run code when they are loaded."""
KEPT = ("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "target_modules", "bias", "use_rslora", "use_dora")
"""Members of the configuration that decide what the weights do."""
FORBIDDEN = ("auto_mapping", "modules_to_save", "rank_pattern", "alpha_pattern", "megatron_config", "layer_replication")
"""Members that load other code, or that engines do not follow."""
TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
LAYER = re.compile(r"\.layers\.(\d+)\.")
READS_HIDDEN = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})
"""Modules whose input is as wide as the model's hidden states, in the models that name them so."""
TYPES: Mapping[str, tuple[str, int]] = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
"""How to read each number format as integers, and the bits that are all set in what is no finite number."""
CHUNK = 1 << 24


class Tensor(msgspec.Struct):
    """A tensor in the header of a safetensors file."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that passed every check of its own files."""

    directory: Path
    config: JsonObject
    named_base: str | None
    """What its maker called the base."""
    tensors: Mapping[str, Tensor]
    written_at: datetime


def read_adapter(directory: Path) -> Adapter:
    """Check the files of `directory`. Raises `Rejected`, in one line, for whatever is no whole and harmless adapter."""
    try:
        present = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        raise Rejected(f"{directory} is not a directory that can be read") from error
    if pickles := [name for name in present if Path(name).suffix.lower() in PICKLES]:
        raise Rejected(f"{pickles[0]} is a pickle, which runs code when it is loaded: save the adapter as safetensors")
    config = _read_config(_plain_file(directory / CONFIG, CONFIG_BYTES))
    weights = _plain_file(directory / WEIGHTS, WEIGHTS_BYTES)
    tensors = _read_tensors(weights)
    _check_tensors(tensors, config)
    _check_values(weights, tensors)
    named = config.get("base_model_name_or_path")
    written_at = datetime.fromtimestamp(int(weights.stat().st_mtime), UTC)
    return Adapter(directory, config, named if isinstance(named, str) else None, tensors, written_at)


def check_base(adapter: Adapter, base: JsonObject) -> None:
    """Raise `Rejected` when the adapter does not fit a base whose `config.json` is `base`, as far as shapes tell."""
    hidden, layers = base.get("hidden_size"), base.get("num_hidden_layers")
    for name, tensor in adapter.tensors.items():
        layer = LAYER.search(name)
        if layer is not None and isinstance(layers, int) and int(layer[1]) >= layers:
            raise Rejected(f"the adapter was made for another base, of more than {layers} layers: {name}")
        match = TENSOR.fullmatch(name)
        if match is None or match["side"] != "A" or match["module"].rpartition(".")[2] not in READS_HIDDEN:
            continue
        if isinstance(hidden, int) and tensor.shape[1] != hidden:
            raise Rejected(f"the adapter was made for another base, {tensor.shape[1]} wide and not {hidden}: {name}")


def store_adapter(objects: BlobStore, adapter: Adapter, manifest: PolicyManifest, work: Path) -> Policy:
    """Store the adapter as a policy: `manifest` without its files. `work`: an empty directory.

    The configuration is written anew, with the base as Ratchet knows it; equal adapters make equal policies.
    """
    config = {name: adapter.config[name] for name in KEPT if name in adapter.config}
    modules = config.get("target_modules")
    config["target_modules"] = sorted(modules) if isinstance(modules, list) else modules
    config |= {"base_model_name_or_path": manifest.base_model, "inference_mode": True}
    (work / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))
    (work / WEIGHTS).symlink_to((adapter.directory / WEIGHTS).resolve())
    return publish_policy(objects, msgspec.structs.replace(manifest, kind=ADAPTER, files=upload_files(objects, work)))


def _plain_file(path: Path, most: int) -> Path:
    try:
        status = path.lstat()
    except OSError as error:
        raise Rejected(f"{path.parent} has no {path.name}: it is no adapter as PEFT saves one") from error
    if not stat.S_ISREG(status.st_mode):
        raise Rejected(f"{path.name} is no plain file")
    if status.st_size > most:
        raise Rejected(f"{path.name} has {status.st_size} bytes; {most} are the most")
    return path


def _read_config(path: Path) -> JsonObject:
    try:
        config = decode(path.read_bytes(), dict[str, Any])
    except msgspec.DecodeError as error:
        raise Rejected(f"{path.name} cannot be read: {error}") from error
    if config.get("peft_type") != "LORA" or config.get("task_type") not in (None, "CAUSAL_LM"):
        raise Rejected(f"{path.name} is not that of a LoRA adapter for a causal language model")
    if unfit := [name for name in FORBIDDEN if config.get(name)]:
        raise Rejected(f"{path.name} has {unfit[0]}, which an imported adapter must not have")
    rank, modules = config.get("r"), config.get("target_modules")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MOST_RANK:
        raise Rejected(f"{path.name} has rank r {rank!r}; it must be 1 to {MOST_RANK}")
    names: Sequence[object] = modules if isinstance(modules, list) else [modules]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise Rejected(f"{path.name} names no target_modules")
    return config


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The header of a safetensors file, whose tensors must fill the rest of it exactly."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
        if not 2 <= length <= min(HEADER_BYTES, size - 8):
            raise Rejected(f"{path.name} is truncated or not a safetensors file")
        header = file.read(length)
    try:
        members = decode(header, dict[str, msgspec.Raw])
        tensors = {name: decode(raw, Tensor) for name, raw in members.items() if name != "__metadata__"}
    except msgspec.DecodeError as error:
        raise Rejected(f"the header of {path.name} cannot be read: {error}") from error
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        if tensor.dtype not in TYPES:
            raise Rejected(f"{path.name} holds {name} as {tensor.dtype}; {', '.join(TYPES)} can be imported")
        width = np.dtype(TYPES[tensor.dtype][0]).itemsize
        if min(tensor.shape, default=0) < 1 or tensor.data_offsets != (end, end + width * prod(tensor.shape)):
            raise Rejected(f"{path.name} is not a complete safetensors file: {name} is not where its shape puts it")
        end = tensor.data_offsets[1]
    if not tensors or 8 + length + end != size:
        raise Rejected(f"{path.name} is truncated: it has {size} bytes, and its header names {8 + length + end}")
    return tensors


def _check_tensors(tensors: Mapping[str, Tensor], config: JsonObject) -> None:
    """Both halves of each module, of the rank that the configuration names, and no other tensor."""
    sides: dict[str, set[str]] = {}
    modules = config["target_modules"]
    for name, tensor in tensors.items():
        match = TENSOR.fullmatch(name)
        if match is None:
            magnitude = config.get("use_dora") and name.endswith(".lora_magnitude_vector")
            if not magnitude:
                raise Rejected(f"{WEIGHTS} holds {name}, which is no part of a LoRA adapter")
            continue
        ranks = tensor.shape[0] if match["side"] == "A" else tensor.shape[-1]
        if len(tensor.shape) != 2 or ranks != config["r"]:
            raise Rejected(f"{name} has shape {tensor.shape}; {CONFIG} says rank {config['r']}")
        if isinstance(modules, list) and not any(match["module"].endswith(f".{module}") for module in modules):
            raise Rejected(f"{name} belongs to no module that {CONFIG} targets: {', '.join(map(str, modules))}")
        sides.setdefault(match["module"], set()).add(match["side"])
    if not sides:
        raise Rejected(f"{WEIGHTS} holds no LoRA weights")
    if half := [module for module, both in sides.items() if both != {"A", "B"}]:
        raise Rejected(f"{half[0]} has one of its two matrices only: the adapter is half written")


def _check_values(path: Path, tensors: Mapping[str, Tensor]) -> None:
    start = path.stat().st_size - max(tensor.data_offsets[1] for tensor in tensors.values())
    for name, tensor in tensors.items():
        kind, bits = TYPES[tensor.dtype]
        begin, end = (start + offset for offset in tensor.data_offsets)
        with path.open("rb") as file:
            file.seek(begin)
            while begin < end:
                chunk = np.frombuffer(file.read(min(CHUNK, end - begin)), dtype=kind)
                if not chunk.size or (chunk & bits == bits).any():
                    raise Rejected(f"{name} holds what is no finite number")
                begin += chunk.nbytes
