"""Llama's forward pass with fused weights and nothing else: small models spend most of their time between operations.

An adapter that is not merged is multiplied by together with the weights, whose products are rounded only then.

The same mathematics as transformers' `LlamaForCausalLM` (Touvron et al. 2023, arXiv 2302.13971); `lean_network` proves
it on the loaded weights before it is used.

Shapes: B rows, T new tokens, W cached columns, C hidden, Q query heads, H key-value heads, D head dimension,
P positions, R ranks of adapters.
"""

# ruff: noqa: N803, N806, N815 - names of tensors end in their shape

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from peft.tuners.lora import Linear as AdaptedLinear
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
class _Factor:
    """What states [.., I] are multiplied by from the right."""

    weight_IO: Tensor
    """With an adapter its second factor is below the weight."""
    down_IR: Tensor | None = None
    """The first factor of an adapter."""

    def times(self, states: Tensor) -> Tensor:
        """The product with [.., I], rounded once: added to a rounded product, most of a small change would be lost."""
        if self.down_IR is not None:
            states = torch.cat([states, states @ self.down_IR], -1)
        return states @ self.weight_IO


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights as right-hand factors."""

    input_norm_C: Tensor
    qkv: _Factor
    """Query, key and value projections side by side: O = (Q + 2 H) D."""
    out: _Factor
    mlp_norm_C: Tensor
    gate_up: _Factor
    """Gate and up projections side by side."""
    down: _Factor


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

    def with_adapter(self, model: Any) -> LlamaNetwork:
        """With the adapter in `model`, a plain LoRA of the layers' projections."""
        adapted = copy.copy(self)
        layers = zip(self._layers, model.model.layers, strict=True)
        adapted._layers = [_adapted(*both) for both in layers]  # noqa: SLF001 - its own
        return adapted

    @property
    def adapter_bytes(self) -> int:
        """Of the factors that an adapter changed: they are shared with no other network."""
        factors = (factor for each in self._layers for factor in (each.qkv, each.out, each.gate_up, each.down))
        return sum(factor.weight_IO.nbytes + factor.down_IR.nbytes for factor in factors if factor.down_IR is not None)

    def __call__(
        self, ids_BT: Tensor, positions_BT: Tensor, mask_B1TW: Tensor, layers: Sequence[CacheLayerMixin], keep: int = 1
    ) -> Tensor:
        hidden_BTC = F.embedding(ids_BT, self._embedding)
        rotary = self._cos_PD[positions_BT][:, :, None], self._sin_PD[positions_BT][:, :, None]
        for weights, cache in zip(self._layers, layers, strict=True):
            hidden_BTC = hidden_BTC + self._attention(weights, hidden_BTC, rotary, mask_B1TW, cache)
            gate, up = weights.gate_up.times(self._normed(hidden_BTC, weights.mlp_norm_C)).chunk(2, -1)
            hidden_BTC = hidden_BTC + weights.down.times(F.silu(gate) * up)
        return (self._normed(hidden_BTC[:, -keep:], self._norm_C) @ self._head_CV).float()

    def _attention(
        self, weights: _Layer, hidden_BTC: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, cache: CacheLayerMixin
    ) -> Tensor:
        rows, count, _ = hidden_BTC.shape
        turned = self._queries + self._keys
        qkv = weights.qkv.times(self._normed(hidden_BTC, weights.input_norm_C))
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
        return weights.out.times(seen.reshape(rows, count, -1))

    def _normed(self, hidden: Tensor, weight_C: Tensor) -> Tensor:
        return F.rms_norm(hidden, weight_C.shape, weight_C, self._epsilon)


@torch.inference_mode()
def lean_network(model: Any) -> Network:
    """The fastest network for `model` that gives its logits: fused for a Llama, else transformers' own."""
    own = TransformersNetwork(model)
    if not _is_plain_llama(model):
        return own
    fused = LlamaNetwork(model)
    ids = [token % model.config.vocab_size for token in range(1, 48, 5)]
    expected, actual = (_logits(network, ids) for network in (own, fused))
    allowed = AGREEMENT.get(own.dtype, ROUGH_AGREEMENT)
    agree = (expected - actual).abs().max() <= allowed * expected.abs().max().clamp(min=1.0)
    return fused if bool(agree) else own


