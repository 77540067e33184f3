"""What the first training of a process pays once, done before there is one: loading, an adapter, a template, a forward.

Libraries compile patterns, import templates and look up kernels when they are first used. In the warm parent this costs
every training nothing. It makes a tiny random model, touches no GPU, and takes no backward pass: autograd refuses to
work in a process that was forked from one that has.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

LAYERS = 24
"""The libraries compile a pattern for each weight by its name, and keep 512: those of so many layers are among them."""
WORDS = ("<|unknown|>", "user", "assistant", "hello")
TEMPLATE = "{% for message in messages %}{{ message.role }} {{ message.content | tojson }} {% endfor %}"


def rehearse() -> None:
    """Load a model from its files, put an adapter on it, render a chat, and score it."""
    disable_progress_bar()  # a bar starts a thread
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        _write_model(folder)
        # `Any`: transformers' auto classes have no usable types.
        base: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model = get_peft_model(base, LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
        torch.log_softmax(logits.float(), -1).gather(-1, ids.unsqueeze(-1)).sum()


def _write_model(folder: str) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=WORDS[0], chat_template=TEMPLATE)
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=LAYERS,
        num_attention_heads=1,
        num_key_value_heads=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
