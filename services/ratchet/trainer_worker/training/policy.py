"""The policy in memory: base model, adapter and tokenizer, loaded for training and saved as a policy's files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from ratchet.bus.message import JsonObject
from ratchet.contract.policy_manifest import ADAPTER, MODEL, Probe
from ratchet.contract.training import Lora
from ratchet.errors import Rejected
from ratchet.trainer_worker.job import JobSpec

PROBE_PROMPT_TOKENS, PROBE_OUTPUT_TOKENS = 128, 16
CHECKPOINTING_PARAMETERS = 1_000_000_000
"""From this size on, activations are recomputed in the backward pass."""


@dataclass(slots=True)
class TrainedPolicy:
    """A causal LM with what is trainable marked, and its tokenizer."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    kind: str
    """What training makes of it: `adapter` or `model`."""
    bf16: bool
    fresh: bool
    """True while the policy equals its reference: a new adapter, or the start of a full fine-tune."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def effective(self) -> JsonObject:
        """What learns, as it was put on the model."""
        if self.kind == MODEL:
            return {"full_finetune": True, "lora": None}
        model: Any = self.model
        config = model.peft_config["default"]
        modules = config.target_modules
        return {
            "full_finetune": False,
            "lora": {
                "r": config.r,
                "alpha": config.lora_alpha,
                "dropout": config.lora_dropout,
                "target_modules": modules if isinstance(modules, str) else sorted(modules),
            },
        }

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that learn."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]


def load_policy(spec: JobSpec) -> TrainedPolicy:
    """Load the base, and put the adapter to continue, or a new one, on top. Nothing is downloaded from a hub by name
    unless `spec.base` is such a name.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    compute = spec.config.compute
    bf16 = device.type == "cuda" and (compute is None or compute.mixed_precision != "fp32")
    hyper = spec.config.hyperparameters
    dtype = torch.bfloat16 if bf16 and not hyper.full_finetune else torch.float32
    # `Any`: transformers' auto classes have no usable types.
    base: Any = _loaded(AutoModelForCausalLM, "base model", spec.base, dtype=dtype, attn_implementation="sdpa")
    base.config.use_cache = False
    tokenizer: PreTrainedTokenizerBase = _loaded(AutoTokenizer, "tokenizer of", spec.base)
    if base.num_parameters() >= CHECKPOINTING_PARAMETERS:
        base.activation_checkpointing_enable()
        base.enable_input_require_grads()
    if hyper.full_finetune:
        if spec.adapter is not None:
            raise Rejected("full_finetune cannot continue from an adapter; name a model as base_model")
        return TrainedPolicy(base.to(device), tokenizer, MODEL, bf16, fresh=True)
    model = _with_adapter(base, spec, hyper.lora)
    return TrainedPolicy(model.to(device), tokenizer, ADAPTER, bf16, fresh=spec.adapter is None)


def save_policy(policy: TrainedPolicy, directory: Path, base_name: str) -> None:
    """Write the files of an adapter, or of a model with its tokenizer."""
    model: Any = policy.model
    if policy.kind == ADAPTER:
        # The local path of the base means nothing elsewhere and would change the digest.
        model.peft_config["default"].base_model_name_or_path = base_name
        # Asked to find out whether the vocabulary was resized, PEFT would look the base up on a hub. It never is here.
        model.save_pretrained(str(directory), save_embedding_layers=False)
        (directory / "README.md").unlink(missing_ok=True)
        return
    model.config.use_cache = True
    model.save_pretrained(str(directory))
    policy.tokenizer.save_pretrained(str(directory))


@torch.no_grad()
def probe_policy(policy: TrainedPolicy, prompt: Sequence[int]) -> Probe:
    """A short greedy continuation of `prompt` with its log-probabilities, for engines to check themselves against.

    The log-probabilities are of the undivided distribution, in float32.
    """
    model: Any = policy.model
    model.eval()
    end = cast("int | None", policy.tokenizer.eos_token_id)
    ids = list(prompt[-PROBE_PROMPT_TOKENS:]) or [end or 0]
    shown = len(ids)
    logprobs: list[float] = []
    with torch.autocast(policy.device.type, torch.bfloat16, enabled=policy.bf16):
        for _ in range(PROBE_OUTPUT_TOKENS):
            logits: Tensor = model(input_ids=torch.tensor([ids], device=policy.device), use_cache=False).logits[0, -1]
            all_logprobs = torch.log_softmax(logits.float(), -1)
            best = int(all_logprobs.argmax())
            ids.append(best)
            logprobs.append(float(all_logprobs[best]))
            if best == end:
                break
    return Probe(prompt_token_ids=ids[:shown], output_token_ids=ids[shown:], logprobs=logprobs)


def _loaded(kind: Any, what: str, source: str, **options: Any) -> Any:
    """What an auto class of transformers makes of `source`. Raises `Rejected` with the reason, in one line."""
    try:
        return kind.from_pretrained(source, **options)
    except (OSError, ValueError) as error:
        # Without a hub, transformers speaks of the hub all the same.
        offline = isinstance(error, OSError) and not Path(source).is_dir() and os.environ.get("HF_HUB_OFFLINE") == "1"
        absent = "no directory here, and not in the local cache; with RATCHET_HUB=1 the worker fetches it from a hub"
        reason = absent if offline else str(error).splitlines()[0]
        raise Rejected(f"cannot load the {what} {source}: {reason}") from error


def _with_adapter(base: Any, spec: JobSpec, lora: Lora | None) -> nn.Module:
    from peft import LoraConfig, PeftModel, get_peft_model  # noqa: PLC0415 - not needed for a full fine-tune

    if spec.adapter is None:
        new = lora or Lora()
        config = LoraConfig(
            r=new.r,
            lora_alpha=cast("int", new.alpha),
            lora_dropout=new.dropout,
            target_modules=new.target_modules,
            task_type="CAUSAL_LM",
        )
        return get_peft_model(base, config)
    model = PeftModel.from_pretrained(base, spec.adapter, is_trainable=True)
    present: Any = model.peft_config["default"]
    # PEFT looks here whether the vocabulary was resized; the name in the adapter is the base's elsewhere.
    present.base_model_name_or_path = spec.base
    if lora is not None and (lora.r, float(lora.alpha)) != (present.r, float(present.lora_alpha)):
        raise Rejected(
            f"the adapter to continue has r {present.r} and alpha {present.lora_alpha}; "
            f"the job asks for r {lora.r} and alpha {lora.alpha:g}: leave `lora` out to continue it"
        )
    return model
