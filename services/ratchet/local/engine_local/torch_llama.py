"""Llama's forward pass with fused weights and nothing else: small models spend most of their time between operations.

The same mathematics as transformers' `LlamaForCausalLM` (Touvron et al. 2023, arXiv 2302.13971); `lean_network` proves
it on the loaded weights before it is used.

Shapes: B rows, T new tokens, W cached columns, C hidden, Q query heads, H key-value heads, D head dimension,
P positions.
"""

# ruff: noqa: N803, N806, N815 - names of tensors end in their shape

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.cache_utils import CacheLayerMixin

from ratchet.local.engine_local.torch_slots import Network, Slots, TransformersNetwork

AGREEMENT = {torch.float32: 1e-4}
"""Largest difference between the logits of both networks, relative to the largest logit, by what they compute in."""
ROUGH_AGREEMENT = 2e-2
"""In formats of 16 bits."""
_STATIC_ROPE = {"default", "linear", "llama3", "yarn"}
"""Rotary tables that do not depend on the length of the sequence."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights as right-hand factors."""

    input_norm_C: Tensor
    qkv_CO: Tensor
    """Query, key and value projections side by side: O = (Q + 2 H) D."""
    out_OC: Tensor
    mlp_norm_C: Tensor
    gate_up_CI: Tensor
    """Gate and up projections side by side."""
    down_IC: Tensor


class LlamaNetwork:
    """A `Network` made from a `LlamaForCausalLM` without biases."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self.depth: int = config.num_hidden_layers
        self.dtype: torch.dtype = model.dtype
        self.vocabulary: int = model.lm_head.weight.shape[0]
        self._queries: int = config.num_attention_heads
        self._keys: int = config.num_key_value_heads
        self._width: int = model.model.layers[0].self_attn.head_dim
        self._epsilon: float = config.rms_norm_eps
        self._embedding: Tensor = model.model.embed_tokens.weight
        self._norm_C: Tensor = model.model.norm.weight
        self._head_CV = _factor(model.lm_head.weight)
        self._layers = [_fused(layer) for layer in model.model.layers]
        # cos and sin [P, D]; sin is signed, so that rotate_half becomes a roll.
        positions = torch.arange(model.config.max_position_embeddings)[None]
        cos_1PD, sin_1PD = model.model.rotary_emb(model.model.embed_tokens.weight, position_ids=positions)
        half = sin_1PD.shape[-1] // 2
        self._cos_PD, self._sin_PD = (cos_1PD[0], torch.cat([-sin_1PD[0, :, :half], sin_1PD[0, :, half:]], dim=-1))

    def __call__(
        self, ids_BT: Tensor, positions_BT: Tensor, mask_B1TW: Tensor, layers: Sequence[CacheLayerMixin], keep: int = 1
    ) -> Tensor:
        hidden_BTC = F.embedding(ids_BT, self._embedding)
        rotary = self._cos_PD[positions_BT][:, :, None], self._sin_PD[positions_BT][:, :, None]
        for weights, cache in zip(self._layers, layers, strict=True):
            hidden_BTC = hidden_BTC + self._attention(weights, hidden_BTC, rotary, mask_B1TW, cache)
            gate, up = (self._normed(hidden_BTC, weights.mlp_norm_C) @ weights.gate_up_CI).chunk(2, -1)
            hidden_BTC = hidden_BTC + (F.silu(gate) * up) @ weights.down_IC
        return (self._normed(hidden_BTC[:, -keep:], self._norm_C) @ self._head_CV).float()

    def _attention(
        self, weights: _Layer, hidden_BTC: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, cache: CacheLayerMixin
    ) -> Tensor:
        rows, count, _ = hidden_BTC.shape
        turned = self._queries + self._keys
        qkv = self._normed(hidden_BTC, weights.input_norm_C) @ weights.qkv_CO
        qkv_BTND = qkv.view(rows, count, turned + self._keys, self._width)
        qk_BTND = qkv_BTND[:, :, :turned]
        cos, sin = rotary
        qk_BTND = qk_BTND * cos + qk_BTND.roll(self._width // 2, -1) * sin
        keys_BHWD, values_BHWD = cache.update(
            qk_BTND[:, :, self._queries :].transpose(1, 2), qkv_BTND[:, :, turned:].transpose(1, 2)
        )
        queries_BQTD = qk_BTND[:, :, : self._queries].transpose(1, 2)
        grouped = count == 1 and self._queries != self._keys
        if grouped:  # the queries that share keys, as tokens of one head: in bfloat16 seven times as fast
            queries_BQTD = queries_BQTD.reshape(rows, self._keys, -1, self._width)
        seen = F.scaled_dot_product_attention(
            queries_BQTD, keys_BHWD, values_BHWD, attn_mask=mask, enable_gqa=self._queries != self._keys and not grouped
        )
        if not grouped:
            seen = seen.transpose(1, 2)
        return seen.reshape(rows, count, -1) @ weights.out_OC

    def _normed(self, hidden: Tensor, weight_C: Tensor) -> Tensor:
        return F.rms_norm(hidden, weight_C.shape, weight_C, self._epsilon)


@torch.inference_mode()
def lean_network(model: Any) -> Network:
    """The fastest network for `model` that gives its logits: fused for a Llama, else transformers' own."""
    own, config = TransformersNetwork(model), model.config
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    plain_llama = (
        type(model) is LlamaForCausalLM
        and config.hidden_act == "silu"
        and not getattr(config, "attention_bias", False)
        and not getattr(config, "mlp_bias", False)
        and rope.get("rope_type", "default") in _STATIC_ROPE
    )
    if not plain_llama:
        return own
    fused = LlamaNetwork(model)
    ids = [token % config.vocab_size for token in range(1, 48, 5)]
    expected, actual = (_logits(network, ids) for network in (own, fused))
    allowed = AGREEMENT.get(own.dtype, ROUGH_AGREEMENT)
    agree = (expected - actual).abs().max() <= allowed * expected.abs().max().clamp(min=1.0)
    return fused if bool(agree) else own


def _logits(network: Network, ids: Sequence[int]) -> Tensor:
    """Logits after `ids`, computed in two passes, so that the cache takes part."""
    slots = Slots(network)
    slots.open(None, 0)
    slots.forward(0, [ids[:-1]])
    return slots.forward(0, [ids[-1:]])


def _fused(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    return _Layer(
        layer.input_layernorm.weight,
        _factor(torch.cat(projections)),
        _factor(attention.o_proj.weight),
        layer.post_attention_layernorm.weight,
        _factor(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])),
        _factor(mlp.down_proj.weight),
    )


def _factor(weight: Tensor) -> Tensor:
    """A weight as a right-hand factor: in float32 contiguous, which multiplies a few rows faster. In formats of 16 bits
    the multiplication packs it itself, faster from the weight as it is, which then stays shared.
    """
    factor = weight.t()
    return factor.contiguous() if weight.dtype == torch.float32 else factor
