"""Reward models as a training stores them: a random scalar head on a tiny model, whole or as an adapter on it."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ratchet.bus.message import JsonObject
from ratchet.core.contract.policy_manifest import FLOAT32, REWARD_MODEL, PolicyManifest
from ratchet.core.stores.policies import BlobStore, Policy, publish_policy, tokenizer_digest, upload_files
from tests.support.tiny_models import publish_tiny_model

AT = datetime(2026, 1, 5, tzinfo=UTC)
CHAT: list[JsonObject] = [
    {"role": "user", "content": "where is my order K47"},
    {"role": "assistant", "content": "it was sent on monday"},
]


def publish_reward_model(
    objects: BlobStore, base: Path, scratch: Path, *, adapter: bool, **changes: Any
) -> tuple[Policy, Any]:
    """Store one for the role `helpdesk`; returns its manifest, and the model itself."""
    torch.manual_seed(11)
    model: Any = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    model.score.weight.data.normal_(0, 0.5)
    scratch.mkdir(parents=True, exist_ok=True)
    if adapter:
        model = _adapted(model)
        model.save_pretrained(str(scratch))
        (scratch / "README.md").unlink(missing_ok=True)
    else:
        model.save_pretrained(str(scratch))
        AutoTokenizer.from_pretrained(base).save_pretrained(str(scratch))
    stored = publish_tiny_model(objects, base, "helpdesk", AT)
    fields: dict[str, Any] = {
        "kind": REWARD_MODEL,
        "base_model": stored.uri,
        "base_digest": stored.digest,
        "files": upload_files(objects, scratch),
        "role": "helpdesk",
        "created_at": AT,
        "dtype": FLOAT32,
        "tokenizer_digest": tokenizer_digest(base if adapter else scratch),
    }
    return publish_policy(objects, PolicyManifest(**(fields | changes))), model.eval()


def _adapted(model: Any) -> Any:
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="SEQ_CLS")
    adapted: Any = get_peft_model(copy.deepcopy(model), config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.1)
    return adapted


@torch.inference_mode()
def reward_of(model: Any, base: Path, messages: list[JsonObject], tools: list[JsonObject] | None = None) -> float:
    """The reward in other hands: the chat as the template renders it, read by transformers itself."""
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    ids: Any = tokenizer.apply_chat_template(messages, tools=tools, return_tensors="pt", return_dict=True)
    return float(model(input_ids=ids["input_ids"]).logits[0, 0])
