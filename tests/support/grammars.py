"""Grammars over the tokens of a tiny model, and what may follow in them."""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from ratchet.core.contract.turn import Constraint
from ratchet.core.grammars.compiler import Bounds, Compiler, Tokens
from ratchet.core.rules.constraints import constraint_of


def read_tokenizer(directory: Path) -> Any:
    """The tokenizer of a model (`Any`: transformers' types are not usable)."""
    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


@cache
def shared_compiler() -> Compiler:
    """One process that compiles, for all tests of this run: it takes seconds to start."""
    compiler = Compiler(Bounds(cpu_s=2))
    atexit.register(compiler.close)
    return compiler


def tokens_of(tokenizer: Any, tool_format: str = "call_token") -> Tokens:
    """The tokens of a model with as many logits as its tokenizer has tokens."""
    return Tokens(tokenizer, len(tokenizer), [tokenizer.eos_token_id], tool_format)


def constraint(**body: Any) -> Constraint:
    """What a request constrains its answer to."""
    outcome = constraint_of(body)
    assert isinstance(outcome, Constraint), outcome
    return outcome


class Language:
    """The texts that a constraint allows, for one tokenizer."""

    def __init__(self, compiler: Compiler, tokenizer: Any, asked: Constraint, tool_format: str = "call_token") -> None:
        self._tokenizer = tokenizer
        self._grammar = compiler.compile(tokens_of(tokenizer, tool_format), asked)

    def holds(self, text: str) -> bool:
        """Whether a whole answer may be `text`, token by token and then the end."""
        walk = self._grammar.walk()
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return all(map(walk.accept, [*ids, self._tokenizer.eos_token_id]))
