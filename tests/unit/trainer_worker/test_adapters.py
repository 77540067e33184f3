"""Adapters have the shape that a job asks for, keep it, have one digest, and load in the engine and in PEFT itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file
from transformers import AutoTokenizer

from ratchet.core.contract.policy_manifest import ADAPTER, PolicyManifest
from ratchet.core.contract.training import Hyperparameters, Lora
from ratchet.core.errors import Rejected
from ratchet.core.stores.policies import Policy, publish_policy, upload_files
from ratchet.core.stores.policy_files import export_policy
from ratchet.local.engine_local.s3_policies import PolicyLoader
from ratchet.trainer_worker.errors import ModelUnusable
from ratchet.trainer_worker.training.policy import TrainedPolicy, _loaded, load_policy, probe_policy, save_policy
from tests.support.blobs import MemoryBlobs
from tests.support.tiny_models import publish_tiny_model, write_family
from tests.support.trainer_runs import job_spec

AT = datetime(2026, 1, 5, tzinfo=UTC)
PROMPT = list(range(20, 40))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("base"), "llama", torch.float32)


def new_adapter(base: Path, lora: Lora) -> TrainedPolicy:
    """With weights as if it had learnt."""
    policy = load_policy(job_spec("sft", base=str(base), hyper=Hyperparameters(lora=lora)))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.1)
    return policy


def published(blobs: MemoryBlobs, policy: TrainedPolicy, base: Policy, folder: Path) -> Policy:
    save_policy(policy, folder, base.uri)
    manifest = PolicyManifest(
        kind=ADAPTER,
        base_model=base.uri,
        base_digest=base.digest,
        files=upload_files(blobs, folder),
        role="support",
        created_at=AT,
        dtype=policy.dtype,
        probe=probe_policy(policy, PROMPT),
    )
    return publish_policy(blobs, manifest)


@pytest.mark.parametrize("lora", [Lora(r=4, use_rslora=True), Lora(r=4, use_dora=True)])
def test_rank_stabilised_and_decomposed_adapters_are_merged_by_the_engine(
    base: Path, lora: Lora, tmp_path: Path
) -> None:
    blobs = MemoryBlobs()
    stored = publish_tiny_model(blobs, base, "support", AT)
    policy = published(blobs, new_adapter(base, lora), stored, tmp_path / "adapter")
    assert PolicyLoader(blobs, tmp_path / "models").load(policy.uri).probed


def test_an_exported_adapter_loads_with_peft_and_names_its_base(base: Path, tmp_path: Path) -> None:
    """On a stored model the export brings it along; on a named one it keeps the name."""
    blobs = MemoryBlobs()
    stored = publish_tiny_model(blobs, base, "support", AT)
    trained = new_adapter(base, Lora(r=4))
    policy = published(blobs, trained, stored, tmp_path / "adapter")
    export_policy(blobs, policy.uri, tmp_path / "out", policy.digest)
    loaded: Any = AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "out" / "model"))
    with torch.no_grad():
        ours = torch.tensor([PROMPT])
        torch.testing.assert_close(loaded(ours).logits, trained.model.eval()(ours).logits)
    tokenizer: Any = AutoTokenizer.from_pretrained(str(tmp_path / "out" / "model"))
    chat = [{"role": "user", "content": "Where is my order?"}]
    assert tokenizer.apply_chat_template(chat) == trained.tokenizer.apply_chat_template(chat)
    save_policy(trained, tmp_path / "named", str(base))
    named: Any = AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "named"))
    assert named.peft_config["default"].base_model_name_or_path == str(base)


def test_a_critic_lies_apart_from_the_weights_that_loaders_read(base: Path, tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    stored = publish_tiny_model(blobs, base, "support", AT)
    policy = published(blobs, new_adapter(base, Lora(r=4)), stored, tmp_path / "adapter")
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "critic.safetensors").write_bytes(b"critic")
    documents = upload_files(blobs, tmp_path / "documents")
    with_critic = publish_policy(blobs, replace(policy.manifest, documents=documents))
    files = export_policy(blobs, with_critic.uri, tmp_path / "out")
    assert [name for name in files if "critic" in name] == ["critic/critic.safetensors"]


class Reversed(set[str]):
    """A set in the order that another process may give it."""

    def __iter__(self) -> Iterator[str]:
        return reversed(list(super().__iter__()))


def test_the_files_of_an_adapter_do_not_depend_on_the_order_of_a_set(base: Path, tmp_path: Path) -> None:
    """Python orders sets of strings by a seed that each process draws."""
    written: list[dict[str, bytes]] = []
    for kind in (set, Reversed):
        policy: Any = new_adapter(base, Lora(r=4))
        config = policy.model.peft_config["default"]
        assert len(config.target_modules) == 14
        config.target_modules = kind(config.target_modules)
        save_policy(policy, tmp_path / kind.__name__, "s3://test/base.json")
        written.append({path.name: path.read_bytes() for path in (tmp_path / kind.__name__).iterdir()})
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("lora", "reason"),
    [
        (Lora(r=8), r"has r 4 instead of 8"),
        (Lora(r=4, dropout=0.1), r"has dropout 0.0 instead of 0.1"),
        (Lora(r=4, use_rslora=True), r"has use_rslora False instead of True"),
        (Lora(r=4, target_modules=["q_proj"]), r"has other target_modules than \['q_proj'\]"),
    ],
)
def test_another_shape_than_that_of_the_adapter_to_continue_is_refused(
    base: Path, lora: Lora, reason: str, tmp_path: Path
) -> None:
    save_policy(new_adapter(base, Lora(r=4)), tmp_path, str(base))
    spec = job_spec("sft", base=str(base), adapter=str(tmp_path), hyper=Hyperparameters(lora=lora))
    with pytest.raises(Rejected, match=f"{reason}: leave `lora` out"):
        load_policy(spec)


def test_the_same_shape_in_other_words_continues_the_adapter(base: Path, tmp_path: Path) -> None:
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    for shape, again in ((Lora(r=4), Lora(r=4, target_modules=names)), (Lora(r=4, target_modules=names), Lora(r=4))):
        save_policy(new_adapter(base, shape), tmp_path, str(base))
        spec = job_spec("sft", base=str(base), adapter=str(tmp_path), hyper=Hyperparameters(lora=again))
        assert not load_policy(spec).fresh


def test_a_module_that_the_base_lacks_is_refused_in_words(base: Path) -> None:
    with pytest.raises(Rejected, match="no_such_proj"):
        new_adapter(base, Lora(target_modules=["no_such_proj"]))


def test_four_bits_without_their_hardware_are_refused_in_words(base: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(Rejected, match="load_in_4bit needs CUDA and the package bitsandbytes"):
        new_adapter(base, Lora(load_in_4bit=True))


def test_adapter_trains_its_rank_and_a_full_fine_tune_everything(base: Path) -> None:
    weights = load_file(base / "model.safetensors")
    linear = [tensor.shape for name, tensor in weights.items() if "proj" in name]
    adapter = new_adapter(base, Lora(r=4))
    assert sum(p.numel() for p in adapter.trainable()) == sum(4 * (rows + columns) for rows, columns in linear)
    assert all(p.dtype == torch.float32 for p in adapter.trainable())
    whole = load_policy(job_spec("sft", base=str(base), hyper=Hyperparameters(full_finetune=True)))
    assert sum(p.numel() for p in whole.trainable()) == sum(tensor.numel() for tensor in weights.values())


@dataclass
class Broken:
    """In the place of an auto class."""

    error: Exception

    def from_pretrained(self, _source: str) -> None:
        raise self.error


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EIO, errno.EMFILE])
def test_what_the_machine_lacks_is_no_fault_of_the_model(number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)):
        _loaded(Broken(OSError(number, os.strerror(number))), "base model", "m")


@pytest.mark.parametrize("error", [OSError("there is no config.json"), ValueError("unknown architecture")])
def test_what_is_no_model_is_the_jobs_fault(error: Exception) -> None:
    with pytest.raises(ModelUnusable, match=str(error)):
        _loaded(Broken(error), "base model", "m")