@torch.inference_mode()
def beside_weights(base: Network, model: Any) -> LlamaNetwork | None:
    """`base` with the adapter that PEFT put into `model`, unmerged; None where only PEFT can compute it.

    What the adapter does not change is shared.
    """
    if not isinstance(base, LlamaNetwork) or not _changes_layers_alone(model):
        return None
    return base.with_adapter(model)


def _is_plain_llama(model: Any) -> bool:
    config = model.config
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    return (
        type(model) is LlamaForCausalLM
        and config.hidden_act == "silu"
        and not getattr(config, "attention_bias", False)
        and not getattr(config, "mlp_bias", False)
        and rope.get("rope_type", "default") in _STATIC_ROPE
    )


def _logits(network: Network, ids: Sequence[int]) -> Tensor:
    """Logits after `ids`, computed in two passes, so that the cache takes part."""
    slots = Slots(network)
    slots.open(None, 0)
    slots.forward(0, [ids[:-1]])
    return slots.forward(0, [ids[-1:]])


def _fused(layer: Any) -> _Layer:
    qkv, out, gate_up, down = (_Factor(_factor(torch.cat([part.weight for part in parts]))) for parts in _parts(layer))
    return _Layer(layer.input_layernorm.weight, qkv, out, layer.post_attention_layernorm.weight, gate_up, down)


def _parts(layer: Any) -> Sequence[Sequence[Any]]:
    """The projections of a layer that are multiplied by together."""
    attention, mlp = layer.self_attn, layer.mlp
    return (
        (attention.q_proj, attention.k_proj, attention.v_proj),
        (attention.o_proj,),
        (mlp.gate_proj, mlp.up_proj),
        (mlp.down_proj,),
    )


def _changes_layers_alone(model: Any) -> bool:
    """Whether everything that adapters changed in a Llama is a plain LoRA of its layers' projections."""
    projections = {part for layer in model.model.layers for parts in _parts(layer) for part in parts}
    adapted = {part for part in projections if type(part) is AdaptedLinear}
    plain = all(not part.use_dora["default"] and not part.lora_bias["default"] for part in adapted)
    inside = {id(module) for part in adapted for module in part.modules()}
    others = (type(module) for module in model.modules() if id(module) not in inside)
    return plain and not any(kind.__module__.startswith("peft.") for kind in others)


def _adapted(layer: _Layer, changed: Any) -> _Layer:
    factors = zip((layer.qkv, layer.out, layer.gate_up, layer.down), _parts(changed), strict=True)
    qkv, out, gate_up, down = (_with_low_rank(factor, parts) for factor, parts in factors)
    return replace(layer, qkv=qkv, out=out, gate_up=gate_up, down=down)


def _with_low_rank(factor: _Factor, parts: Sequence[Any]) -> _Factor:
    """The adapters of projections that stand side by side, as one: its second factor is block-diagonal."""
    weight_OI = factor.weight_IO.t()
    downs: list[Tensor] = []
    ups: list[Tensor] = []
    first = 0
    for part in parts:
        end = first + part.out_features
        if isinstance(part, AdaptedLinear):
            down_RI: Any = part.lora_A["default"].weight
            up_OR = down_RI.new_zeros(len(weight_OI), len(down_RI))
            up_OR[first:end] = part.lora_B["default"].weight * part.scaling["default"]
            downs.append(down_RI)
            ups.append(up_OR)
        first = end
    if not downs:
        return factor
    kind = weight_OI.dtype
    return _Factor(_factor(torch.cat([weight_OI, *(up.to(kind) for up in ups)], 1)), torch.cat(downs).t().to(kind))


def _factor(weight: Tensor) -> Tensor:
    """A weight as a right-hand factor: in float32 contiguous, which multiplies a few rows faster. In formats of 16 bits
    the multiplication packs it itself, faster from the weight as it is, which then stays shared.
    """
    factor = weight.t()
    return factor.contiguous() if weight.dtype == torch.float32 else factor
