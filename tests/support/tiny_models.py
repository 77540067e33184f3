"""Tiny real models for tests: a Llama with a BPE tokenizer trained on given texts and a chat template with tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Qwen3Config,
)

from ratchet.core.contract.policy_manifest import MODEL, PolicyManifest
from ratchet.core.stores.policies import BlobStore, Policy, publish_policy, tokenizer_digest, upload_files

PAD, END = "<|pad|>", "<|end|>"
CONTROL = (PAD, END, "<|call|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

CHAT_TEMPLATE = (
    "{% if tools %}<|system|>Tools:{% for tool in tools %} {{ tool.function | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}"
    "<|call|>{{ call.function.name }} {{ call.function.arguments }}{% endfor %}"
    "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Renders a call's arguments as the text that the policy wrote; ends each turn with a line end, as many do."""


def write_tiny_model(
    directory: Path, texts: Iterable[str], *, seed: int = 0, hidden: int = 32, layers: int = 2, vocabulary: int = 400
) -> Path:
    """Save a random Llama and its tokenizer into `directory`, as `from_pretrained` loads them."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(directory, texts, vocabulary)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.06,
        pad_token_id=tokenizer.token_to_id(PAD),
        eos_token_id=tokenizer.token_to_id(END),
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def tiny_configs(vocabulary: int) -> dict[str, Any]:
    """Configurations of one tiny model for each of some families, by name; `mistral` has sliding windows."""
    common: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 256,
        "initializer_range": 0.06,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,
    }
    gpt2 = {"n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 2, "initializer_range": 0.06}
    return {
        "llama": LlamaConfig(**common, tie_word_embeddings=False),
        "qwen3": Qwen3Config(**common, head_dim=16),
        "gemma": GemmaConfig(**{**common, "initializer_range": 0.2}, head_dim=16),
        "mistral": MistralConfig(**common, sliding_window=8),
        "gpt2": GPT2Config(vocab_size=vocabulary, pad_token_id=0, eos_token_id=1, bos_token_id=None, **gpt2),
    }


def write_family(directory: Path, family: str, dtype: torch.dtype, vocabulary: int = 300) -> Path:
    """Save a random model of a family, with a tokenizer, as it was published: in `dtype`."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tokenizer(directory, ["a b c"], vocabulary)
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(tiny_configs(vocabulary)[family])
    model.to(dtype).save_pretrained(directory)
    return directory


def write_published(directory: Path, family: str, vocabulary: int, ends: Sequence[int]) -> None:
    """Save random weights with what is a family's own: `qwen3` norms its heads, `llama3` scales rotary positions.

    `ends`: ids that end an answer, the one that the tokenizer names first.
    """
    common = {"max_position_embeddings": 4096, "pad_token_id": ends[0], "eos_token_id": list(ends)}
    own: dict[str, dict[str, Any]] = {
        "qwen3": {"rope_theta": 1_000_000.0, "tie_word_embeddings": True},
        "llama3": {
            "rope_theta": 500_000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 512,
            },
        },
    }
    config = tiny_configs(vocabulary)["qwen3" if family == "qwen3" else "llama"]
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(type(config)(**config.to_diff_dict() | common | own[family]))
    model.save_pretrained(directory)


def write_half_billion(directory: Path, texts: Iterable[str], vocabulary: int = 32_000) -> Path:
    """Not tiny: a Qwen3 of .5 billion random weights in bf16, for machines with a GPU."""
    write_tokenizer(directory, texts, 400)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=8192,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)
    model.to(torch.bfloat16).save_pretrained(directory)
    return directory


def write_tokenizer(directory: Path, texts: Iterable[str], vocabulary: int = 400) -> Tokenizer:
    """A byte-level BPE tokenizer that keeps any text, with its chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(CONTROL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "extra_special_tokens": list(CONTROL[2:]),
        "clean_up_tokenization_spaces": False,
        "ratchet_tool_format": "call_token",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return tokenizer


def chat_texts(conversations: Iterable[Sequence[dict[str, Any]]]) -> Iterable[str]:
    """Every text in some OpenAI conversations, to train a tokenizer on."""
    for messages in conversations:
        for message in messages:
            yield str(message.get("content") or "")
            for call in message.get("tool_calls") or []:
                yield f"{call['function']['name']} {call['function']['arguments']}"


def publish_tiny_model(objects: BlobStore, directory: Path, role: str, now: datetime) -> Policy:
    """Store a model directory as a policy of kind `model`; returns the `Policy`."""
    manifest = PolicyManifest(
        kind=MODEL,
        base_model="random",
        files=upload_files(objects, directory),
        role=role,
        created_at=now,
        tokenizer_digest=tokenizer_digest(directory),
    )
    return publish_policy(objects, manifest)
