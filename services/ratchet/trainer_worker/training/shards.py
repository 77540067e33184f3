"""Weights that the ranks of a training hold in shares: those of the base's layers, which do not learn.

A layer is put together on every rank while it computes, forwards and backwards, and its whole weights go away again
(`torch.distributed.fsdp.fully_shard`, FSDP2). What learns, and what lies outside of the layers, each rank has whole. So
gradients, checkpoints and the policy's files are those of ranks that share nothing. The price: all ranks must run the
layers equally often and in the same order, or they wait for each other for ever. See `Scorer.passes`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from ratchet.core.errors import Rejected
from ratchet.trainer_worker.training.ranks import Ranks

M_MMAP_THRESHOLD, MAPPED_BYTES = -3, 1 << 20
"""An option of glibc's allocator, and from how many bytes on a block is mapped on its own."""
GATHERED_LAYERS = 3
"""Layers whose memory is taken whole at a time: one that computes, and the next one, as it comes and put together."""


def base_of(model: Any) -> Any:
    """A model of transformers without the wrapper of its adapter."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def layers_of(trunk: nn.Module) -> list[nn.Module]:
    """The layers of a decoder, in order."""
    return [one for one in trunk.modules() if isinstance(one, GradientCheckpointingLayer)]


def rank_mesh(ranks: Ranks, device: torch.device) -> DeviceMesh:
    """The ranks of a training as torch names those that share weights. They make it together."""
    return init_device_mesh(device.type, (ranks.count,))


def return_memory() -> None:
    """Have large blocks of this process' memory go back to the system at once when they are freed.

    Layers that come and go leave gaps between what stays, which glibc otherwise keeps: several times the weights.
    """
    set_option: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:  # other C libraries have none
        set_option(M_MMAP_THRESHOLD, MAPPED_BYTES)


def share_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Leave this rank its share of the frozen weights of every layer of `model`, on its device.

    Layers are moved and cut one after the other: the device never holds more than all shares and one whole layer.
    Raises `Rejected` for a model without layers that transformers knows.
    """
    trunk: nn.Module = base_of(model).get_decoder()
    layers = layers_of(trunk)
    if not layers:
        raise Rejected(f"the weights of a {type(trunk).__name__} cannot be shared by ranks: its layers are not known")
    whole = {parameter for parameter in model.parameters() if parameter.requires_grad}
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=whole)
    # As their root it only puts the next layer together while one computes: what else it has stays whole.
    fully_shard(trunk, mesh=mesh, ignored_params={*trunk.parameters()})


def shares_layers(trunk: nn.Module) -> bool:
    """Whether this rank has only a share of the layers of a decoder."""
    return isinstance(trunk, FSDPModule)


def held_bytes(parameters: Iterable[nn.Parameter]) -> int:
    """Memory of weights, of those that are shared the part of this rank."""
    parts = (one.to_local() if isinstance(one, DTensor) else one for one in parameters)
    return sum(part.numel() * part.element_size() for part in parts)


def gathered_bytes(trunk: nn.Module) -> int:
    """Memory of the layers that are whole while a decoder with shared layers computes; 0 without any."""
    if not shares_layers(trunk):
        return 0
    largest = max(sum(one.numel() * one.element_size() for one in layer.parameters()) for layer in layers_of(trunk))
    return GATHERED_LAYERS * largest
