"""Which tokens a constrained call could have drawn, by following its grammar along the tokens that it drew.

A learner masks its logits with them, so that its log-probabilities are of the distribution that the engine drew from.
Shapes: _W 32-bit words of a mask over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import GenerationConfig

from ratchet.core.chat_templates.template import ChatTemplate
from ratchet.core.contract.turn import Constraint
from ratchet.core.datasets.domain.sequences import Floats, Ids
from ratchet.core.errors import Rejected
from ratchet.core.grammars.compiler import Bounds, Compiler, Tokens
from ratchet.core.grammars.walk import Grammar, allowed, open_mask

REJECTED = "constraint_rejected"
"""The grammar does not allow what was drawn: the engine followed another one, or none."""
UNMASKED = "constraint_not_applied"
"""Where the grammar allows a single token, it was not certain: the engine did not mask."""
UNUSABLE = "constraint_unusable"
"""There is no grammar: it is not known here, cannot be compiled, or takes too long to follow."""
NO_ROOM = "constraint_no_room"
"""The masks of all calls together take too much memory."""

UNMASKABLE = (REJECTED, UNMASKED, UNUSABLE, NO_ROOM)
"""Why a constrained call does not learn."""

BOUNDS = Bounds(cpu_s=60, memory=4 << 30, size=256 << 20)
"""An engine has compiled the grammar before, within less."""
CALL_CPU_S = 60.0
"""Seconds of processor time for the masks of one call; an engine's answer takes far less."""
MASKS = 2 << 30
"""Bytes of the masks of all calls; equal ones are kept once."""
CERTAIN = -1e-3
"""Least log-probability of a token that had no alternative."""

Allowed = Sequence[Tensor | None]
"""For each token of an answer which ones could have been drawn, one bit each [W]; None: any."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy wrote in one call."""

    token_ids: Ids
    logprobs: Floats
    constraint: Constraint | None = None


AllowedOf = Callable[[Answer], "Allowed | str"]
"""What a call could have drawn, or the reason (a token) why that cannot be known."""


def free(answer: Answer) -> Allowed:
    """What a call could have drawn that nothing constrained."""
    return [None] * len(answer.token_ids)


def no_masks(_: Answer) -> Allowed | str:
    """Where there is no tokenizer to read a constraint with."""
    return UNUSABLE


class Masks:
    """The masks of calls under one tokenizer. Compiles in a process of its own until `close`."""

    def __init__(self, tokenizer: Any, source: str, size: int) -> None:
        """`tokenizer`: of transformers (`Any`: its types are not usable); `source`: where the base was loaded from;
        `size`: number of logits.
        """
        self._compiler = Compiler(BOUNDS)
        self._tokenizer = tokenizer
        self._source = source
        self._size = size
        self._tokens: Tokens | None = None
        self._known: dict[bytes, tuple[Tensor, bool]] = {}
        """Masks [W] by their bytes, and whether each allows a single token."""

    def close(self) -> None:
        """Compile no more."""
        self._compiler.close()

    def allowed(self, answer: Answer) -> Allowed | str:
        constraint = answer.constraint
        if constraint is None:
            return free(answer)
        try:
            if self._tokens is None:
                tool_format = ChatTemplate(self._tokenizer).tool_format
                ends = end_ids(self._tokenizer, self._source)
                self._tokens = Tokens(self._tokenizer, self._size, ends, tool_format)
            grammar = self._compiler.compile(self._tokens, constraint)
        except Rejected:
            return UNUSABLE
        return self._followed(grammar, answer, constraint.stop_token_ids)

    def _followed(self, grammar: Grammar, answer: Answer, stops: Sequence[int]) -> Allowed | str:
        walk, mask_1W = grammar.walk(stops, CALL_CPU_S), open_mask(1, self._size)
        masks: list[Tensor | None] = []
        for token, logprob in zip(answer.token_ids.tolist(), answer.logprobs.tolist(), strict=True):
            walk.allow(mask_1W, 0)
            if walk.problem is not None:
                return UNUSABLE
            key = mask_1W.numpy().tobytes()
            if key not in self._known:
                if (len(self._known) + 1) * len(key) * 2 > MASKS:  # the key is as large as the mask
                    return NO_ROOM
                self._known[key] = mask_1W[0].clone(), int(allowed(mask_1W, self._size).sum()) == 1
            mask_W, single = self._known[key]
            if not walk.accept(token):
                return REJECTED
            if single and logprob < CERTAIN:
                return UNMASKED
            masks.append(mask_W)
        return masks


def end_ids(tokenizer: Any, source: str) -> list[int]:
    """The tokens that end an answer: the tokenizer's, and those of the model's generation config, if it has one."""
    ends = {tokenizer.eos_token_id}
    with suppress(OSError):
        listed: Any = GenerationConfig.from_pretrained(source, local_files_only=True).eos_token_id
        ends |= {listed} if isinstance(listed, int) else set(listed or ())
    return sorted(ends - {None})
