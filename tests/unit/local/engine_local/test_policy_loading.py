"""Policies are served only when they are the bytes, the weights and the log-probabilities that were published."""

import copy
import errno
import json
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from ratchet.core.contract.policy_manifest import ADAPTER, BFLOAT16, FLOAT32, MODEL, ArtifactFile, PolicyManifest, Probe
from ratchet.core.errors import DigestMismatch, NotFound, Rejected
from ratchet.core.stores.base_weights import weights_digest
from ratchet.core.stores.policies import (
    COMPLETE_MARK,
    TOKENIZER_FILES,
    Policy,
    publish_policy,
    tokenizer_digest,
    upload_files,
)
from ratchet.local.engine_local.s3_policies import PolicyLoader
from ratchet.local.engine_local.torch_llama import beside_weights, lean_network
from ratchet.local.engine_local.torch_policies import Weights, load_weights, logprobs_of, with_adapter
from ratchet.local.engine_local.torch_slots import Slots
from ratchet.local.engine_local.transformers_text import refusing
from tests.support.blobs import MemoryBlobs
from tests.support.tiny_models import publish_tiny_model, tiny_configs, write_tiny_model

AT = datetime(2026, 1, 5, tzinfo=UTC)
PROMPT, OUTPUT = list(range(20, 50)), [60, 61, 62, 63]


