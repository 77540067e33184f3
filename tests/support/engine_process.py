"""The local engine as a process of its own, against a real object store, with two policies to serve."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from ratchet.core.contract.policy_manifest import ADAPTER, PolicyManifest, Probe
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import BlobStore, Policy, publish_policy, tokenizer_digest, upload_files
from ratchet.local.local_stack.ports import free_ports
from ratchet.local.local_stack.program import Program
from tests.support.servers import RunningServer, running
from tests.support.tiny_models import publish_tiny_model, write_tiny_model

AT = datetime(2026, 1, 5, tzinfo=UTC)
TEXTS = ["where is my order K47", "it was sent on monday", 'look_up {"id":"K47"}', "You are a kind help desk clerk."]
PROMPT, OUTPUT = list(range(20, 60)), [70, 71, 72, 73]


@dataclass(frozen=True)
class Published:
    """A model and an adapter on it, in the object store."""

    directory: Path
    """Of the model, as transformers loads it."""
    adapter_directory: Path
    model: Policy
    adapter: Policy


def publish(shared: SharedSettings, scratch: Path, role: str) -> Published:
    """A tiny random Llama, and a random LoRA adapter whose probe was computed without merging it."""
    objects = Objects(shared)
    objects.ensure_bucket()
    return publish_in(objects, scratch, role)


def publish_in(objects: BlobStore, scratch: Path, role: str, hidden: int = 32) -> Published:
    """The same in any store of objects, with a model of `hidden` dimensions."""
    directory = write_tiny_model(scratch / "tiny", TEXTS, hidden=hidden)
    model: Policy = publish_tiny_model(objects, directory, role, AT)
    probe = _write_adapter(directory, scratch / "adapter")
    manifest = PolicyManifest(
        kind=ADAPTER,
        base_model=model.uri,
        base_digest=model.digest,
        files=upload_files(objects, scratch / "adapter"),
        role=role,
        created_at=AT,
        tokenizer_digest=tokenizer_digest(directory),
        probe=probe,
    )
    return Published(directory, scratch / "adapter", model, publish_policy(objects, manifest))


def publish_other_weights(objects: BlobStore, published: Published, scratch: Path) -> Policy:
    """An adapter of the same model with other weights, and a probe of its own."""
    probe = _write_adapter(published.directory, scratch / "other-adapter", seed=2)
    files = upload_files(objects, scratch / "other-adapter")
    return publish_policy(objects, msgspec.structs.replace(published.adapter.manifest, files=files, probe=probe))


def publish_for_role(shared: SharedSettings, published: Published, role: str) -> Policy:
    """The same adapter as another role's policy: the manifests differ, and so do the digests."""
    manifest = msgspec.structs.replace(published.adapter.manifest, role=role)
    return publish_policy(Objects(shared), manifest)


@contextmanager
def running_engine(shared: SharedSettings, scratch: Path, **env: str) -> Iterator[RunningServer]:
    """`python -m ratchet.local.engine_local` on a free port."""
    port, health_port = free_ports(2)
    program = Program(
        name="engine_local",
        command=(sys.executable, "-m", "ratchet.local.engine_local"),
        ready_url=f"http://127.0.0.1:{port}/health",
        url=f"http://127.0.0.1:{port}",
        port=port,
        health_port=health_port,
        env={
            "RATCHET_ENGINE_PORT": str(port),
            "RATCHET_HEALTH_PORT": str(health_port),
            "RATCHET_S3_ENDPOINT": shared.s3_endpoint,
            "RATCHET_S3_ACCESS_KEY": shared.s3_access_key,
            "RATCHET_S3_SECRET_KEY": shared.s3_secret_key,
            "RATCHET_S3_BUCKET": shared.s3_bucket,
            "RATCHET_DATA_DIR": str(scratch / "engine"),
            "OMP_NUM_THREADS": "1",
            **env,
        },
    )
    with running(program, scratch) as server:
        yield server


def logprobs_by_transformers(
    published: Published, prompt: list[int], output: list[int], *, adapted: bool, temperature: float = 1.0
) -> list[float]:
    """The log-probabilities of the model itself, without engine, cache or merge."""
    model: Any = AutoModelForCausalLM.from_pretrained(published.directory)
    if adapted:
        model = PeftModel.from_pretrained(model, str(published.adapter_directory))
    return _logprobs(model.eval(), torch.tensor([[*prompt, *output]]), len(prompt), temperature)


def _write_adapter(directory: Path, target: Path, seed: int = 1) -> Probe:
    torch.manual_seed(seed)
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(directory), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.1)
    model.save_pretrained(str(target))
    logprobs = _logprobs(model.eval(), torch.tensor([[*PROMPT, *OUTPUT]]), len(PROMPT))
    return Probe(prompt_token_ids=PROMPT, output_token_ids=OUTPUT, logprobs=logprobs)


def _logprobs(model: Any, ids: Any, prompt: int, temperature: float = 1.0) -> list[float]:
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, prompt - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, ids[0, prompt:, None])[:, 0].tolist()
