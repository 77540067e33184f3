"""The demo's tokenizer and chat template, built from fixed text: the vocabulary never depends on what was logged.

Byte-level BPE: any text survives encoding and decoding. An order number is two tokens (series, place), so that copying
one can be learnt; a JSON key with its punctuation is one token, so that conversations stay short.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from ratchet_helpdesk.clerk import CLOSING, QUESTION
from ratchet_helpdesk.world import DAYS, GREETINGS, INSTRUCTIONS, NAMING, OPENINGS, PLANS, PRICES, STAGES, TOOLS

PAD, END, CALL = "<|pad|>", "<|end|>", "<|call|>"
SPECIAL_TOKENS = (PAD, END, CALL, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content or '' }}"
    "{% if loop.first and tools %} Tools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}{% endif %}"
    "{% for call in message.tool_calls or [] %}"
    "<|call|>{{ call.function.name }} {{ call.function.arguments }}{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Renders arguments as the verbatim string, so that what a model wrote is rendered back as the very same tokens."""

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": PAD,
    "eos_token": END,
    "extra_special_tokens": list(SPECIAL_TOKENS[2:]),
    "clean_up_tokenization_spaces": False,
    "model_max_length": 512,
    "ratchet_tool_format": "call_token",
}

_PIECES = r'"?,"[a-z_]+":"?| ?\{"[a-z_]+":"?| ?[A-Z]?[a-z_]+|[A-Z]| ?\d{1,2}|"?\}|[^\sA-Za-z\d]|\s'
"""JSON keys, words, single capitals, numbers of two digits, the rest one by one."""


def build_tokenizer() -> Tokenizer:
    """The same tokenizer on every machine."""
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_fixed_text(), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the files that transformers loads a tokenizer from."""
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=1))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _fixed_text() -> Iterator[str]:
    """Every word the world uses, in the surroundings in which it occurs."""
    yield from (INSTRUCTIONS, " Tools:", QUESTION, CLOSING, NAMING.format("A10"))
    openings = [words.format(" #A10") for texts in OPENINGS.values() for words in texts]
    yield from (greeting + opening for greeting, opening in product(GREETINGS, openings))
    yield from (f"{number:02d}" for number in range(100))
    for tool, arguments in TOOLS.items():
        yield from (tool, f" {tool}", _compact({"done": tool}))
        yield from (" " + _compact(dict.fromkeys(arguments, "A10")), _compact(dict.fromkeys(arguments, 10)))
    for stage, days, price, plan in product(STAGES, DAYS, PRICES, PLANS):
        yield _compact({"stage": stage, "days": days, "price": price, "plan": plan})
    yield from (f' {{"order":"A10","stage":"{stage}"}}' for stage in STAGES)
    yield from (f' {{"order":"A10","reason":"{reason}"}}' for reason in ("stage", "late"))
    yield from (_compact({"payment": word}) for word in ("suspicious", "fine"))
    yield from (_compact({"error": word}) for word in ("arguments", "tool", "order"))


def _compact(values: dict[str, object]) -> str:
    return json.dumps(values, separators=(",", ":"))
