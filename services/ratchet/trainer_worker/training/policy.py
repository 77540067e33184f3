"""The policy in memory: base model, adapter and tokenizer, loaded for training and saved as a policy's files."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)
from transformers.pytorch_utils import Conv1D

from ratchet.bus.message import JsonObject
from ratchet.core.contract.policy_manifest import ADAPTER, BFLOAT16, FLOAT32, MODEL, REWARD_MODEL, Probe
from ratchet.core.contract.training import Lora
from ratchet.core.errors import Rejected
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.model_hub import why_not_loaded
from ratchet.trainer_worker.errors import ModelUnusable
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.ranks import ALONE, Ranks

PROBE_PROMPT_TOKENS, PROBE_OUTPUT_TOKENS = 128, 16
PRECISIONS = {"fp32": FLOAT32, "bf16": BFLOAT16}
"""Number formats, by the request's name."""
MACHINE = frozenset({errno.ENOMEM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOSPC})
"""Errors of the system that are the machine's: they say nothing about the model."""


@dataclass(slots=True)
class TrainedPolicy:
    """A causal LM, or a reward model, with what is trainable marked, and its tokenizer."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    kind: str
    """What training makes of it, as its manifest will say."""
    bf16: bool
    fresh: bool
    """True while the policy equals its reference: a new adapter, or the start of a full fine-tune."""
    ranks: Ranks = ALONE
    """The processes that train it."""

    @property
    def dtype(self) -> str:
        """Number format of the computation, as a manifest names it."""
        return BFLOAT16 if self.bf16 else FLOAT32

    @property
    def has_adapter(self) -> bool:
        """Whether an adapter learns, and not all weights."""
        return hasattr(self.model, "peft_config")

    @property
    def pad(self) -> int | None:
        """The id that stands for nothing; a reward model reads the last token that is another."""
        tokenizer: Any = self.tokenizer
        return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def effective(self) -> JsonObject:
        """What learns, as it was put on the model."""
        if not self.has_adapter:
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
                "use_rslora": config.use_rslora,
                "use_dora": config.use_dora,
                "load_in_4bit": bool(getattr(model.get_base_model(), "is_loaded_in_4bit", False)),
            },
        }

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that learn."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]


def load_policy(spec: JobSpec, ranks: Ranks = ALONE) -> TrainedPolicy:
    """Load the base, and put the adapter to continue, or a new one, on top. Nothing is downloaded from a hub by name
    unless `spec.base` is such a name.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bf16 = _precision(spec, device) == BFLOAT16
    hyper = spec.config.hyperparameters
    options = _four_bits(device) if hyper.lora is not None and hyper.lora.load_in_4bit else {}
    dtype = torch.bfloat16 if bf16 and not hyper.full_finetune else torch.float32
    tokenizer: PreTrainedTokenizerBase = _loaded(AutoTokenizer, "tokenizer of", spec.base)
    if ALGORITHMS[spec.config.algorithm].makes_reward_model:
        return _with_score(spec, ranks, device, tokenizer, dtype, bf16=bf16)
    # `Any`: transformers' auto classes have no usable types.
    base: Any = _loaded(AutoModelForCausalLM, "base model", spec.base, dtype=dtype, **options)
    base.config.use_cache = False
    if hyper.full_finetune:
        if spec.adapter is not None:
            raise Rejected("full_finetune cannot continue from an adapter; name a model as base_model")
        return TrainedPolicy(base.to(device), tokenizer, MODEL, bf16, fresh=True, ranks=ranks)
    model = _with_adapter(base, spec, hyper.lora).to(device)
    return TrainedPolicy(model, tokenizer, ADAPTER, bf16, fresh=spec.adapter is None, ranks=ranks)


