"""The layers of a causal model as training runs them: without the base's dropout, with some layers recomputed in the
backward pass, and with a common beginning of all rows run once.

Shapes: B rows, S tokens of the beginning, T further tokens, H hidden; keys and values are [rows, heads, tokens, width].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_layers import GradientCheckpointingLayer

SAMPLED_TOKENS = 8, 32
"""Lengths of the rows whose difference tells how much memory a token takes."""


def attends_to_all(config: Any) -> bool:
    """Whether every layer of a model looks at all earlier tokens, so that keys and values of a beginning are all that
    later tokens need. `config`: of its text model, from transformers.
    """
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    return not getattr(config, "sliding_window", None) and all(kind == "full_attention" for kind in kinds)


def base_of(model: Any) -> Any:
    """A model of transformers without the wrapper of its adapter."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


class Backbone:
    """Everything of `base` (a causal model without wrappers) below its head."""

    def __init__(self, base: Any, *, lora_dropout: bool) -> None:
        """`lora_dropout`: whether an adapter's dropout is active where gradients are asked for."""
        self._backbone = base.get_decoder()
        self._depth: int = base.config.get_text_config().num_hidden_layers
        self._vocabulary: int = base.get_input_embeddings().weight.shape[0]
        self._layers = [layer for layer in self._backbone.modules() if isinstance(layer, GradientCheckpointingLayer)]
        self._dropouts = (
            [layer for layer in self._backbone.modules() if hasattr(layer, "lora_dropout")] if lora_dropout else []
        )

    def hidden(self, ids_BT: Tensor, recomputed: float = 0.0) -> Tensor:
        """Hidden states [B, T, H]. `recomputed`: share of the layers whose activations are not kept.

        Padding stands on the right, where causal attention from real tokens never looks: no mask is needed.
        """
        with self._mode(), self._recomputing(recomputed):
            return self._backbone(input_ids=ids_BT, use_cache=False).last_hidden_state

    def hidden_behind(self, ids_S: Tensor, ids_BT: Tensor, recomputed: float = 0.0) -> Tensor:
        """Hidden states [B, T, H] of `ids_BT`, each row behind the same beginning, which is run once."""
        with self._mode(), self._recomputing(recomputed):
            first = [_Recorded() for _ in range(self._depth)]
            self._backbone(input_ids=ids_S[None], past_key_values=Cache(layers=[*first]), use_cache=True)
            cache = Cache(layers=[_Behind(layer, len(ids_BT)) for layer in first])
            positions_1T = torch.arange(len(ids_S), len(ids_S) + ids_BT.shape[1], device=ids_BT.device)[None]
            output = self._backbone(input_ids=ids_BT, past_key_values=cache, position_ids=positions_1T, use_cache=True)
            return output.last_hidden_state

    def token_bytes(self) -> float:
        """Memory that the backward pass needs for each token of a row while no layer is recomputed: measured.

        Weights are kept too; they are the same for every length.
        """
        short, long = SAMPLED_TOKENS
        return (self._kept_bytes(long) - self._kept_bytes(short)) / (long - short)

    def _kept_bytes(self, tokens: int) -> int:
        device = next(self._backbone.parameters()).device
        ids_1T = torch.arange(tokens, device=device)[None] % self._vocabulary
        kept: dict[int, UntypedStorage] = {}
        nothing = torch.empty(0)

        def note(tensor: Tensor) -> Tensor:
            # Another is kept in its place: an output that its own node holds would never be freed, nor the model.
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - its identity while it is held
            return nothing

        # A training that is resumed measures later than one that begins, and has to drop out the same.
        undrawn = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with undrawn, torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
            self.hidden(ids_1T)
        return sum(storage.nbytes() for storage in kept.values())

    @contextmanager
    def _mode(self) -> Iterator[None]:
        """The base never drops anything out: what is trained is what was scored. An adapter's dropout may be active.

        Libraries set the mode as they like between passes, so every pass sets its own.
        """
        self._backbone.eval()
        if torch.is_grad_enabled():
            for layer in self._dropouts:
                layer.training = True  # some variants of LoRA ask the layer
                layer.lora_dropout.train()
        yield

    @contextmanager
    def _recomputing(self, share: float) -> Iterator[None]:
        """Let a share of the layers keep only their input, evenly spread."""
        count = math.ceil(share * len(self._layers)) if torch.is_grad_enabled() else 0
        chosen: list[nn.Module] = [self._layers[index * len(self._layers) // count] for index in range(count)]
        for layer in chosen:
            # On the instance: hooks of the module stay outside, and the class serves other models.
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        try:
            yield
        finally:
            for layer in chosen:
                del layer.forward


class _Recorded(CacheLayerMixin):
    """Keys and values of the beginning. Writing them again, as a layer that is recomputed does, changes nothing."""

    keys: Any  # a tensor wherever it is read; the base would have None until then
    values: Any

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Keep the states."""
        self.keys, self.values, self.is_initialized = key_states, value_states, True

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Keep the states of the first time."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """There is nothing in front."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """There is nothing in front."""
        return 0

    def get_max_length(self) -> int:
        """No bound."""
        return -1


class _Behind(CacheLayerMixin):
    """Puts the keys and values of the beginning before those of every row, and keeps nothing."""

    keys: Any  # a tensor wherever it is read; the base would have None until then
    values: Any

    def __init__(self, beginning: _Recorded, rows: int) -> None:
        super().__init__()
        self.keys, self.values = (kept.expand(rows, -1, -1, -1) for kept in (beginning.keys, beginning.values))
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Made initialized."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """All keys and values, the beginning's first."""
        return torch.cat([self.keys, key_states], dim=-2), torch.cat([self.values, value_states], dim=-2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns in all, from the first on."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens of the beginning."""
        return self.keys.shape[-2]

    def get_max_length(self) -> int:
        """No bound."""
        return -1
