"""Policies as they are served: weights loaded, adapters put on, probed against the trainer's own log-probabilities."""

# ruff: noqa: N806 - names of tensors end in their shape

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM

from ratchet.core.contract.policy_manifest import BFLOAT16, FLOAT32, Probe
from ratchet.core.errors import Rejected
from ratchet.core.rules.engines import difference_from
from ratchet.core.stores.policies import ranks_of, tokenizer_digest
from ratchet.local.engine_local.torch_llama import beside_weights, lean_network
from ratchet.local.engine_local.torch_slots import FULL, SLIDING, Network, Slots
from ratchet.local.engine_local.transformers_text import ChatText, load_text, refusing

DTYPES = {FLOAT32: torch.float32, BFLOAT16: torch.bfloat16}
"""By the name in a manifest."""


@dataclass(frozen=True, eq=False)  # without slots: its network is kept
class Weights:
    """A model and its tokenizer in memory."""

    model: Any
    """A transformers causal model in evaluation mode, without what is unmerged; its classes carry no usable types."""
    text: ChatText
    tokenizer_digest: str | None
    own_bytes: int = 0
    """Of weights that it shares with no other model in memory."""
    unmerged: Network | None = None
    """What computes an adapter beside the weights."""

    @cached_property
    def network(self) -> Network:
        """What computes it."""
        return self.unmerged or lean_network(self.model)


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A policy that is ready to answer."""

    network: Network
    text: ChatText
    context: int
    """Most tokens of prompt and answer together."""
    probed: bool = False
    """Its log-probabilities were compared with the trainer's; a manifest without a probe gives nothing to compare."""
    own_bytes: int = 0
    """Of weights that it shares with no base model."""


def dtype_of(name: str | None) -> torch.dtype | str:
    """What transformers loads weights in, by the name in a manifest (None: as they are stored). Raises `Rejected`."""
    if name is not None and name not in DTYPES:
        raise Rejected(f"a policy that computes in {name} cannot be served, only {', '.join(DTYPES)}")
    return "auto" if name is None else DTYPES[name]


def load_weights(directory: Path, dtype: str | None = None) -> Weights:
    """The model and tokenizer in `directory`, to compute in `dtype` (as a manifest names it; None: as they are stored).

    Raises `Rejected` when they cannot be served.
    """
    asked = dtype_of(dtype)
    with refusing("load the model"):
        model: Any = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, dtype=asked)
    strange = set(getattr(model.config, "layer_types", None) or ()) - {FULL, SLIDING}
    if strange:
        raise Rejected(f"layers of kind {', '.join(sorted(strange))} cannot be served, only full and sliding attention")
    model.eval().requires_grad_(requires_grad=False)
    return Weights(model, load_text(directory), tokenizer_digest(directory), _nbytes(model.parameters()))


def with_adapter(base: Weights, directory: Path, trained_with: str | None) -> Weights:
    """`base` with the adapter in `directory`; weights that it does not change are shared.

    It is merged into a copy of the weights that it changes. In 16 bits a small change would be lost there, where it is
    less than half of a weight's last bit: a Llama computes it beside such a copy.

    `trained_with` is the digest of the tokenizer that the adapter was trained with. It answers with its base's, as
    under vLLM: nothing renders a chat template that came with an adapter, and may never end. Raises `Rejected` when
    adapter and base do not belong together.
    """
    ranks_of(directory)
    own = tokenizer_digest(directory) if (directory / "tokenizer.json").is_file() else None
    if not {trained_with, own} <= {None, base.tokenizer_digest}:
        raise Rejected("the adapter was trained with another tokenizer or chat template than its base has")
    fresh = {id(weight): nn.Parameter(weight.data, requires_grad=False) for weight in base.model.parameters()}
    shared: Any = copy.deepcopy(base.model, fresh)
    with refusing("load the adapter"):
        adapted: Any = PeftModel.from_pretrained(shared, str(directory))
        rough = base.model.dtype != torch.float32
        if rough and (unmerged := beside_weights(base.network, adapted.get_base_model())) is not None:
            return Weights(base.model, base.text, base.tokenizer_digest, unmerged.adapter_bytes, unmerged)
        # The safe merge replaces weights; the plain one would add to those that are shared with the base.
        model: Any = adapted.merge_and_unload(safe_merge=True)
    model.eval().requires_grad_(requires_grad=False)
    known = {weight.data_ptr() for weight in base.model.parameters()}
    changed = (weight for weight in model.parameters() if weight.data_ptr() not in known)
    return Weights(model, base.text, base.tokenizer_digest, _nbytes(changed))


def _nbytes(weights: Iterable[torch.Tensor]) -> int:
    return sum(weight.nbytes for weight in weights)


def serve(weights: Weights, probe: Probe | None) -> Served:
    """`weights` ready to answer. Raises `Rejected` unless they give the probe's log-probabilities."""
    network = weights.network
    if probe is None:
        logprobs = logprobs_of(network, [1, 2, 3, 4], [5])
        if not all(map(math.isfinite, logprobs)):
            raise Rejected("the policy produces NaN or infinite log-probabilities")
    else:
        logprobs = logprobs_of(network, probe.prompt_token_ids, probe.output_token_ids)
        refuse_unless_equal(probe, logprobs, weights.model.dtype)
    context = int(weights.model.config.max_position_embeddings)
    return Served(network, weights.text, context, probe is not None, weights.own_bytes)


@torch.inference_mode()
def logprobs_of(network: Network, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    """Log-probabilities of `output` after `prompt` at temperature 1, by the code that also serves."""
    slots = Slots(network)
    slots.open(None, 0)
    logits_1V = slots.forward(0, [prompt])
    logprobs: list[float] = []
    for token in output:
        logprobs.append(float(logits_1V.log_softmax(-1)[0, token]))
        logits_1V = slots.forward(0, [[token]])
    return logprobs


def refuse_unless_equal(probe: Probe, logprobs: Sequence[float], dtype: torch.dtype) -> None:
    """Raise `Rejected` when our log-probabilities, computed in `dtype`, are not the trainer's."""
    if len(logprobs) != len(probe.logprobs):
        raise Rejected("the manifest's probe has not one log-probability per token")
    if not all(map(math.isfinite, logprobs)):
        raise Rejected("the policy produces NaN or infinite log-probabilities on its probe")
    format_name, difference = str(dtype).removeprefix("torch."), difference_from(probe, logprobs)
    if not difference.within(format_name):
        raise Rejected(difference.sentence(format_name))