def _with_score(
    spec: JobSpec,
    ranks: Ranks,
    device: torch.device,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
    *,
    bf16: bool,
) -> TrainedPolicy:
    """The base with a new scalar head instead of its vocabulary's, drawn as transformers draws it."""
    hyper = spec.config.hyperparameters
    base: Any = _loaded(AutoModelForSequenceClassification, "base model", spec.base, dtype=dtype, num_labels=1)
    if not isinstance(getattr(base, "score", None), nn.Linear) or base.score.bias is not None:
        raise Rejected(f"no reward model can be made of {spec.base_name}: transformers has no scalar head for it")
    base.score.float()
    base.config.use_cache = False
    if spec.adapter is not None:
        if not hyper.full_finetune:
            raise Rejected(
                "a reward model's adapter is for a model, not for another adapter: name a model as base_model, or set "
                "full_finetune to start from the weights that the adapter makes"
            )
        # The base with the changes of a policy's adapter, whose own head is not looked at.
        from peft import LoraConfig, PeftModel  # noqa: PLC0415 - not needed otherwise

        config: Any = LoraConfig.from_pretrained(spec.adapter)
        config.task_type = None  # it was made for a model that writes
        changed: Any = PeftModel.from_pretrained(base, spec.adapter, config=config)
        base = changed.merge_and_unload().requires_grad_(requires_grad=True)
    model = base if hyper.full_finetune else _with_adapter(base, spec, hyper.lora, task="SEQ_CLS")
    policy = TrainedPolicy(model.to(device), tokenizer, REWARD_MODEL, bf16, fresh=True, ranks=ranks)
    base.config.get_text_config().pad_token_id = policy.pad
    return policy


def load_reference(source: str, policy: TrainedPolicy) -> nn.Module:
    """A frozen model to compare the policy with, on its device. Raises `Rejected` for one that has other tokens."""
    tokenizer: Any = _loaded(AutoTokenizer, "tokenizer of", source)
    own: Any = policy.tokenizer
    if tokenizer.get_vocab() != own.get_vocab():
        raise Rejected(
            f"the reference {source} has other tokens than the policy: their probabilities cannot be compared"
        )
    dtype = torch.bfloat16 if policy.bf16 else torch.float32
    model: Any = _loaded(AutoModelForCausalLM, "reference model", source, dtype=dtype)
    model.config.use_cache = False
    return model.requires_grad_(requires_grad=False).to(policy.device)


def save_policy(policy: TrainedPolicy, directory: Path, base_name: str) -> None:
    """Write the files of an adapter, or of a model with its tokenizer."""
    model: Any = policy.model
    if policy.has_adapter:
        config = model.peft_config["default"]
        # The local path of the base means nothing elsewhere and would change the digest, as would the order of a set.
        config.base_model_name_or_path = base_name
        for name, value in vars(config).items():
            if isinstance(value, set):
                setattr(config, name, sorted(cast("set[str]", value)))
        # Asked to find out whether the vocabulary was resized, PEFT would look the base up on a hub. It never is here.
        model.save_pretrained(str(directory), save_embedding_layers=False)
        (directory / "README.md").unlink(missing_ok=True)
        return
    model.config.use_cache = True
    model.save_pretrained(str(directory))
    policy.tokenizer.save_pretrained(str(directory))


def probe_policy(policy: TrainedPolicy, prompt: Sequence[int]) -> Probe:
    """A short greedy continuation of `prompt` with its log-probabilities, for engines to check themselves against.

    The log-probabilities are of the undivided distribution, in float32. All ranks do it together.
    """
    scorer = Scorer(policy.model, bf16=policy.bf16, ranks=policy.ranks)
    end = cast("int | None", policy.tokenizer.eos_token_id)
    ids = list(prompt[-PROBE_PROMPT_TOKENS:]) or [end or 0]
    shown = len(ids)
    logprobs: list[float] = []
    for _ in range(PROBE_OUTPUT_TOKENS):
        all_logprobs = scorer.next_logprobs(ids)
        best = scorer.ranks.of_leader(int(all_logprobs.argmax()))  # ranks on different machines may round differently
        ids.append(best)
        logprobs.append(float(all_logprobs[best]))
        if best == end:
            break
    return Probe(prompt_token_ids=ids[:shown], output_token_ids=ids[shown:], logprobs=logprobs)


def _loaded(kind: Any, what: str, source: str, **options: Any) -> Any:
    """What an auto class of transformers makes of `source`. Raises `ModelUnusable` with the reason, in one line, and
    `OSError` for what is the machine's.
    """
    try:
        return kind.from_pretrained(source, **options)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in MACHINE:
            raise
        raise ModelUnusable(f"cannot load the {what} {source}: {why_not_loaded(source, error)}") from error


