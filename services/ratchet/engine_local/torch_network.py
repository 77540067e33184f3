"""A forward pass over cached sequences: what a model looks like to the running batch."""

# ruff: noqa: N803 - names of tensors end in their shape

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class Network(Protocol):
    """A causal language model. B rows, T new tokens per row, W cached columns, V vocabulary."""

    depth: int
    """Number of layers with keys and values."""
    dtype: torch.dtype
    """Of weights, activations and mask."""

    def __call__(
        self, ids_BT: Tensor, positions_BT: Tensor, mask_B1TW: Tensor, layers: Sequence[CacheLayerMixin]
    ) -> Tensor:
        """Logits [B, V] after the last of the T tokens; the mask is added to attention scores.

        Keys and values go through `layers`.
        """
        ...


class TransformersNetwork:
    """Any transformers causal model, through its own forward."""

    def __init__(self, model: Any) -> None:
        self._model = model  # transformers' model classes carry no usable types
        self.depth: int = model.config.num_hidden_layers
        self.dtype: torch.dtype = model.dtype

    def __call__(
        self, ids_BT: Tensor, positions_BT: Tensor, mask_B1TW: Tensor, layers: Sequence[CacheLayerMixin]
    ) -> Tensor:
        """See `Network`."""
        logits: Tensor = self._model(
            input_ids=ids_BT,
            attention_mask=mask_B1TW,
            position_ids=positions_BT,
            past_key_values=Cache(layers=list(layers)),
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits[:, -1].float()
