"""Forward passes over many cached sequences of different length: one slot each, behind transformers' cache interface.

A sequence joins by taking the next slot and leaves by giving its slot to the last one, so the slots in use are
always the first ones and no sequence waits for another. Nothing is shifted or padded inside a slot: row `b` holds
its tokens in columns 0 .. length_b - 1, and an explicit attention mask hides the rest.

Shapes: B rows in one forward pass, N slots, H key-value heads, T new tokens per row, W columns, D head dimension,
V vocabulary.
"""

# ruff: noqa: N803, N806 - names of tensors end in their shape

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

GROW_SLOTS, GROW_COLUMNS = 8, 64
"""Buffers grow by at least this much: every growth copies."""

KeysValues = list[tuple[Tensor, Tensor]]
"""Per layer the keys and values of one sequence, each [H, length, D]."""


class Network(Protocol):
    """A causal language model, as the slots use it."""

    depth: int
    """Number of layers with keys and values."""
    dtype: torch.dtype
    """Of weights, activations and mask."""
    vocabulary: int
    """Number of logits; the tokenizer may have fewer tokens."""

    def __call__(
        self, ids_BT: Tensor, positions_BT: Tensor, mask_B1TW: Tensor, layers: Sequence[CacheLayerMixin], keep: int = 1
    ) -> Tensor:
        """Logits [B, keep, V] after each of the last `keep` of the T tokens; the mask is added to attention scores.

        Keys and values go through `layers`.
        """
        ...


FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers that transformers' networks have and slots can serve: keys and values of every token are kept."""


class TransformersNetwork:
    """Any transformers causal model, through its own forward."""

    def __init__(self, model: Any) -> None:
        self._model = model  # transformers' model classes carry no usable types
        self._window: int | None = getattr(model.config, "sliding_window", None)
        kinds: Sequence[str] = getattr(model.config, "layer_types", None) or ()
        self._mixed = SLIDING in kinds  # such a model takes a mask for each kind of layer
        if kinds and not self._mixed:
            self._window = None
        self.depth: int = model.config.num_hidden_layers
        self.dtype: torch.dtype = model.dtype
        self.vocabulary: int = model.get_output_embeddings().weight.shape[0]

    def __call__(
        self, ids_BT: Tensor, positions_BT: Tensor, mask_B1TW: Tensor, layers: Sequence[CacheLayerMixin], keep: int = 1
    ) -> Tensor:
        mask: Tensor | dict[str, Tensor] = mask_B1TW
        if self._window is not None:
            columns_W = torch.arange(mask_B1TW.shape[-1])
            passed_B1TW = columns_W <= positions_BT[:, None, :, None] - self._window
            near_B1TW = mask_B1TW.masked_fill(passed_B1TW, -torch.inf)
            mask = {FULL: mask_B1TW, SLIDING: near_B1TW} if self._mixed else near_B1TW
        logits: Tensor = self._model(
            input_ids=ids_BT,
            attention_mask=mask,
            position_ids=positions_BT,
            past_key_values=Cache(layers=list(layers)),
            use_cache=True,
            logits_to_keep=keep,
        ).logits
        return logits[:, -keep:].float()


