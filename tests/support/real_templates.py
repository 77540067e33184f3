"""Chat templates of published models, with a tokenizer that knows their control tokens.

Those of Qwen, Llama, Gemma, DeepSeek R1 and gpt-oss are read from the installed TRL. No installed package holds the
one of Mistral: one of our own has its shape. SmolLM2's is the one in its GGUF; `smollm2_tools` is the demo's.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from transformers import AutoTokenizer

from ratchet.local.smollm2 import smollm2_template
from tests.support.tiny_models import write_tokenizer

TRL = (
    "qwen2_5",
    "qwen3",
    "qwen3_training",
    "qwen3_instruct_2507",
    "qwen3_5_think",
    "qwen3_5_nothink",
    "llama3",
    "llama3_1",
    "llama3_2",
    "gemma",
    "gemma3",
    "gemma4",
    "deepseek_r1_distill",
    "deepseekv3",
    "gptoss",
    "glm4moe",
    "lfm2",
    "lfm2_v2",
    "phi3",
)
"""Names of its files."""

MISTRAL = (
    "{%- if messages[0].role == 'system' %}{%- set system = messages[0].content %}{%- set chat = messages[1:] %}"
    "{%- else %}{%- set chat = messages %}{%- endif %}{{- bos_token }}"
    "{%- for message in chat %}"
    "{%- if message.role == 'user' %}"
    "{%- if tools and loop.index0 == 0 %}{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}"
    "{%- endif %}"
    "{{- '[INST] ' }}{%- if system is defined and loop.last %}{{- system + '\n\n' }}{%- endif %}"
    "{{- message.content + '[/INST]' }}"
    "{%- elif message.tool_calls %}{{- '[TOOL_CALLS] [' }}"
    "{%- for call in message.tool_calls %}{%- if call.id | length != 9 %}"
    "{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}"
    "{{- (call.function | tojson)[:-1] + ', \"id\": \"' + call.id + '\"}' }}"
    "{{- ']' + eos_token if loop.last else ', ' }}{%- endfor %}"
    "{%- elif message.role == 'assistant' %}{{- ' ' + message.content | trim + eos_token }}"
    "{%- elif message.role == 'tool' %}{%- if message.tool_call_id | length != 9 %}"
    "{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}"
    '{{- \'[TOOL_RESULTS] {"content": \' + message.content + \', "call_id": "\' + message.tool_call_id '
    "+ '\"}[/TOOL_RESULTS]' }}"
    "{%- endif %}{%- endfor %}"
)
"""In the shape of Mistral 7B v0.3's: the system prompt moves to the last user message, ids have nine characters."""

SMOLLM2 = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
"""It knows no tools."""

NAMES = (*TRL, "mistral", "smollm2", "smollm2_tools")
_OWN = {"mistral": MISTRAL, "smollm2": SMOLLM2, "smollm2_tools": smollm2_template()}
_CONTROL = re.compile(
    r"<\|[a-z_]+\|>|<｜[^｜]+｜>|<(?:start|end)_of_turn>|\[/?(?:INST|[A-Z]+_[A-Z]+)\]|<\|?(?:turn|tool_\w+)\|?>"
)
_PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens of their own that are no control tokens."""


def template_source(name: str) -> str:
    """The text of a template."""
    return _OWN.get(name) or (resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text()


def real_tokenizer(directory: Path, name: str) -> Any:
    """A tokenizer with that chat template (`Any`: it carries no usable types)."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tokenizer(directory, ["Where is K47? It is lost. Sorry."])
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    del tokenizer.init_kwargs["ratchet_tool_format"]
    source = template_source(name)
    control = sorted(set(_CONTROL.findall(source)) - set(_PLAIN))
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in ["<s>", "</s>", *control]])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in _PLAIN])
    tokenizer.bos_token, tokenizer.eos_token = "<s>", "</s>"
    tokenizer.chat_template = source
    return tokenizer
