"""An adapter made elsewhere is taken as PEFT saved it, or refused in one line; nothing of it is executed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from ratchet.cli.policies import known_base, other_base
from ratchet.core.contract.policy_manifest import ADAPTER, PolicyManifest
from ratchet.core.errors import Rejected
from ratchet.core.stores.adapter_import import CONFIG, WEIGHTS, check_base, read_adapter, store_adapter
from ratchet.core.stores.policies import Policy, fetch_policy
from tests.support.blobs import MemoryBlobs
from tests.support.trainer_inputs import adapter as stored_adapter, model as stored_model
from tests.support.trainer_runs import toy_model

Break = Callable[[Path], object]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """What PEFT writes for a trained adapter."""
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model: Any = get_peft_model(toy_model(0), config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.peft_config["default"].base_model_name_or_path = "org/model"
    model.save_pretrained(str(tmp_path / "theirs"), save_embedding_layers=False)
    return tmp_path / "theirs"


def store(blobs: MemoryBlobs, directory: Path, work: Path) -> Policy:
    work.mkdir()
    adapter = read_adapter(directory)
    manifest = PolicyManifest(
        kind=ADAPTER, base_model="s3://b/base.json", files=[], role="support", created_at=adapter.written_at, origin="x"
    )
    return store_adapter(blobs, adapter, manifest, work)


def test_imported_adapter_computes_the_same_and_is_one_policy(saved: Path, tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    policy, again = (store(blobs, saved, tmp_path / name) for name in ("one", "two"))
    assert policy.digest == again.digest
    assert (policy.manifest.algorithm, policy.manifest.probe, policy.manifest.origin) == (None, None, "x")
    local = fetch_policy(blobs, policy.uri, tmp_path / "cache").directory
    written = json.loads((local / CONFIG).read_text())
    assert written["base_model_name_or_path"] == "s3://b/base.json"
    ids = torch.tensor([[1, 4, 2, 7]])
    with torch.no_grad():
        theirs, ours, bare = (
            (PeftModel.from_pretrained(toy_model(0), str(place)).eval() if place else toy_model(0))(
                input_ids=ids
            ).logits
            for place in (saved, local, None)
        )
    assert torch.equal(theirs, ours)
    assert not torch.equal(ours, bare)


def config(**changes: Any) -> Break:
    def write(directory: Path) -> None:
        values = json.loads((directory / CONFIG).read_text()) | changes
        (directory / CONFIG).write_text(json.dumps(values))

    return write


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Break:
    def write(directory: Path) -> None:
        tensors = load_file(directory / WEIGHTS)
        change(tensors)
        save_file(tensors, directory / WEIGHTS)

    return write


def first_is(value: float) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: next(iter(tensors.values())).view(-1)[:1].fill_(value)


def cut(directory: Path) -> None:
    os.truncate(directory / WEIGHTS, (directory / WEIGHTS).stat().st_size - 1)


def link(directory: Path) -> None:
    (directory / WEIGHTS).rename(directory / "elsewhere")
    (directory / WEIGHTS).symlink_to(directory / "elsewhere")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda directory: (directory / CONFIG).unlink(), "has no adapter_config.json"),
        (lambda directory: (directory / WEIGHTS).unlink(), "has no adapter_model.safetensors"),
        (lambda directory: (directory / "adapter_model.bin").touch(), "is a pickle"),
        (lambda directory: (directory / CONFIG).write_text("{"), "cannot be read"),
        (lambda directory: (directory / CONFIG).write_text("[]"), "cannot be read"),
        (lambda directory: (directory / WEIGHTS).write_bytes(b""), "truncated or not a safetensors file"),
        (lambda directory: (directory / WEIGHTS).write_bytes(b"\xff" * 64), "truncated or not a safetensors file"),
        (cut, "is truncated"),
        (link, "no plain file"),
        (config(r=8), "says rank 8"),
        (config(r=10**9), "must be 1 to 1024"),
        (config(r=True), "must be 1 to 1024"),
        (config(target_modules=[]), "names no target_modules"),
        (config(target_modules=["k_proj"]), "belongs to no module"),
        (config(auto_mapping={"parent_library": "os"}), "has auto_mapping"),
        (config(peft_type="IA3"), "not that of a LoRA adapter"),
        (weights(lambda tensors: tensors.pop(next(name for name in tensors if "lora_A" in name))), "half written"),
        (weights(lambda tensors: tensors.update({"lm_head.weight": torch.zeros(2, 2)})), "no part of a LoRA adapter"),
        (weights(first_is(float("nan"))), "no finite number"),
        (weights(first_is(float("-inf"))), "no finite number"),
    ],
)
def test_what_is_no_whole_and_harmless_adapter_is_refused_in_one_line(saved: Path, damage: Break, reason: str) -> None:
    damage(saved)
    with pytest.raises(Rejected, match=reason) as refused:
        read_adapter(saved)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_taken_and_its_infinities_are_not(saved: Path, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(saved / WEIGHTS).items()}
    save_file(tensors, saved / WEIGHTS)
    assert len(read_adapter(saved).tensors) == len(tensors)
    first_is(float("inf"))(tensors)
    save_file(tensors, saved / WEIGHTS)
    with pytest.raises(Rejected, match="no finite number"):
        read_adapter(saved)


def test_an_adapter_for_a_base_of_another_shape_is_refused(saved: Path) -> None:
    adapter = read_adapter(saved)
    check_base(adapter, {"hidden_size": 32, "num_hidden_layers": 1})
    with pytest.raises(Rejected, match="32 wide and not 64"):
        check_base(adapter, {"hidden_size": 64, "num_hidden_layers": 1})
    with pytest.raises(Rejected, match="of more than 0 layers"):
        check_base(adapter, {"hidden_size": 32, "num_hidden_layers": 0})


def test_the_base_is_a_stored_model_or_the_name_that_the_adapter_gives(saved: Path, tmp_path: Path) -> None:
    blobs, adapter = MemoryBlobs(), read_adapter(saved)
    base = stored_model(blobs, tmp_path / "base")
    assert known_base(blobs, base.uri, adapter) == (base.uri, base.digest)
    assert known_base(blobs, "org/model", adapter) == ("org/model", None)
    with pytest.raises(Rejected, match="was made for org/model, not for org/other"):
        known_base(blobs, "org/other", adapter)
    other = stored_adapter(blobs, tmp_path / "adapter", base.uri)
    with pytest.raises(Rejected, match="is no model"):
        known_base(blobs, other.uri, adapter)


def test_an_adapter_that_names_another_base_is_taken_with_a_warning(saved: Path) -> None:
    adapter = read_adapter(saved)
    named = replace(adapter, named_base="org/model")
    doubt = "was made for org/model, and is taken for org/other: are they the same model?"
    assert other_base(named, "org/other") == f"{saved} {doubt}"
    assert other_base(named, "org/model") is None
    assert other_base(replace(adapter, named_base=None), "org/model") is None