@dataclass(slots=True)
class Plan:
    """Where the next forward pass reads and writes: rows `first` .. `first + count - 1`, columns below `width`."""

    first: int
    count: int
    width: int
    from_row: Tensor
    """[K] for each of the K real (not padding) new tokens: its row in the pass,"""
    from_place: Tensor
    """[K] its place in that row,"""
    to_column: Tensor
    """[K] and the column it is kept in."""


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values: two buffers [N, H, W, D] that grow on demand."""

    is_sliding = False
    keys: Any  # a tensor wherever it is read; the base would have None until then
    values: Any

    def __init__(self) -> None:
        super().__init__()
        self.plan: Plan | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Begin with empty buffers for states of this shape."""
        self.keys, self.values = (
            states.new_zeros(0, states.shape[1], 0, states.shape[3]) for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Store the new tokens [B, H, T, D] as planned; returns all keys and values of the planned rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        plan = self.plan
        assert plan is not None, "a forward pass without a plan"  # noqa: S101 - a programming error
        self._reserve(plan.first + plan.count, plan.width)
        to_row = plan.from_row + plan.first
        self.keys[to_row, :, plan.to_column] = key_states[plan.from_row, :, plan.from_place]
        self.values[to_row, :, plan.to_column] = value_states[plan.from_row, :, plan.from_place]
        rows = slice(plan.first, plan.first + plan.count)
        return self.keys[rows, :, : plan.width], self.values[rows, :, : plan.width]

    def fill(self, slot: int, keys: Tensor, values: Tensor) -> None:
        """Start `slot` with known keys and values [H, length, D]."""
        if not self.is_initialized:
            self.lazy_initialization(keys[None], values[None])
        self._reserve(slot + 1, keys.shape[1])
        for buffer, states in ((self.keys, keys), (self.values, values)):
            buffer[slot, :, : states.shape[1]] = states

    def copy(self, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """A copy of what `slot` holds, each [H, length, D]."""
        return self.keys[slot, :, :length].clone(), self.values[slot, :, :length].clone()

    def fork(self, source: int, target: int, length: int) -> None:
        """Copy `source` to `target`, which may be new."""
        self._reserve(target + 1, length)
        self.move(source, target, length)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy `source` over `target`."""
        for buffer in (self.keys, self.values):
            buffer[target, :, :length] = buffer[source, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns and offset for masks made by transformers; ours are explicit."""
        return (self.plan.width if self.plan else query_length), 0

    def get_seq_length(self) -> int:
        """Columns in use before the planned tokens; positions are explicit."""
        return self.plan.width - 1 if self.plan else 0

    def get_max_length(self) -> int:
        """No bound of its own."""
        return -1

    def _reserve(self, slots: int, columns: int) -> None:
        """Make room; what is stored stays."""
        have_slots, _, have_columns, _ = self.keys.shape
        if slots <= have_slots and columns <= have_columns:
            return
        if slots > have_slots:
            slots = max(slots, have_slots + GROW_SLOTS, have_slots * 2)
        if columns > have_columns:
            columns += GROW_COLUMNS
        slots, columns = max(slots, have_slots), max(columns, have_columns)
        # Both or none: a buffer that cannot be made leaves both as they were.
        self.keys, self.values = (_grown(buffer, slots, columns) for buffer in (self.keys, self.values))


def _grown(buffer: Tensor, slots: int, columns: int) -> Tensor:
    have_slots, heads, have_columns, size = buffer.shape
    grown = buffer.new_zeros(slots, heads, columns, size)
    grown[:have_slots, :, :have_columns] = buffer
    return grown


class Slots:
    """The slots of all layers, and forward passes over them."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._layers = [SlotLayer() for _ in range(network.depth)]
        self.lengths: list[int] = []
        """Tokens held by each slot in use."""

    def open(self, start: KeysValues | None, length: int) -> int:
        """Take the next slot, holding the first `length` tokens of `start`; returns its number."""
        slot = len(self.lengths)
        if start is not None and length:
            for layer, (keys, values) in zip(self._layers, start, strict=True):
                layer.fill(slot, keys[:, :length], values[:, :length])
        self.lengths.append(length if start is not None else 0)
        return slot

    def fork(self, source: int) -> int:
        """Take the next slot, holding what `source` holds; returns its number."""
        slot = len(self.lengths)
        for layer in self._layers:
            layer.fork(source, slot, self.lengths[source])
        self.lengths.append(self.lengths[source])
        return slot

    def close(self, slot: int) -> int:
        """Free `slot`: the last slot moves there. Returns the number of the slot that moved."""
        last = len(self.lengths) - 1
        if slot != last:
            for layer in self._layers:
                layer.move(last, slot, self.lengths[last])
            self.lengths[slot] = self.lengths[last]
        self.lengths.pop()
        return last

    def clear(self) -> None:
        """Free all slots."""
        self.lengths.clear()

    def contents(self, slot: int) -> KeysValues:
        """A copy of the keys and values of `slot`."""
        return [layer.copy(slot, self.lengths[slot]) for layer in self._layers]

    def forward(self, first: int, new_ids: Sequence[Sequence[int]]) -> Tensor:
        """Append `new_ids[n]` to slot `first + n`; returns the logits after each row's last token, [B, V]."""
        return self._forward(first, new_ids, 1)[:, -1]

    def forward_each(self, slot: int, ids: Sequence[int]) -> Tensor:
        """Append `ids` to `slot`; returns the logits after each of them, [T, V]."""
        return self._forward(slot, [ids], len(ids))[0]

    def _forward(self, first: int, new_ids: Sequence[Sequence[int]], keep: int) -> Tensor:
        width_T = max(map(len, new_ids))
        have = self.lengths[first : first + len(new_ids)]
        ids_BT = torch.tensor([[0] * (width_T - len(ids)) + list(ids) for ids in new_ids])
        pads_B1 = torch.tensor([[width_T - len(ids)] for ids in new_ids])
        positions_BT = torch.tensor([[length] for length in have]) + torch.arange(width_T) - pads_B1
        real_BT = torch.arange(width_T) >= pads_B1
        positions_BT = positions_BT.clamp(min=0)
        width_W = max(length + len(ids) for length, ids in zip(have, new_ids, strict=True))
        from_row, from_place = real_BT.nonzero(as_tuple=True)
        plan = Plan(first, len(new_ids), width_W, from_row, from_place, positions_BT[real_BT])
        for layer in self._layers:
            layer.plan = plan
        hidden_BTW = torch.arange(width_W) > positions_BT[..., None]
        mask_BTW = torch.zeros(hidden_BTW.shape, dtype=self._network.dtype).masked_fill_(hidden_BTW, -torch.inf)
        logits_BKV = self._network(ids_BT, positions_BT, mask_BTW[:, None], self._layers, keep)
        for row, ids in enumerate(new_ids):
            self.lengths[first + row] += len(ids)
        return logits_BKV