def random_adapter(
    weights: Weights, directory: Path, seed: int = 0, spread: float = 0.1, modules: Any = "all-linear", **options: Any
) -> Any:
    """Save a LoRA adapter with random weights; returns the unmerged model."""
    torch.manual_seed(seed)
    shape = {"r": 8, "lora_alpha": 16, "target_modules": modules, "task_type": "CAUSAL_LM"}
    config = LoraConfig(**(shape | options))
    adapted = get_peft_model(copy.deepcopy(weights.model), config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name and not (spread < 0.1 and "lora_A" in name):
                parameter.normal_(0, spread)
    adapted.save_pretrained(str(directory))
    (directory / "README.md").unlink(missing_ok=True)
    return adapted.eval()


@torch.inference_mode()
def unmerged_logprobs(model: Any, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    ids = torch.tensor([[*prompt, *output]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])[:, 0].tolist()


class Store:
    """A published base and adapters on it."""

    def __init__(self, weights: Weights, directory: Path, scratch: Path) -> None:
        self.directory = directory
        self.blobs = MemoryBlobs()
        self.base: Policy = publish_tiny_model(self.blobs, directory, "helpdesk", AT)
        self.adapter_directory = scratch / "adapter"
        self.adapted = random_adapter(weights, self.adapter_directory)
        self.loader = PolicyLoader(self.blobs, scratch / "models")
        self.tokenizer_digest = tokenizer_digest(directory)

    def adapter(self, **changes: Any) -> Policy:
        plain = PolicyManifest(
            kind=ADAPTER,
            base_model=self.base.uri,
            base_digest=self.base.digest,
            files=upload_files(self.blobs, self.adapter_directory),
            role="helpdesk",
            created_at=AT,
            tokenizer_digest=self.tokenizer_digest,
            probe=self.probe(),
        )
        return publish_policy(self.blobs, msgspec.structs.replace(plain, **changes))

    def probe(self, shift: float = 0.0) -> Probe:
        logprobs = unmerged_logprobs(self.adapted, PROMPT, OUTPUT)
        return Probe(prompt_token_ids=PROMPT, output_token_ids=OUTPUT, logprobs=[one + shift for one in logprobs])


@pytest.fixture
def store(weights: Weights, tiny_directory: Path, tmp_path: Path) -> Store:
    return Store(weights, tiny_directory, tmp_path)


def test_an_adapter_gives_the_logprobs_of_peft(weights: Weights, tmp_path: Path) -> None:
    adapted = random_adapter(weights, tmp_path)
    actual = logprobs_of(with_adapter(weights, tmp_path, None).network, PROMPT, OUTPUT)
    expected = unmerged_logprobs(adapted, PROMPT, OUTPUT)
    assert max(abs(a - b) for a, b in zip(actual, expected, strict=True)) < 1e-4


@pytest.mark.parametrize("modules", ["all-linear", ["q_proj", "v_proj", "up_proj"]])
def test_an_unmerged_adapter_is_computed_as_peft_does(weights: Weights, tmp_path: Path, modules: Any) -> None:
    adapted = random_adapter(weights, tmp_path, modules=modules)
    network = beside_weights(weights.network, adapted.get_base_model())
    assert network is not None
    expected = unmerged_logprobs(adapted, PROMPT, OUTPUT)
    assert max(abs(a - b) for a, b in zip(logprobs_of(network, PROMPT, OUTPUT), expected, strict=True)) < 1e-4


@pytest.mark.parametrize("options", [{"use_dora": True}, {"modules_to_save": ["norm"]}])
def test_other_adapters_than_plain_ones_are_not_computed_unmerged(
    weights: Weights, tmp_path: Path, options: Any
) -> None:
    adapted = random_adapter(weights, tmp_path, **options)
    assert beside_weights(weights.network, adapted.get_base_model()) is None


@torch.inference_mode()
def all_logits(weights: Weights) -> torch.Tensor:
    """Of 32 texts of random tokens."""
    ids = torch.randint(weights.network.vocabulary, (32, 64), generator=torch.Generator().manual_seed(1)).tolist()
    slots = Slots(weights.network)
    return torch.cat([slots.forward_each(slots.open(None, 0), text) for text in ids])


def test_a_small_change_survives_in_16_bits(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "base", ["a b c"], hidden=64)
    load_weights(directory, "bfloat16").model.save_pretrained(directory)  # exactly what 16 bits can hold
    exact, rough = load_weights(directory, "float32"), load_weights(directory, "bfloat16")
    random_adapter(exact, tmp_path / "adapter", spread=6e-5, r=16, lora_alpha=32)
    changed, changed_in_16_bits = (
        all_logits(with_adapter(base, tmp_path / "adapter", None)) - all_logits(base) for base in (exact, rough)
    )
    survives = float((changed * changed_in_16_bits).sum() / changed.square().sum())
    assert 0.9 < survives < 1.1


def test_merging_leaves_the_base_and_other_adapters_alone(weights: Weights, tmp_path: Path) -> None:
    before = logprobs_of(lean_network(weights.model), PROMPT, OUTPUT)
    random_adapter(weights, tmp_path / "a", seed=1)
    random_adapter(weights, tmp_path / "b", seed=2)
    first = with_adapter(weights, tmp_path / "a", None)
    alone = logprobs_of(first.network, PROMPT, OUTPUT)
    with_adapter(weights, tmp_path / "b", None)
    assert logprobs_of(lean_network(weights.model), PROMPT, OUTPUT) == before
    assert logprobs_of(first.network, PROMPT, OUTPUT) == alone


def test_weights_that_no_adapter_changes_are_shared(weights: Weights, tmp_path: Path) -> None:
    random_adapter(weights, tmp_path)
    merged = with_adapter(weights, tmp_path, None)
    assert merged.model.model.embed_tokens.weight.data_ptr() == weights.model.model.embed_tokens.weight.data_ptr()
    changed = sum(weight.nbytes for name, weight in merged.model.named_parameters() if "_proj" in name)
    assert 0 < changed == merged.own_bytes < weights.own_bytes


def test_an_adapter_is_loaded_with_its_base_and_probed(store: Store) -> None:
    policy = store.adapter()
    served = store.loader.load(policy.uri)
    actual = logprobs_of(served.network, PROMPT, OUTPUT)
    assert max(abs(a - b) for a, b in zip(actual, unmerged_logprobs(store.adapted, PROMPT, OUTPUT), strict=True)) < 1e-4


def test_a_model_is_loaded_as_a_policy_of_its_own(store: Store) -> None:
    assert store.loader.load(store.base.uri).context


def test_other_logprobs_than_the_trainers_are_refused(store: Store) -> None:
    with pytest.raises(Rejected, match="differ by"):
        store.loader.load(store.adapter(probe=store.probe(shift=0.01)).uri)


def test_a_policy_that_gives_nan_is_refused(store: Store, weights: Weights, tmp_path: Path) -> None:
    broken = copy.deepcopy(weights.model)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    directory = tmp_path / "broken"
    broken.save_pretrained(directory)
    files = upload_files(store.blobs, directory)
    kept = [one for one in upload_files(store.blobs, store.directory) if one.name.startswith(("token", "chat"))]
    manifest = PolicyManifest(kind=MODEL, base_model="random", files=[*files, *kept], role="helpdesk", created_at=AT)
    with pytest.raises(Rejected, match="NaN"):
        store.loader.load(publish_policy(store.blobs, manifest).uri)


def test_damaged_bytes_are_refused(store: Store) -> None:
    policy = store.adapter()
    weights_uri = next(one.uri for one in policy.manifest.files if one.name.endswith(".safetensors"))
    store.blobs.blobs[weights_uri] = store.blobs.blobs[weights_uri][:-1] + b"x"
    with pytest.raises(DigestMismatch):
        store.loader.load(policy.uri)


def without_a_file(store: Store, file: ArtifactFile) -> None:
    del store.blobs.blobs[file.uri]


def with_a_cut_file(store: Store, file: ArtifactFile) -> None:
    store.blobs.blobs[file.uri] = store.blobs.blobs[file.uri][: file.size // 2]


def with_an_empty_file(store: Store, file: ArtifactFile) -> None:
    store.blobs.blobs[file.uri] = b""


@pytest.mark.parametrize("harm", [without_a_file, with_a_cut_file, with_an_empty_file])
@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_half_written_adapter_is_refused_and_leaves_the_cache_as_it_was(
    store: Store, harm: Callable[[Store, ArtifactFile], None], name: str, tmp_path: Path
) -> None:
    policy = store.adapter()
    file = next(one for one in policy.manifest.files if one.name == name)
    whole = store.blobs.blobs[file.uri]
    harm(store, file)
    with pytest.raises((NotFound, DigestMismatch)) as refused:
        store.loader.load(policy.uri)
    assert file.uri in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list((tmp_path / "models").iterdir()) == []
    store.blobs.blobs[file.uri] = whole
    assert store.loader.load(policy.uri).probed


def killed_while_it_fetched(directory: Path) -> None:
    (directory / COMPLETE_MARK).unlink()
    (directory / "adapter_model.safetensors").write_bytes(b"half")


def without_power(directory: Path) -> None:
    (directory / "adapter_model.safetensors").write_bytes(b"")


def with_a_flipped_byte(directory: Path) -> None:
    weights = directory / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


def with_a_lost_file(directory: Path) -> None:
    (directory / "adapter_config.json").unlink()


@pytest.mark.parametrize("harm", [killed_while_it_fetched, without_power, with_a_flipped_byte, with_a_lost_file])
def test_a_half_written_adapter_in_the_cache_is_fetched_again(
    store: Store, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    policy = store.adapter()
    store.loader.load(policy.uri)
    harm(tmp_path / "models" / policy.digest)
    served = PolicyLoader(store.blobs, tmp_path / "models").load(policy.uri)
    actual = logprobs_of(served.network, PROMPT, OUTPUT)
    assert max(abs(a - b) for a, b in zip(actual, unmerged_logprobs(store.adapted, PROMPT, OUTPUT), strict=True)) < 1e-4


def test_another_tokenizer_than_the_trainers_is_refused(store: Store) -> None:
    with pytest.raises(Rejected, match="another tokenizer"):
        store.loader.load(store.adapter(tokenizer_digest="0" * 64).uri)


def test_an_adapter_that_brings_the_tokenizer_of_its_base_is_served(store: Store) -> None:
    for file in store.directory.iterdir():
        if file.name in TOKENIZER_FILES:
            shutil.copy(file, store.adapter_directory)
    policy = store.adapter()
    assert store.loader.load(policy.uri).probed


def test_an_unknown_manifest_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        store.loader.load("s3://test/policies/" + "0" * 64 + ".json")


def test_base_that_the_machine_lacks_is_not_found_and_no_hub_is_asked(store: Store) -> None:
    with pytest.raises(NotFound, match=r"no base model 'example/no-such-base'.*local_files_only"):
        store.loader.load(store.adapter(base_model="example/no-such-base").uri)


def test_base_in_a_directory_has_the_weights_that_the_adapter_was_made_on(store: Store, tmp_path: Path) -> None:
    base = shutil.copytree(store.directory, tmp_path / "base")
    digest = weights_digest(base, tmp_path)
    policy = store.adapter(base_model=str(base), base_digest=digest)
    assert store.loader.load(policy.uri).probed
    config = base / "config.json"
    config.write_text(config.read_text() + " ")
    with pytest.raises(DigestMismatch, match="has other weights here than where the adapter was trained"):
        store.loader.load(policy.uri)


def test_files_that_are_no_adapter_are_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "adapter_model.safetensors").write_bytes(b"junk")
    files = upload_files(store.blobs, tmp_path / "junk")
    with pytest.raises(Rejected, match="is not PEFT's of a LoRA"):
        store.loader.load(store.adapter(files=files).uri)


def with_cut_weights(directory: Path) -> None:
    weights = directory / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4000])


def with_a_pickle(directory: Path) -> None:
    (directory / "adapter_model.safetensors").unlink()
    (directory / "adapter_model.bin").write_bytes(b"no pickle")


def with_a_template_that_never_ends(directory: Path) -> None:
    loop = "".join(f"{{% for {one} in range(99999) %}}" for one in "abc") + "{% endfor %}" * 3
    (directory / "tokenizer.json").write_text("{}")
    (directory / "chat_template.jinja").write_text(loop)


def with_config(**members: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        config = directory / "adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | members))

    return change


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (with_cut_weights, "cannot load the adapter"),
        (with_a_pickle, "cannot load the adapter"),
        (with_a_template_that_never_ends, "another tokenizer or chat template than its base has"),
        (with_config(r="x"), "a rank that is no positive number"),
        (with_config(target_modules=7), "cannot load the adapter"),
        (with_config(r=300_000), "its rank is 300000, and 1024 is the most"),
        (with_config(rank_pattern={"q_proj": 300_000}), "its rank is 300000, and 1024 is the most"),
        (with_config(peft_type="IA3"), "its adapter is IA3"),
    ],
)
def test_an_adapter_that_was_published_damaged_is_refused_in_one_line(
    store: Store, harm: Callable[[Path], None], words: str
) -> None:
    """Its digests are right: what was damaged already was hashed."""
    harm(store.adapter_directory)
    policy = store.adapter(tokenizer_digest=None)
    with pytest.raises(Rejected, match=words) as refused:
        store.loader.load(policy.uri)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (MemoryError(), MemoryError),
        (OSError(errno.ENOSPC, "No space left on device"), OSError),
        (NotFound("no such object"), NotFound),
        (OSError("no file named config.json"), Rejected),
        (KeyError("lora"), Rejected),
    ],
)
def test_what_the_machine_lacks_is_no_fault_of_files(error: Exception, raised: type[Exception]) -> None:
    with pytest.raises(raised), refusing("load the adapter"):
        raise error