def _precision(spec: JobSpec, device: torch.device) -> str:
    """What the job asks for, else what the policy that it continues was computed in, else the device's own."""
    compute = spec.config.compute
    if compute is not None and compute.mixed_precision is not None:
        return PRECISIONS[compute.mixed_precision]
    return spec.dtype or (BFLOAT16 if device.type == "cuda" else FLOAT32)


def _four_bits(device: torch.device) -> dict[str, Any]:
    """How transformers loads a base in 4 bits (QLoRA, arXiv:2305.14314). Raises `Rejected` where it cannot."""
    if device.type != "cuda" or find_spec("bitsandbytes") is None:
        raise Rejected("load_in_4bit needs CUDA and the package bitsandbytes: this trainer lacks one of them")
    from transformers import BitsAndBytesConfig  # noqa: PLC0415 - it asks for its package when it is made

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": config, "device_map": {"": torch.cuda.current_device()}}


def _with_adapter(base: Any, spec: JobSpec, lora: Lora | None, task: str = "CAUSAL_LM") -> nn.Module:
    from peft import LoraConfig, PeftModel, get_peft_model  # noqa: PLC0415 - not needed for a full fine-tune

    if spec.adapter is None:
        new = lora or Lora()
        config = LoraConfig(
            r=new.r,
            lora_alpha=cast("int", new.alpha),
            lora_dropout=new.dropout,
            target_modules=new.target_modules,
            use_rslora=new.use_rslora,
            use_dora=new.use_dora,
            fan_in_fan_out=any(isinstance(module, Conv1D) for module in base.modules()),  # how GPT-2 stores its weights
            task_type=task,
        )
        try:
            return get_peft_model(base, config)
        except ValueError as error:  # a name in `target_modules` that the base does not have
            raise Rejected(f"cannot put an adapter on {spec.base_name}: {error}") from error
    asked = None if lora is None else _targets(base, lora)
    model: Any = PeftModel.from_pretrained(base, spec.adapter, is_trainable=True)
    present: Any = model.peft_config["default"]
    # PEFT looks here whether the vocabulary was resized; the name in the adapter is the base's elsewhere.
    present.base_model_name_or_path = spec.base
    if lora is not None:
        _check_shape(lora, present, same_targets=asked == {*model.base_model.targeted_module_names})
    return model


def _targets(base: Any, lora: Lora) -> set[str]:
    """The modules of a bare base that a new adapter of that shape would change."""
    from peft import LoraConfig  # noqa: PLC0415 - as above
    from peft.tuners.tuners_utils import check_target_module_exists  # noqa: PLC0415

    if lora.target_modules == "all-linear":
        head = base.get_output_embeddings()
        linear = (nn.Linear, Conv1D)
        return {name for name, module in base.named_modules() if isinstance(module, linear) and module is not head}
    config = LoraConfig(target_modules=lora.target_modules)
    return {name for name, _ in base.named_modules() if check_target_module_exists(config, name)}


def _check_shape(asked: Lora, present: Any, *, same_targets: bool) -> None:
    """Raise `Rejected` unless the adapter to continue has the shape that a job asks for.

    Its weights have that shape, and nothing on the way can change it. `present`: its configuration, of PEFT.
    """
    differences = [
        f"{name} {ours!r} instead of {theirs!r}"
        for name, ours, theirs in (
            ("r", present.r, asked.r),
            ("alpha", float(present.lora_alpha), float(asked.alpha)),
            ("dropout", float(present.lora_dropout), float(asked.dropout)),
            ("use_rslora", bool(present.use_rslora), asked.use_rslora),
            ("use_dora", bool(present.use_dora), asked.use_dora),
        )
        if ours != theirs
    ]
    if not same_targets:
        differences.append(f"other target_modules than {asked.target_modules!r}")
    if differences:
        raise Rejected(
            f"the adapter to continue has {', '.join(differences)}: leave `lora` out to continue it as it is"
        )
