"""Policy manifests: the documents that a policy's name and digest stand for."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from ratchet.bus.message import JsonObject, Value
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.values import Count, Ordinal, Role, Sha256, Text, Uri, Uuid, listed

ADAPTER, MODEL, BUNDLE = "adapter", "model", "bundle"
"""Kinds of policy: LoRA weights for a base model, a whole model, or what changes of the calls to either."""
REWARD_MODEL = "reward_model"
"""Scores answers. Its manifest is stored like a policy's, but is none: nothing deploys, serves or continues it."""
DEPLOYABLE = frozenset({ADAPTER, MODEL, BUNDLE})
"""What can answer requests. Nothing else becomes a candidate."""
WEIGHTS = frozenset({ADAPTER, MODEL})
"""What an engine holds."""
ADAPTER_CONFIG = "adapter_config.json"
"""PEFT's description of an adapter, which names its base."""
TRAINING_LOG = "training.log"
"""Of the documents the one with what the training process printed."""
FLOAT32, BFLOAT16 = "float32", "bfloat16"
"""Number formats, as torch names them."""


class ArtifactFile(Value, frozen=True, kw_only=True):
    """One file of a policy: `name` is its plain file name in the policy's directory."""

    name: Text
    """Its plain name in the directory."""
    uri: Uri
    sha256: Sha256
    size: Count


class Probe(Value, frozen=True, kw_only=True):
    """A short completion and the trainer's own log-probabilities of its tokens (temperature 1).

    An engine recomputes them before it serves the policy: that catches wrong weights, dtypes and templates.
    """

    prompt_token_ids: list[Count]
    output_token_ids: list[Count]
    logprobs: list[float]
    """Of the completion's tokens, in nats."""


class PolicyManifest(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about one policy. The digest is that of its encoded bytes."""

    kind: Annotated[str, listed("adapter", "model", "bundle", "reward_model")]
    """`adapter`, `model`, `bundle` or `reward_model`."""
    base_model: str
    """Of an adapter: uri of its base's manifest, or a name or path. Of a model: the model that it was made from.
    Of a bundle: who answers (`openai/small`, `support@3-1a2b3c4d`), empty where it does not say."""
    files: list[ArtifactFile]
    """What an engine needs to serve it."""
    role: Role
    """The role it belongs to."""
    created_at: datetime
    base_digest: Sha256 | None = None
    """sha256 of the base's manifest; of a base in a directory, of its weights (`stores.base_weights`)."""
    algorithm: str | None = None
    """What it was trained with."""
    training_job_id: Uuid | None = None
    """The job that made it."""
    attempt: Ordinal | None = None
    """The attempt that did."""
    dataset_digest: Sha256 | None = None
    """sha256 of the manifest of the snapshot it learned from."""
    hyperparameters: JsonObject = msgspec.field(default_factory=dict[str, Any])
    """As the job was asked for."""
    training_samples: Count | None = None
    """Rows it learned from."""
    final_reward: float | None = None
    """Mean reward at the end of its training."""
    tokenizer_digest: Sha256 | None = None
    """sha256 over the tokenizer's files: equal digests render and encode equally."""
    dtype: Annotated[str, listed("float32", "bfloat16")] | None = None
    """`FLOAT32` or `BFLOAT16`: what the trainer computed in and an engine shall compute in; None: unknown."""
    probe: Probe | None = None
    """A short completion and the trainer's own log-probabilities of its tokens, at temperature 1: an engine recomputes
    them before it serves the policy."""
    metrics: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """What the trainer measured at the end, by name."""
    parent: Uri | None = None
    """Uri of the adapter manifest that this adapter continues."""
    bundle: Bundle | None = None
    """What it changes of calls: of kind `bundle` alone."""
    origin: str | None = None
    """Of a policy that was made elsewhere: what its maker called the base, and where it was imported from."""
    documents: list[ArtifactFile] = msgspec.field(default_factory=list[ArtifactFile])
    """Files that describe the policy and are not needed to serve it: model card, effective configuration, metrics, log,
    tokenizer of an adapter's base. Engines do not download these."""

    @property
    def has_adapter(self) -> bool:
        """Whether its weights change those of a base; those of a reward model may, too."""
        return self.kind == ADAPTER or any(file.name == ADAPTER_CONFIG for file in self.files)