@pytest.mark.parametrize("kinds", [("sliding_attention", "full_attention"), ("sliding_attention",) * 2])
def test_sliding_windows_are_kept_also_behind_a_cache(kinds: tuple[str, str], tmp_path: Path) -> None:
    config = tiny_configs(300)["qwen3"]
    config.sliding_window, config.layer_types = 6, list(kinds)
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)
    model.eval()
    own = logprobs_of(lean_network(model), PROMPT, OUTPUT)
    assert own == pytest.approx(unmerged_logprobs(model, PROMPT, OUTPUT), abs=1e-5)
    config.layer_types = ["full_attention"] * 2
    wide: Any = AutoModelForCausalLM.from_config(config)
    wide.load_state_dict(model.state_dict())
    assert own != pytest.approx(unmerged_logprobs(wide.eval(), PROMPT, OUTPUT), abs=1e-3)


def test_layers_that_keep_no_keys_and_values_are_refused_in_words(tiny_directory: Path, tmp_path: Path) -> None:
    """Also chunks: their keys and values are not those of a window."""
    shutil.copytree(tiny_directory, tmp_path / "hybrid")
    path = tmp_path / "hybrid" / "config.json"
    stored = json.loads(path.read_text()) | {"layer_types": ["full_attention", "chunked_attention"]}
    path.write_text(json.dumps(stored))
    with pytest.raises(Rejected, match="layers of kind chunked_attention cannot be served"):
        load_weights(tmp_path / "hybrid")


def test_a_number_format_that_nothing_here_computes_in_is_refused(tiny_directory: Path) -> None:
    assert load_weights(tiny_directory, "bfloat16").model.dtype == torch.bfloat16
    with pytest.raises(Rejected, match="computes in float8"):
        load_weights(tiny_directory, "float8")


def test_files_that_are_no_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Rejected, match="cannot load"):
        load_weights(tmp_path / "empty")


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_weights_of_16_bits_are_read_where_they_lie(dtype: str, tiny_directory: Path) -> None:
    model = load_weights(tiny_directory, dtype).model
    network: Any = lean_network(model)
    shared = network._head_CV.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert shared == (dtype == BFLOAT16)
